"""Does a leaf find its parent, stay with it, and find another? Against aggregators that are none of ours."""

import asyncio
import contextlib
import json
import logging
import re
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.raw_aggregator import PATIENCE_S, A, Aggregator, B, Session, aggregator, alive, granted, refusing, silent

from interlock.sdk.subserver import Parent, Subserver, SubserverInvalid


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def leaf(state: Path, *parents: Aggregator, beat_ms: int = 200, **more: Any) -> Subserver:
    subserver = Subserver(
        "greenhouse",
        [parent.url for parent in parents],
        token="ils_x",
        state=state,
        heartbeat_interval_ms=beat_ms,
        **more,
    )

    @subserver.tool(mutable=False)
    def temperature(bench: int) -> float:
        "The air temperature of a bench in degrees Celsius."
        return 20.5 + bench

    return subserver


@contextlib.asynccontextmanager
async def serving(one: Subserver) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(one.serve())
    try:
        yield task
    finally:
        one.stop()
        await asyncio.wait_for(task, PATIENCE_S)


def params(session: Session) -> dict[str, Any]:
    register_params = session.all("mcpax/register")[-1]["params"]
    assert isinstance(register_params, dict)
    return register_params


async def test_a_leaf_registers_first_with_what_the_draft_names_and_its_credential(state: Path) -> None:
    async with aggregator() as parent, serving(leaf(state, parent)):
        session = await parent.joined()
        first = session.heard[0]
        assert (first["jsonrpc"], first["method"]) == ("2.0", "mcpax/register")
        register_params = first["params"]
        assert register_params["segment"] == "greenhouse"
        assert register_params["capabilities"]["tools"] is True
        assert (
            register_params["heartbeat_interval_ms"],
            register_params["transport_class"],
            register_params["version"],
        ) == (
            200,
            "native",
            "2026-05-01",
        )
        assert register_params["parent_id"] is None
        assert parent.requests[0].headers["Authorization"] == "Bearer ils_x"


@pytest.mark.req("AX-6.1-2")
async def test_the_identity_is_kept_in_a_private_file_and_survives(state: Path) -> None:
    seen = []
    for _ in range(2):
        async with aggregator() as parent, serving(leaf(state, parent)):
            seen.append(params(await parent.joined())["subserver_id"])
    assert seen[0] == seen[1]
    (kept,) = state.iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert json.loads(kept.read_text())["subserver_id"] == seen[0]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"subserver_id":7}', '{"subserver_id":"leaf"}', "\x00" * 9000])
async def test_a_damaged_identity_stops_the_start_and_is_not_replaced(state: Path, text: str) -> None:
    state.mkdir()
    (state / "greenhouse.json").write_text(text)
    async with aggregator() as parent:
        with pytest.raises(SubserverInvalid, match="holds no subserver_id"):
            await leaf(state, parent).serve()
        assert parent.nobody_came
    assert (state / "greenhouse.json").read_text() == text


@pytest.mark.req("AX-6.3-1")
async def test_a_leaf_beats_twice_an_interval_also_while_a_plain_tool_blocks(state: Path) -> None:
    release = threading.Event()
    async with aggregator() as parent:
        result = leaf(state, parent)

        @result.tool(mutable=False)
        def block() -> None:
            release.wait(PATIENCE_S)

        async with serving(result):
            session = await parent.joined()
            calling = asyncio.create_task(session.call("block"))
            beats = await session.hears("mcpax/heartbeat", 5)
            assert not calling.done()
            release.set()
            await calling
    assert all(beat["params"] == {"session_id": session.session_id} for beat in beats)


async def test_a_parent_that_comes_back_is_registered_with_again_giving_up_the_old_session(state: Path) -> None:
    async with aggregator() as parent, serving(leaf(state, parent)):
        first = await parent.joined()
        await first.hears("mcpax/heartbeat")
        await parent.stop(abruptly=True)
        await parent.start()
        second = await parent.joined()
        assert params(second)["released_session"] == first.session_id
        assert params(second)["subserver_id"] == params(first)["subserver_id"]
        assert (await second.call("temperature", bench=1))["content"][0]["text"] == "21.5"


async def test_a_dead_parent_is_left_for_the_backup_and_the_backup_is_kept(state: Path) -> None:
    async with aggregator(A) as first, aggregator(B) as second, serving(leaf(state, first, second)):
        old = await first.joined()
        await old.hears("mcpax/heartbeat")
        assert second.nobody_came
        await first.stop(abruptly=True)
        new = await second.joined()
        assert params(new)["released_session"] == old.session_id
        assert params(new)["parent_id"] is None
        assert (params(new)["subserver_id"], params(new)["segment"]) == (params(old)["subserver_id"], "greenhouse")
        await first.start()
        await new.hears("mcpax/heartbeat", 6)
        assert len(first.links) == 1


