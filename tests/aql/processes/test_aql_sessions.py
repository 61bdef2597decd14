"""Sessions at the AQL surfaces: from a connection to its end, and what is left of them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from tests.safety.agent_lines import Lines
from tests.safety.agents import LOOK, AgentNode, agent_node

from interlock.aql.operation_index import OperationContext
from interlock.aql.protocol.model import AqlOperation, Category

pytestmark = pytest.mark.asyncio(loop_scope="module")

ON = '[gate]\nmode = "open"\n[safety]\nmode = "enforcing"\npreapproved = true\n[mcp]\nsession_idle_s = 60\n'
SESSION = "dev.interlock/aql-session"


class Slow:
    """An operation of the node that waits to be told to end."""

    def __init__(self) -> None:
        self.began, self.may_end, self.ended = asyncio.Event(), asyncio.Event(), ""

    async def handle(self, context: OperationContext, params: dict[str, Any]) -> str:
        self.began.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "completed"
        return "too late"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentNode]:
    async with agent_node(tmp_path_factory.mktemp("sessions"), ON) as found:

        async def remove(context: OperationContext, params: dict[str, Any]) -> str:
            return "gone"

        native = found.node.calls.native_operations
        native.add(AqlOperation(name="delete_thing", category=Category.DELETE, description="Removes it."), remove)
        yield found


async def asked_token(client: Lines) -> str:
    said = await client.do("delete_thing", family="delete")
    return str(said["error"]["details"]["confirmation_token"])


async def records(here: AgentNode) -> list[dict[str, Any]]:
    await here.node.stores.recorder.flush()
    return [json.loads(record.data) for record in await here.node.stores.audit.read(0, 100_000)]


@pytest.mark.req("AQL-2.3.1-1", "AQL-2.3.5-1", "AQL-2.3.5-3")
async def test_a_session_is_the_life_of_one_connection(here: AgentNode) -> None:
    early, before = Lines(here, "aql"), len(await records(here))
    early._stamp = {}
    refused = await early.request("tools/call", {"name": "mcp_aql_read", "arguments": {"operation": "plant__look"}})
    assert refused["error"]["message"] == "send initialize first"
    assert len(await records(here)) == before and not here.node.fronts.sessions.by_id
    ids = []
    for label in ("blue", "red"):
        client = await Lines(here, "aql").greet()
        meta = {"dev.interlock/aql-label": label, "session_id": "aqls_mine"}
        call = {"name": "mcp_aql_read", "arguments": {"operation": "nope"}, "_meta": meta}
        ids.append((await client.request("tools/call", call))["result"]["_meta"][SESSION])
        await client.do("plant__look")
        token = await asked_token(client)
        other = await Lines(here, "aql").greet()
        assert (await other.do("delete_thing", "delete", _confirmation=token))["error"]["code"] == "TOKEN_INVALID"
        assert (await client.do("delete_thing", "delete", _confirmation=token))["success"] is True
        (began,) = [one for one in await records(here) if one.get("tool") == ids[-1]]
        assert (began["reason"], began["session_id"]) == (f"began, labelled {label}", ids[-1])
        mine = [one for one in await records(here) if one.get("session_id") == ids[-1]]
        assert {one["method"] for one in mine} == {"aql/session", "aql/token", "aql/danger", "tools/call"}
        assert {one["tool"] for one in mine} == {ids[-1], "mcp_aql", "plant.look", "delete_thing"}
    assert ids[0] != ids[1] and "aqls_mine" not in json.dumps(await records(here))


def close(here: AgentNode, client: Lines, reason: str) -> None:
    sessions = here.node.fronts.sessions
    sessions.close(client._front._session, reason)  # type: ignore[arg-type]


def leave(here: AgentNode, client: Lines) -> None:
    client.leave()


def lose(here: AgentNode, client: Lines) -> None:
    client.is_lost = True
    client.begin("ping", {})  # its answer cannot be written
    client.leave()


def idle(here: AgentNode, client: Lines) -> None:
    session = client._front._session
    assert session is not None
    session.detach(client._front)
    for call in list((session.caller.calls or {}).values()):
        call.cancel("the connection was lost")
    here.clock.ahead += 61
    assert here.node.fronts.sessions.expire() >= 1


ENDINGS: list[tuple[str, str, Callable[[AgentNode, Lines], None]]] = [
    ("legacy", "graceful", leave),
    ("modern", "graceful", leave),
    ("legacy", "graceful", lambda here, client: close(here, client, "closed by the client")),
    ("legacy", "abrupt", lose),
    ("modern", "abrupt", lose),
    ("legacy", "abrupt", lambda here, client: close(here, client, "the stream ended")),
    ("legacy", "abrupt", idle),
]


@pytest.mark.req("AQL-2.3.2-1", "AQL-2.3.2-2", "AQL-2.3.3-1", "AQL-2.3.3-5", "AQL-2.3.3-6", "AQL-4.7.2-2")
@pytest.mark.parametrize(("era", "kind", "end"), ENDINGS)
async def test_however_a_session_ends_nothing_of_it_is_left(
    here: AgentNode, era: str, kind: str, end: Callable[[AgentNode, Lines], None]
) -> None:
    client, slow, calls = Lines(here, "aql"), Slow(), here.node.calls
    if era == "legacy":
        await client.greet()
    calls.native_operations.add(AqlOperation(name="wait", category=Category.EXECUTE, description="Waits."), slow.handle)
    id = (await client.introspect(query="operations"))["_protocol"]["session_id"]
    used = await client.do("delete_thing", "delete", _confirmation=await asked_token(client))
    assert used["success"] is True
    token = await asked_token(client)
    beside = await Lines(here, "aql").greet()
    assert (await beside.do("delete_thing", "delete", _confirmation=token))["error"]["code"] == "TOKEN_INVALID"
    beside.leave()
    execution = (await client.do("execute_agent", element_name="coder"))["data"]["execution_id"]
    running = client.begin("tools/call", {"name": "mcp_aql_execute", "arguments": {"operation": "wait"}})
    await slow.began.wait()
    end(here, client)
    slow.may_end.set()
    await asyncio.sleep(0)
    assert slow.ended == "cancelled" and not running.done()
    assert id not in [one.caller.aql for one in here.node.fronts.sessions.by_id.values()]
    assert id not in [one.owner for one in calls.aql.tokens._tokens.values()]
    assert execution not in [one.id for one in here.loop.executions.live()]
    del calls.native_operations.by_name["wait"]
    calls.native_operations.version += 1
    told = [one for one in await records(here) if one.get("session_id") == id]
    (began, ended) = [one["reason"] for one in told if one["method"] == "aql/session"]
    assert (began, ended.partition(":")[0]) == ("began", kind)
    (revoked,) = [one["reason"] for one in told if "TOKEN_REVOKED" in one.get("reason", "")]  # one was used
    assert revoked.endswith(": session_end")
    later = await Lines(here, "aql").greet()
    used = await later.do("delete_thing", "delete", _confirmation=token)
    assert used["error"]["code"] == "TOKEN_INVALID"
    state = (await later.do("get_execution", execution_id=execution))["data"]
    assert state["status"] == ("cancelled" if kind == "graceful" else "failed")
    assert ("error" in state) is (kind == "abrupt") and state["finished_at"].endswith("Z")
    if kind == "abrupt":
        assert state["error"]["code"] == "INTERNAL_ERROR"
    later.leave()


@pytest.mark.req("AQL-2.3.5-2")
async def test_claims_of_a_client_in_meta_grant_nothing(here: AgentNode) -> None:
    owner, thief = [await Lines(here, "aql", f"client:{name}").greet() for name in ("owner", "thief")]
    id = (await owner.introspect(query="operations"))["_protocol"]["session_id"]
    token = await asked_token(owner)
    execution = (await owner.do("execute_agent", element_name="coder"))["data"]["execution_id"]
    await owner.step("drop_table users")
    (block,) = here.loop.blocks.of_principal("client:owner")
    code = here.shown(block.challenge_id)
    meta = {"session_id": id, SESSION: id, "principal": "client:owner", "element_name": "coder", "agent": "coder"}

    async def steal(family: str, operation: str, **params: Any) -> str:
        arguments = {"operation": operation, "params": {**params, "_meta": meta}, "_meta": meta}
        call = {"name": f"mcp_aql_{family}", "arguments": arguments, "_meta": meta}
        answer = (await thief.request("tools/call", call))["result"]["structuredContent"]
        return str(answer["error"]["code"])

    assert await steal("delete", "delete_thing", _confirmation=token) == "TOKEN_INVALID"
    assert await steal("create", "verify_challenge", challenge_id=block.challenge_id, code=code) == "TOKEN_INVALID"
    assert await steal("delete", "delete_thing", _confirmation="conf_none") == "TOKEN_INVALID"  # as if there were none
    assert await steal("create", "verify_challenge", challenge_id="none", code=code) == "TOKEN_INVALID"
    assert await steal("read", "get_execution", execution_id=execution) == "NOT_FOUND_RESOURCE"
    step = {"element_name": "coder", "nextActionHint": LOOK}
    assert await steal("create", "record_execution_step", **step) == "NOT_FOUND_RESOURCE"
    thief = twin = await Lines(here, "aql", "client:owner").greet()  # another session of the same principal
    assert await steal("delete", "delete_thing", _confirmation=token) == "TOKEN_INVALID"
    assert here.loop.blocks.of_principal("client:owner") == [block]
    assert (await owner.do("get_execution", execution_id=execution))["data"]["element_name"] == "coder"
    assert (await owner.do("verify_challenge", challenge_id=block.challenge_id, code=code))["data"]["verified"] is True
    assert await steal("create", "record_execution_step", **step) == "NOT_FOUND_RESOURCE"
    twin.leave()
    await owner.do("abort_execution", element_name="coder")
    assert (await owner.do("delete_thing", "delete", _confirmation=token))["success"] is True


async def test_an_ended_execution_is_read_with_its_result_for_a_day(here: AgentNode) -> None:
    client = await Lines(here, "aql").greet()
    started = (await client.do("execute_agent", element_name="coder"))["data"]["execution_id"]
    await client.do("complete_execution", element_name="coder", summary="all is well")
    state = (await client.do("get_execution", execution_id=started))["data"]
    assert (state["status"], state["result"]) == ("completed", {"summary": "all is well"})
    here.clock.ahead += 86_401
    gone = await client.do("get_execution", execution_id=started)
    assert gone["error"]["code"] == "NOT_FOUND_RESOURCE"


def times_in(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every time in an answer, with the member that it is in."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from times_in(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from times_in(inner, name)
    elif isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT", value):
        yield name, value


@pytest.mark.req("AQL-4.7.2-2")
async def test_every_time_that_is_shown_is_in_utc(here: AgentNode) -> None:
    client = await Lines(here, "aql").greet()
    asked = await client.do("delete_thing", "delete")
    execution = (await client.do("execute_agent", element_name="coder"))["data"]["execution_id"]
    paused = await client.do("record_execution_step", element_name="coder", nextActionHint="calling delete_user")
    await client.do("abort_execution", element_name="coder")
    state = await client.do("get_execution", execution_id=execution)
    told = list(times_in([asked, paused, state, await records(here)]))
    assert {"expires_at", "started_at", "finished_at", "timestamp", "at"} <= {name for name, _ in told}
    assert [one for one in told if not one[1].endswith("Z")] == []
    client.leave()
