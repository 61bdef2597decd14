"""When a server stops being shared, what is remembered of that, and whose link makes room."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.servers.start import raw, serving
from tests.support.local_node import LegacyClient, running
from tests.support.node_with_clock import AheadClock, ClockedNode, ModernRequest

from interlock.config.plan import Dial, Package, Spawn
from interlock.links.connected_link import ServerLink
from interlock.links.own_links import BUCKET, STATEFUL, AskingMemory, OwnKeeper, find_stateful
from interlock.node.node import Node

FORM = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
QUESTION = {"method": "elicitation/create", "params": FORM}
ABLE: dict[str, Any] = {"elicitation": {"form": {}}}


def server(segment: str, *keys: str, name: str = "raw") -> str:
    command = json.dumps(raw("asks,recorder,cancellations", "--era", "legacy", "--name", name))
    return "\n".join((f"[servers.{segment}]", f"command = {command}", *keys, ""))


def shared(node: Node, segment: str) -> ServerLink:
    link = node.calls.keepers[segment].link
    assert isinstance(link, ServerLink)
    return link


def owned(node: Node, segment: str) -> list[OwnKeeper]:
    found = [one for one in node.calls.keepers.values() if isinstance(one, OwnKeeper)]
    return [keeper for keeper in found if keeper.link.shared is shared(node, segment)]


async def answers(asked: ModernRequest) -> Any:
    return (await asked.result())["structuredContent"]["answers"]


async def asked_by(here: ClockedNode, call: ModernRequest) -> Any:
    await here.until(lambda: bool(call.emitted))
    return call.emitted[0]


async def test_the_questions_of_a_server_are_remembered_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, server("old")) as (node, clock):
        assert shared(node, "old").own is None
        await asked_by(ClockedNode(node, clock), LegacyClient(node, **ABLE).call("old__ask", QUESTION))
        assert shared(node, "old").own is not None
        assert owned(node, "old") == []  # for the next call
    async with running(tmp_path, server("old")) as (node, clock):
        own = shared(node, "old").own
        assert own is not None
        assert own.rule.reason == "it asks for elicitation"
    async with running(tmp_path, server("old", name="another")) as (node, clock):
        assert shared(node, "old").own is None


SAMPLING: dict[str, Any] = {"sampling": {"tools": {}}}
OPERATORS_ROOTS = {"roots": {"listChanged": True}}


async def offered(call: ModernRequest) -> Any:
    return (await call.result())["structuredContent"]["offered"]


async def test_a_server_that_asks_learns_what_the_client_of_each_call_can_do(tmp_path: Path) -> None:
    with serving(raw("asks,recorder,vendor,resources", "--era", "legacy")) as url:
        async with running(tmp_path, f'[servers.web]\nurl = "{url}"\n') as (node, clock):
            here, plain = ClockedNode(node, clock), LegacyClient(node)
            everything = await offered(here.call("web__seen", capabilities={}))
            assert {"sampling", "elicitation", "roots", "tasks"} == everything.keys()
            assert shared(node, "web").own is None  # a server that never asked has one link
            (refused,) = await answers(here.call("web__ask", QUESTION, capabilities=SAMPLING))
            assert "does not support" in refused["message"]
            for call, able in (
                (here.call("web__seen", capabilities={}), {}),
                (here.call("web__seen", capabilities=SAMPLING), SAMPLING),
                (here.call("web__seen", capabilities={"elicitation": {}, "x": {"y": 1}}), ABLE),
                (plain.call("web__seen"), {}),
                (LegacyClient(node, **ABLE).call("web__seen"), ABLE),
                (here.call("web__seen", capabilities=SAMPLING, who="bob"), SAMPLING),
            ):
                assert await offered(call) == {**able, **OPERATORS_ROOTS}
            assert len(owned(node, "web")) == 3  # what two clients can do alike is one link
            await hears_of_its_link(here, "web", capabilities=SAMPLING)
            assert len(owned(node, "web")) == 3


async def hears_of_its_link(here: ClockedNode, segment: str, **client: Any) -> None:
    """What the server tells on the link of a client, and what it tells those who subscribed there."""
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["raw://text"]}
    listener = here.ask("subscriptions/listen", {"notifications": wanted}, **client)
    await here.until(lambda: bool(listener.emitted))
    changed, updated = "notifications/tools/list_changed", "notifications/resources/updated"
    await here.call(f"{segment}__tell", {"method": changed}, **client).result()
    await here.call(f"{segment}__tell", {"method": updated, "params": {"uri": "raw://text"}}, **client).result()
    await here.until(lambda: {changed, updated} <= {one["method"] for one in listener.emitted})


@pytest_asyncio.fixture
async def few(tmp_path: Path) -> AsyncIterator[tuple[Node, AheadClock]]:
    servers = server("old") + server("one", 'share = "session"', "max_processes = 1")
    async with running(tmp_path, servers) as (node, clock):
        yield node, clock


async def test_a_first_question_that_may_be_anybodys_is_refused_and_the_next_is_not(
    few: tuple[Node, AheadClock],
) -> None:
    node, clock = few
    here, ada, bob = ClockedNode(node, clock), LegacyClient(node, **ABLE), LegacyClient(node, **ABLE)
    ada.call("old__wait")
    (refused,) = await answers(bob.call("old__ask", QUESTION))
    assert "cannot be told" in refused["message"]
    asked = bob.call("old__ask", QUESTION)
    assert (await asked_by(here, asked))["method"] == "elicitation/create"
    assert [keeper.link.client for keeper in owned(node, "old")] == [bob.session.caller]


async def test_a_process_makes_room_once_it_was_idle_for_a_minute(few: tuple[Node, AheadClock]) -> None:
    node, clock = few
    ada, bob = LegacyClient(node), LegacyClient(node)
    await ada.call("one__seen").result()
    assert await bob.call("one__seen").reason() == "own_links_full"
    clock.ahead += 61
    await bob.call("one__seen").result()
    assert [keeper.link.client for keeper in owned(node, "one")] == [bob.session.caller]


async def test_an_idle_process_ends_and_a_process_that_waits_for_its_client_does_not(
    few: tuple[Node, AheadClock],
) -> None:
    node, clock = few
    here, ada = ClockedNode(node, clock), LegacyClient(node, **ABLE)
    asked = ada.call("one__ask", QUESTION)
    question = await asked_by(here, asked)
    clock.ahead += 3600
    own = node.links.servers.own["one"]
    own._sweep()
    assert len(own) == 1
    ada.answer(question["id"], {"action": "decline"})
    assert await answers(asked) == [{"action": "decline"}]
    clock.ahead += 3600
    own._sweep()
    assert len(own) == 0
    await here.until(lambda: not owned(node, "one"))


async def test_a_call_without_a_session_uses_the_first_link_where_there_is_no_room_for_another(tmp_path: Path) -> None:
    async with running(tmp_path, server("old", "max_processes = 1")) as (node, clock):
        here = ClockedNode(node, clock)
        await asked_by(here, LegacyClient(node, **ABLE).call("old__ask", QUESTION))
        here.call("old__wait")
        await here.until(lambda: any(one.link.booked for one in owned(node, "old")))
        await here.call("old__seen").result()
        assert len(owned(node, "old")) == 1
        assert await here.call("old__seen", who="bob").reason() == "own_links_full"


async def test_a_dialled_server_has_a_session_of_its_own_for_each_session(tmp_path: Path) -> None:
    with serving(raw("recorder", "--era", "legacy")) as url:
        async with running(tmp_path, f'[servers.web]\nurl = "{url}"\nshare = "session"\n') as (node, _):
            clients = [LegacyClient(node), LegacyClient(node)]
            for client in clients:
                await client.call("web__seen").result()
            sessions = {keeper.link.session for keeper in owned(node, "web")}
            assert len(sessions | {shared(node, "web").session}) == 3
            for client in clients:
                node.fronts.sessions.close(client.session, "gone")
            await ClockedNode(node, AheadClock()).until(lambda: not owned(node, "web"))
            assert shared(node, "web").is_connected


async def test_a_record_that_cannot_be_read_is_left_out(few: tuple[Node, AheadClock]) -> None:
    node, clock = few
    kv = node.stores.store.kv
    for key, value in (("bad", b"\xff"), ("odd", b'{"server":1}'), ("good", b'{"server":"s","asks":["sampling"]}')):
        await kv.put(BUCKET, key, value, clock.wall())
    memory = AskingMemory(kv, clock)
    await memory.open()
    assert [memory.of(key, "s").asks for key in ("bad", "odd", "good")] == [frozenset(), frozenset(), {"sampling"}]


@pytest.mark.parametrize(
    ("command", "is_known"),
    [
        (("npx", "-y", "@playwright/mcp@latest", "--isolated"), True),
        (("npx", "@playwright/mcp"), True),
        (("node", "/x/node_modules/@playwright/mcp/cli.js"), True),
        (("npx", "@playwright/mcp-like"), False),
        (("node", "/x/@playwright/mcp/cli.js"), False),
        ((), False),
    ],
)
def test_a_stateful_server_is_known_by_its_package_wherever_it_is_named(
    command: tuple[str, ...], is_known: bool
) -> None:
    assert (find_stateful(Spawn(command=command), "") is not None) == is_known


def test_a_stateful_server_is_known_by_a_package_to_install_and_by_its_own_name() -> None:
    package = Package(registry="npm", name="chrome-devtools-mcp@1.2.3")
    assert find_stateful(Spawn(command=(), package=package), "") is not None
    assert find_stateful(Dial(url="https://h.example/mcp"), "Playwright") is not None
    assert find_stateful(Dial(url="https://h.example/mcp"), "") is None
    assert all(one.reason for one in STATEFUL)