async def test_a_frozen_parent_is_left_for_the_backup_in_less_than_three_intervals(state: Path) -> None:
    async with aggregator(A) as first, aggregator(B) as second, serving(leaf(state, first, second, beat_ms=1500)):
        old = await first.joined()
        await old.hears("mcpax/heartbeat")
        first.answers["mcpax/heartbeat"] = silent
        frozen_at = asyncio.get_running_loop().time()
        new = await second.joined()
        assert asyncio.get_running_loop().time() - frozen_at < 4.5
        assert (await new.call("temperature", bench=0))["isError"] is False
        await old.closed()


async def test_a_parent_that_never_answers_is_no_parent(state: Path) -> None:
    async with aggregator(A) as first, aggregator(B) as second, serving(leaf(state, first, second)):
        first.answers["mcpax/register"] = silent
        session = await first.joined()
        await first.stop(abruptly=True)
        assert params(await second.joined())["segment"] == "greenhouse"
        assert session.session_id == ""


async def test_a_parent_that_forgot_the_session_is_registered_with_again_on_the_same_link(state: Path) -> None:
    async with aggregator() as parent:
        forgot = refusing(32116, "session_unknown")
        parent.answers["mcpax/heartbeat"] = forgot
        async with serving(leaf(state, parent)):
            session = await parent.joined()
            await session.hears("mcpax/register", 2)
            parent.answers["mcpax/heartbeat"] = alive
            await session.hears("mcpax/heartbeat", 3)
            assert len(parent.links) == 1
            assert session.all("mcpax/heartbeat")[-1]["params"]["session_id"] == session.session_id


async def test_a_subserver_reports_its_parent(state: Path) -> None:
    async with aggregator() as parent:
        entries: list[dict[str, Any]] = []

        def asking_first(session: Session, request: dict[str, Any]) -> Any:
            async def query() -> None:
                entries.append((await session.ask("mcpax/parent"))["result"])
                await session.say(granted(session, request))

            task = asyncio.create_task(query())
            tasks.add(task)

        tasks: set[asyncio.Task[None]] = set()
        parent.answers["mcpax/register"] = asking_first
        async with serving(leaf(state, parent)):
            session = await parent.joined()
            await session.hears("mcpax/heartbeat")
            ours = params(session)["subserver_id"]
            assert entries == [{"subserver_id": ours, "parent_id": None}]
            assert (await session.ask("mcpax/parent"))["result"] == {"subserver_id": ours, "parent_id": A}


async def test_an_orderly_end_deregisters_and_closes(state: Path) -> None:
    async with aggregator() as parent:
        result = leaf(state, parent)
        async with serving(result) as task:
            session = await parent.joined()
            await session.hears("mcpax/heartbeat")
            result.stop()
            await asyncio.wait_for(task, PATIENCE_S)
        assert session.all("mcpax/deregister")[0]["params"] == {"session_id": session.session_id}
        assert await session.closed() == 1000


async def test_a_call_under_way_is_answered_before_the_leaf_ends(state: Path) -> None:
    async with aggregator() as parent:
        result = leaf(state, parent)
        release = asyncio.Event()

        @result.tool(mutable=False)
        async def slow() -> str:
            await release.wait()
            return "done"

        async with serving(result):
            session = await parent.joined()
            calling = asyncio.create_task(session.call("slow"))
            assert (await session.call("temperature", bench=0))["isError"] is False
            result.stop()
            release.set()
            assert (await calling)["content"][0]["text"] == "done"
            await session.hears("mcpax/deregister")
        kinds = [envelope.get("method") for envelope in session.heard]
        assert kinds[-1] == "mcpax/deregister"


async def test_a_parent_that_does_not_say_goodbye_does_not_keep_the_leaf(state: Path) -> None:
    async with aggregator() as parent:
        parent.answers["mcpax/deregister"] = silent
        result = leaf(state, parent)
        async with serving(result) as task:
            await (await parent.joined()).hears("mcpax/heartbeat")
            result.stop()
            await asyncio.wait_for(task, PATIENCE_S)


