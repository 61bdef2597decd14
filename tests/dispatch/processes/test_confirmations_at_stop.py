"""Is a confirmation that arrived before the node stops decided?"""

from pathlib import Path

from tests.gate.processes.test_gate_kept import house

from interlock.approvals.protocol.approval import Status


async def test_a_confirmation_under_way_is_decided_before_the_dispatcher_is_closed(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        demand = await here.held()
        confirming = here.confirm(demand)
        assert here.status(demand) is Status.PENDING
        await here.node.calls.dispatch.close()
        assert here.status(demand) is Status.APPROVED
        assert (await confirming.result())["status"] == "confirmed"
