"""Does a call that a person released reach its server as they saw it, whatever else its client wrote beside it?

A node in this process, real servers of both eras, and what they received, byte for byte.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.contract_node import FEATURES, ContractNode, contract, contract_node
from tests.gate.held_calls import ADA, MARK, anchor
from tests.gate.processes.test_gate_kept import Here
from tests.servers.start import raw
from tests.support.budget_node import Client
from tests.support.node_with_clock import CAPABLE, ELICIT, FILLED, META

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALSO = '[gate]\nmode = "open"\nalso = ["*.keep", "*.play", "*.job", "*.must"]\n' + anchor("ada", ADA, "*")
UNSIGNED = {
    "amount": 1_000_000,
    "Arguments": {"path": "/etc"},
    "task": {"ttl": 1, "run_as": "root"},
    "inputResponses": {"one": {"action": "accept", "content": {"sure": True}}},
}
FOREIGN = {
    "com.example/override": {"path": "/etc"},
    "io.modelcontextprotocol/related-task": {"taskId": "task-1"},
    "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    "tracestate": "vendor=run-as-root",
    "progressToken": "mine",
}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
STAMP = {META + "protocolVersion", META + "clientInfo", META + "clientCapabilities"}


class Sending(ContractNode):
    proof, confirm, approved = Here.proof, Here.confirm, Here.approved

    async def release(self, params: dict[str, Any], **options: Any) -> Any:
        """The answer to the call once it is approved, and what its server received of it."""
        held = await self.ask("tools/call", params, **options).result()
        await self.approved(held["_meta"][MARK])
        segment, _, tool = params["name"].partition("__")
        before = len(await self.seen(segment))
        result = await self.ask("tools/call", params, **options).result()
        (sent,) = [one for one in (await self.seen(segment))[before:] if one["name"] == tool]
        return result, sent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sending]:
    servers = {
        era: {"command": raw(f"{FEATURES},tasks", "--era", era), "share": "node"} for era in ("modern", "legacy")
    }
    folder = tmp_path_factory.mktemp("sent")
    async with contract_node(folder, {"new": servers["modern"], "old": servers["legacy"]}, ALSO) as made:
        yield Sending(made.node, made.clock)


def meta_of(sent: Any) -> set[str]:
    return set(sent.pop("_meta", {}))


@pytest.mark.req("AX-11.3-13")
@pytest.mark.parametrize("segment", ["new", "old"])
async def test_nothing_beside_the_arguments_reaches_the_server(here: Sending, segment: str) -> None:
    arguments = {"path": f"/home/{segment}"}
    params = {"name": f"{segment}__keep", "arguments": arguments, **UNSIGNED}
    result, sent = await here.release(params, meta=FOREIGN)
    assert result["structuredContent"] == {"got": arguments}
    assert meta_of(sent) == {"progressToken"} | (STAMP if segment == "new" else set())
    assert sent == {"name": "keep", "arguments": arguments}


@pytest.mark.req("AX-11.3-13")
async def test_a_state_and_answers_to_a_question_nobody_asked_stay_here(here: Sending) -> None:
    arguments = {"label": "unasked", "act": {"ask": ELICIT}}
    params = {"name": "new__play", "arguments": arguments, "requestState": "made up", **UNSIGNED}
    asked, sent = await here.release(params)
    assert (asked["resultType"], "inputResponses" in sent, "requestState" in sent) == ("input_required", False, False)


@pytest.mark.req("AX-11.3-13")
async def test_in_the_next_round_the_answers_to_what_was_asked_go_along(here: Sending) -> None:
    arguments = {"label": "asked", "act": {"ask": ELICIT}}
    asked, _ = await here.release({"name": "new__play", "arguments": arguments})
    given = {"one": FILLED, "another": {"action": "accept", "content": {"run_as": "root"}}}
    params = {"name": "new__play", "arguments": arguments, "requestState": asked["requestState"]}
    done = await here.ask("tools/call", {**params, "inputResponses": given, "amount": 1}, meta=FOREIGN).result()
    assert done["structuredContent"]["done"] == "asked"
    sent = [one for one in await here.seen("new") if one["name"] == "play"][-1]
    assert meta_of(sent) == {"progressToken"} | STAMP
    assert sent == {
        "name": "play",
        "arguments": arguments,
        "requestState": "state of asked",
        "inputResponses": {"one": FILLED},
    }


async def test_a_parked_call_is_taken_up_again_by_the_request_as_its_client_wrote_it(here: Sending) -> None:
    arguments = {"label": "parked", "act": {"ask": ELICIT}}
    params = {"name": "old__play", "arguments": arguments, "amount": 1}
    asked, sent = await here.release(params)
    assert sent == {"name": "play", "arguments": arguments}
    answers = dict.fromkeys(asked["inputRequests"], FILLED)
    back = {**params, "requestState": asked["requestState"], "inputResponses": answers}
    assert (await here.ask("tools/call", back).result())["structuredContent"]["done"] == "parked"


@pytest.mark.parametrize("segment", ["new", "old"])
async def test_nothing_beside_the_arguments_of_a_contract_reaches_its_driver(here: Sending, segment: str) -> None:
    await here.serve(segment, contract("files.keep", inputs=PATH, approval="always"), "keep")
    before = len(await here.seen(segment))
    params = {"name": "files__keep", "arguments": {"path": "/a"}, "requestState": "ild1.only-mcp@1 =x", **UNSIGNED}
    held = await here.ask("tools/call", params, meta=FOREIGN).result()
    await here.approved(held["_meta"][MARK])
    done = await here.ask("tools/call", params, meta=FOREIGN).result()
    assert not done.get("isError"), done
    (sent,) = [one for one in (await here.seen(segment))[before:] if one["name"] == "keep"]
    assert meta_of(sent) == {"progressToken"} | (STAMP if segment == "new" else set())
    assert sent == {"name": "keep", "arguments": {"path": "/a"}}


async def test_a_client_that_wants_a_task_gets_one_and_says_nothing_more_with_it(here: Sending) -> None:
    client = Client(here, "legacy", "local", None, CAPABLE)
    params = {"name": "old__must", "arguments": {"n": 1}, "task": {"ttl": 60_000, "run_as": "root"}}
    held = await client.ask("tools/call", params).result()
    await here.approved(held["_meta"][MARK])
    assert "task" in await client.ask("tools/call", params).result()
    sent = [one for one in await here.seen("old") if one["name"] == "must"][-1]
    assert sent == {"name": "must", "arguments": {"n": 1}, "task": {}}