async def test_a_refusal_is_logged_with_its_reason_and_the_link_closed(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with aggregator() as parent:
        parent.answers["mcpax/register"] = refusing(32111, "namespace_invalid")
        with caplog.at_level(logging.INFO, "interlock.subserver"):
            async with serving(leaf(state, parent)):
                await (await parent.joined()).closed()
    assert "refuses us: namespace_invalid: because" in caplog.text
    assert len(parent.links) == 1


async def test_a_refusal_by_one_parent_leads_to_the_next(state: Path) -> None:
    async with aggregator(A) as first, aggregator(B) as second:
        first.answers["mcpax/register"] = refusing(32110, "namespace_conflict")
        async with serving(leaf(state, first, second)):
            assert (await (await second.joined()).call("temperature", bench=0))["isError"] is False


async def refused_with(status: bytes, state: Path, path: str, token: str | None) -> tuple[str, str]:
    """The address, and what the leaf's log says of a door that answers so."""

    async def door(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(door, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
    log_errors = Told(logging.WARNING)
    logging.getLogger("interlock.subserver").addHandler(log_errors)
    try:
        async with server, serving(Subserver("greenhouse", [Parent(url=url, token=token)], state=state)):
            return url, await asyncio.wait_for(log_errors.errors.get(), PATIENCE_S)
    finally:
        logging.getLogger("interlock.subserver").removeHandler(log_errors)


@pytest.mark.parametrize(
    ("token", "said"), [("ils_wrong", "it does not accept our token"), (None, "it wants a token, and we have none")]
)
async def test_a_wrong_token_is_reported_and_not_retried_at_once(state: Path, token: str | None, said: str) -> None:
    url, words = await refused_with(b"401 Unauthorized", state, "/ax", token)
    match = re.search(r"HTTP 401.* trying again in (\d+) s", words)
    assert match is not None
    assert int(match[1]) >= 30
    assert "ils_wrong" not in words
    assert words.count(url) == 1
    assert said in words
    assert "ends in /ax" not in words


@pytest.mark.parametrize("path", ["", "/", "/mcp"])
@pytest.mark.parametrize("status", [b"401 Unauthorized", b"404 Not Found", b"426 Upgrade Required"])
async def test_an_address_that_is_not_the_endpoint_for_subservers_is_reported(
    state: Path, path: str, status: bytes
) -> None:
    _, words = await refused_with(status, state, path, None)
    assert "the address of an aggregator ends in /ax" in words


class Told(logging.Handler):
    """What the log says as an error, for a test to wait for."""

    def __init__(self, level: int = logging.ERROR) -> None:
        super().__init__(level)
        self.errors: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.put_nowait(record.getMessage())


NONSENSE = [
    "",
    "null",
    "[]",
    "{",
    "\x00",
    '{"jsonrpc":"2.0"}',
    '{"jsonrpc":"2.0","id":null,"result":{}}',
    '{"jsonrpc":"2.0","id":99,"result":{"status":"registered"}}',
    '{"jsonrpc":"2.0","id":"1","result":{}}',
    '{"jsonrpc":"2.0","id":99999999999999999999999999,"result":{}}',
    '{"jsonrpc":"2.0","id":99,"error":7}',
    '{"jsonrpc":"2.0","id":99,"error":{"code":"x","message":{}}}',
    '{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}',
    '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}',
    '{"jsonrpc":"2.0","method":"notifications/mcpax/tools_refused","params":"\\u001b[2J"}',
    '{"jsonrpc":"2.0","id":1,"method":"mcpax/walk"}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call"}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":[]}}',
    "[" * 100_000,
]


async def test_nonsense_from_a_parent_changes_nothing(state: Path) -> None:
    async with aggregator() as parent, serving(leaf(state, parent)):
        session = await parent.joined()
        for text in NONSENSE:
            await session.say(text)
        assert (await session.call("temperature", bench=2))["content"][0]["text"] == "22.5"
        assert len(parent.links) == 1


@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        {},
        {"status": "registered"},
        {"status": "refused", "session_id": "x", "assigned_segment": "greenhouse"},
        {"status": "registered", "session_id": 7, "assigned_segment": "a", "heartbeat_deadline_ms": 1, "budget": {}},
        {"status": "registered", "session_id": "x", "assigned_segment": "A.B", "heartbeat_deadline_ms": 1},
        {"status": "registered", "session_id": "x", "assigned_segment": "a", "heartbeat_deadline_ms": -1},
        {"status": "registered", "session_id": "x" * 100_000, "assigned_segment": "a", "heartbeat_deadline_ms": 1},
    ],
)
async def test_nonsense_instead_of_a_registration_leads_to_the_next_parent(state: Path, result: Any) -> None:
    async with aggregator(A) as first, aggregator(B) as second:
        first.answers["mcpax/register"] = lambda _, request: {"jsonrpc": "2.0", "id": request["id"], "result": result}
        async with serving(leaf(state, first, second)):
            assert (await (await second.joined()).call("temperature", bench=0))["isError"] is False


async def test_a_registration_under_another_id_is_not_taken(state: Path) -> None:
    async with aggregator(A) as first:
        first.answers["mcpax/register"] = lambda session, request: {**granted(session, request), "id": 77}
        async with serving(leaf(state, first)):
            session = await first.joined()
            answer = await session.ask("tools/list")
            assert answer["error"]["code"] == -32600
            assert session.all("mcpax/heartbeat") == []


async def test_a_giant_request_gets_an_error_and_the_link_goes_on(state: Path) -> None:
    async with aggregator() as parent, serving(leaf(state, parent, max_message_bytes=65_536)):
        session = await parent.joined()
        await session.say("x" * 70_000)
        answer = await session.ask("tools/call", {"name": "temperature", "arguments": {"x": "x" * 70_000}})
        assert answer["error"]["data"]["reason"] == "message_too_large"
        assert (await session.call("temperature", bench=0))["isError"] is False


async def test_a_binary_frame_ends_the_link_and_the_leaf_comes_back(state: Path) -> None:
    async with aggregator() as parent, serving(leaf(state, parent, max_message_bytes=65_536)):
        session = await parent.joined()
        await session.say(b"binary")
        assert await session.closed() == 1003
        again = await parent.joined()
        assert (await again.call("temperature", bench=0))["isError"] is False


async def test_a_parent_that_cuts_every_link_is_not_hammered(state: Path) -> None:
    async with aggregator() as parent:

        def cut(session: Session, request: dict[str, Any]) -> Any:
            session.socket.transport.abort()

        parent.answers["mcpax/register"] = cut
        async with serving(leaf(state, parent)):
            started = asyncio.get_running_loop().time()
            for _ in range(3):
                await parent.joined()
            assert asyncio.get_running_loop().time() - started >= 0.4


async def test_a_replaced_subserver_reports_it_and_does_not_register_again(state: Path) -> None:
    log_errors = Told()
    logging.getLogger("interlock.subserver").addHandler(log_errors)
    try:
        async with aggregator() as parent, serving(leaf(state, parent)):
            session = await parent.joined()
            await session.hears("mcpax/heartbeat")
            await session.socket.close(1008, "superseded")
            words = await asyncio.wait_for(log_errors.errors.get(), PATIENCE_S)
    finally:
        logging.getLogger("interlock.subserver").removeHandler(log_errors)
    match = re.search(r"another process registered with our subserver_id.* trying again in (\d+) s", words)
    assert match is not None, words
    assert int(match[1]) >= 30


async def test_before_it_is_registered_nobody_is_served(state: Path) -> None:
    async with aggregator() as parent:
        parent.answers["mcpax/register"] = silent
        async with serving(leaf(state, parent)):
            session = await parent.joined()
            answer = await session.modern("tools/call", name="temperature", arguments={"bench": 1})
            assert "mcpax/register" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"segment": "Green House"}, "a-z, 0-9"),
        ({"segment": "rooms"}, "reserved"),
        ({"parents": ["http://127.0.0.1/ax"]}, "wss://HOST/ax"),
        ({"parents": ["ws://192.0.2.7/ax"]}, "use TLS"),
        ({"parents": ["wss://me:secret@example.com/ax"]}, "give token="),
        ({"token": "ils_x\n"}, "line break"),
        ({"heartbeat_interval_ms": 50}, "100 to 3600000"),
        ({"heartbeat_interval_ms": -1}, "100 to 3600000"),
        ({"authority": "not a name"}, "DNS name"),
        ({"auth_scope": "root"}, "read, write or admin"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_dialled(given: dict[str, Any], words: str) -> None:
    whole: dict[str, Any] = {"segment": "greenhouse", "parents": ["ws://127.0.0.1:7411/ax"], "token": "ils_x"}
    with pytest.raises(SubserverInvalid, match=words) as refused:
        Subserver(**{**whole, **given})
    assert "secret" not in str(refused.value)


def test_a_link_that_is_secure_by_other_means_may_be_plain() -> None:
    Subserver("greenhouse", [Parent(url="ws://192.0.2.7/ax", secure_by="WireGuard")])
    Subserver("greenhouse", ["wss://example.com/ax", "ws://localhost:7411/ax", "ws://[::1]:7411/ax"])


async def test_a_leaf_without_parents_says_what_to_do(state: Path) -> None:
    with pytest.raises(SubserverInvalid, match="give parents="):
        await Subserver("greenhouse", state=state).serve()
