"""Many drivers in one node: do they start side by side and bounded, and does an idle one cost no process?"""

from pathlib import Path

from tests.drivers.driver_node import Workspace, alive, states
from tests.support.node_process import LEGACY, RunningNode, running_node, wait_for
from tests.support.peers import HttpPeer
from tests.support.scale import many

from interlock.process.limits import STARTS_MAX

MANY = many(60, 200)
SCRIPT = Path(__file__).parents[1] / "quick.sh"
QUICK = {"protocol_version": "2025-11-25"}


def make(tmp_path: Path) -> tuple[Workspace, Path]:
    workspace, log = Workspace(tmp_path), tmp_path / "quick.log"
    server = {"kind": "binary", "path": "/bin/sh", "args": [str(SCRIPT), str(log)]}
    for number in range(MANY):
        workspace.add(f"quick{number}-mcp", tools={"echo": f"demo.t{number}"}, server=server, **QUICK)
    return workspace, log


def lines(log: Path) -> list[list[str]]:
    """What was written, and by which process."""
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def most_starting(written: list[list[str]]) -> int:
    """How many processes were started and not listed, when they were most."""
    starting: set[str] = set()
    most = 0
    for what, pid in written:
        (starting.add if what == "start" else starting.discard)(pid)
        most = max(most, len(starting))
    return most


def offered(node: RunningNode) -> int:
    tools: int = node.admin("/admin/status")["catalog"]["tools"]
    return tools


def test_starts_of_configured_servers_are_limited_and_a_server_that_hangs_delays_few(tmp_path: Path) -> None:
    log = tmp_path / "quick.log"
    servers = {f"quick{number}": {"command": ["/bin/sh", str(SCRIPT), str(log)]} for number in range(MANY // 2)}
    hanging = {f"hang{number}": {"command": ["/bin/cat"]} for number in range(STARTS_MAX - 2)}
    with running_node(tmp_path / "node", {**hanging, **servers}, announced=False) as node:
        wait_for(lambda: sum(what == "listed" for what, _ in lines(log)) == len(servers), 60)
        wait_for(lambda: offered(node) == len(servers))
    assert 1 < most_starting(lines(log)) <= STARTS_MAX


async def test_many_drivers_start_bounded_side_by_side_and_sleep_without_a_process(tmp_path: Path) -> None:
    workspace, log = make(tmp_path)
    with workspace.node(idle_timeout_s=1) as node:
        wait_for(lambda: sum(what == "listed" for what, _ in lines(log)) == MANY, 60)
        wait_for(lambda: offered(node) == MANY)
        assert 1 < most_starting(lines(log)[: 2 * MANY]) <= STARTS_MAX
        pids = {int(pid) for what, pid in lines(log) if what == "start"}
        assert len(pids) == MANY
        wait_for(lambda: not any(map(alive, pids)), 20)
        async with await HttpPeer(f"{node.url}/mcp", LEGACY).greet() as peer:
            answer = await peer.call("demo__t7", {"n": 1})
            assert answer.result["structuredContent"]["pid"] not in pids
    with workspace.node(registration="lazy") as node:
        before = len(lines(log))
        wait_for(lambda: offered(node) == MANY, 60)
        assert list(states(node).values()).count("ready") == MANY
        assert len(lines(log)) == before
        async with await HttpPeer(f"{node.url}/mcp", LEGACY).greet() as peer:
            for _ in range(2):
                assert "pid" in (await peer.call("demo__t7", {"n": 1})).result["structuredContent"]
        assert [what for what, _ in lines(log)[before:]] == ["start", "listed"]
