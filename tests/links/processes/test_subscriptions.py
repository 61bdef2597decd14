"""Is a subscription at a 2026-07-28 server granted only when the server has granted it, and is nothing missed while it
changes? The servers are real; clients are put straight to the desks.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.links.listening_server import command
from tests.servers.start import raw, serving
from tests.support.local_node import LegacyClient, running
from tests.support.node_with_clock import SECONDS, ClockedNode

from interlock.links import subscriptions

pytestmark = pytest.mark.asyncio(loop_scope="module")
MODERN = ("pipe", "web")
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_names = itertools.count(1)


class Hall(ClockedNode):
    async def touch(self, link: str, own: str) -> None:
        await self.call(f"{link}__touch", {"uri": own}).result()

    async def open(self, link: str, gate: str) -> None:
        await self.call(f"{link}__open", {"gate": gate}).result()

    async def open_filters(self, link: str) -> list[list[str]]:
        return (await self.tally(link))["open"]

    async def the_filter(self, link: str) -> list[str]:
        """Of the one listener there is, as soon as the server has noticed that others ended."""
        async with asyncio.timeout(SECONDS):
            while len(filters := await self.open_filters(link)) != 1:
                pass
        return filters[0]

    async def until_held(self, link: str, own: str) -> None:
        async with asyncio.timeout(SECONDS):
            while own not in (await self.tally(link))["held"]:
                pass


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hall]:
    with serving(command()) as url, serving(raw("all", "--era", "legacy")) as old:
        pipe = f"[servers.pipe]\ncommand = {json.dumps(command())}\n"
        servers = f'{pipe}[servers.web]\nurl = "{url}"\n[servers.old]\nurl = "{old}"\n'
        async with running(tmp_path_factory.mktemp("listening"), servers) as (node, clock):
            yield Hall(node, clock)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def leaving(here: Hall) -> AsyncIterator[None]:
    """Nobody stays after a test."""
    yield
    for session in list(here.node.fronts.sessions.by_id.values()):
        here.node.fronts.sessions.close(session, "the test is over")
    for listener in list(here.node.fronts.modern.listeners):
        here.node.fronts.modern.stop_listening(listener)
    assert here.node.calls.audience._watching == {}
    held = [keeper.subscriptions for keeper in here.node.calls.keepers.values()]
    assert [one.uris for one in held] == [set()] * len(held)
    await here.until(lambda: all(one._next is None for one in held))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers have less time to acknowledge."""
    monkeypatch.setattr(subscriptions, "SUBSCRIBE_S", 0.5)


def item(kind: str = "plain") -> str:
    return f"raw://item/{kind}-{next(_names)}"


def shown(link: str, own: str) -> str:
    return f"mcpax://{link}/{own}"


def gate_of(own: str) -> str:
    return own.rpartition("held-")[2]


@pytest.mark.parametrize("link", MODERN)
async def test_a_subscription_is_answered_when_the_server_listens_and_not_before(here: Hall, link: str) -> None:
    client, own = LegacyClient(here.node), item("held")
    asked = client.subscribe(shown(link, own))
    await here.until_held(link, own)
    assert asked.statuses == []
    await here.open(link, gate_of(own))
    assert await asked.result() == {}
    await here.touch(link, own)
    await here.until(lambda: client.updates() == [shown(link, own)])


@pytest.mark.parametrize("link", MODERN)
async def test_watched_resources_are_reported_once_while_more_are_subscribed(here: Hall, link: str) -> None:
    client, before, more = LegacyClient(here.node), item(), item("held")
    assert await client.subscribe(shown(link, before)).result() == {}
    asked = client.subscribe(shown(link, more))
    await here.until_held(link, more)
    await here.touch(link, before)
    await here.until(lambda: client.updates() == [shown(link, before)])
    await here.open(link, gate_of(more))
    await asked.result()
    for own in (before, more):
        await here.touch(link, own)
    await here.until(lambda: len(client.updates()) >= 3)
    assert client.updates() == [shown(link, own) for own in (before, before, more)]
    assert {before, more} <= set(await here.the_filter(link))


@pytest.mark.parametrize("link", MODERN)
async def test_a_modern_listener_is_acknowledged_after_the_server_and_receives_nothing_before(
    here: Hall, link: str
) -> None:
    plain, held = item(), item("held")
    wanted = [shown(link, plain), shown(link, held)]
    ready = here.ask("subscriptions/listen", {"notifications": {"resourceSubscriptions": wanted[:1]}})
    await here.until(lambda: len(ready.emitted) == 1)
    listening = here.ask("subscriptions/listen", {"notifications": {"resourceSubscriptions": wanted}})
    await here.until_held(link, held)
    await here.touch(link, plain)
    await here.until(lambda: len(ready.emitted) == 2)
    assert listening.emitted == []
    await here.open(link, gate_of(held))
    await here.until(lambda: len(listening.emitted) == 2)
    first, second = listening.emitted
    assert (first["method"], first["params"]["notifications"]) == (ACKNOWLEDGED, {"resourceSubscriptions": wanted})
    assert (second["method"], second["params"]["uri"]) == (UPDATED, wanted[0])


@pytest.mark.parametrize("link", MODERN)
async def test_a_resource_the_server_leaves_out_is_refused(here: Hall, link: str) -> None:
    client, good, bad = LegacyClient(here.node), item(), item("unknown")
    both = [client.subscribe(shown(link, own)) for own in (good, bad)]
    assert await both[0].result() == {}
    assert (await both[1].error())["code"] == -32602
    assert here.node.calls.audience._watching.keys() >= {(link, good)}
    assert (link, bad) not in here.node.calls.audience._watching


@pytest.mark.parametrize("link", MODERN)
async def test_a_refused_resource_takes_no_other_along(here: Hall, link: str) -> None:
    """Asked for at once, so that the server hears of them in one request."""
    client = LegacyClient(here.node)
    owns = [item(), item("refused"), item(), item("refused"), item()]
    first, *rest = [client.subscribe(shown(link, own)) for own in (item("held"), *owns)]
    await here.until(lambda: len(here.node.calls.keepers[link].subscriptions._waiting) == 1 + len(owns))
    for one in await held_gates(here, link):
        await here.open(link, one)
    assert await first.result() == {}
    outcomes = [await asked.message() for asked in rest]
    assert ["error" in one for one in outcomes] == [False, True, False, True, False]
    assert [one["error"] for one in outcomes if "error" in one] == [
        {"code": -32602, "message": "no such resource", "data": {"why": "é"}}
    ] * 2
    for own in owns:
        await here.touch(link, own)
    await here.until(lambda: client.updates() == [shown(link, own) for own in owns if "refused" not in own])


async def held_gates(here: Hall, link: str) -> list[str]:
    async with asyncio.timeout(SECONDS):
        while not (held := (await here.tally(link))["held"]):
            pass
    return [gate_of(own) for own in held]


@pytest.mark.parametrize("link", MODERN)
async def test_many_subscriptions_at_once_cost_the_server_few_requests(here: Hall, link: str) -> None:
    client = LegacyClient(here.node)
    before = (await here.tally(link))["listens"]
    owns = [item() for _ in range(200)]
    asked = [client.subscribe(shown(link, own)) for own in owns]
    assert [await one.result() for one in asked] == [{}] * len(owns)
    assert (await here.tally(link))["listens"] - before <= 2
    assert set(owns) <= set(await here.the_filter(link))


@pytest.mark.parametrize("link", MODERN)
async def test_a_server_that_never_acknowledges_is_not_believed(here: Hall, link: str, quick: None) -> None:
    client, before, own = LegacyClient(here.node), item(), item("mute")
    await client.subscribe(shown(link, before)).result()
    error = await client.subscribe(shown(link, own)).error()
    assert (error["message"], error["data"]["outcome"]) == ("call_timeout", "unknown")
    async with asyncio.timeout(SECONDS):
        while [own in one for one in await here.open_filters(link)] != [False]:
            pass
    await here.touch(link, before)
    await here.until(lambda: client.updates() == [shown(link, before)])


@pytest.mark.parametrize("link", MODERN)
async def test_a_server_that_ends_the_subscription_at_once_has_not_granted_it(here: Hall, link: str) -> None:
    client, before, own = LegacyClient(here.node), item(), item("short")
    await client.subscribe(shown(link, before)).result()
    assert (await client.subscribe(shown(link, own)).error())["code"] == -32603
    await here.touch(link, before)
    await here.until(lambda: client.updates() == [shown(link, before)])


@pytest.mark.parametrize("link", MODERN)
async def test_two_who_ask_for_one_resource_wait_for_one_answer(here: Hall, link: str) -> None:
    clients, own = [LegacyClient(here.node), LegacyClient(here.node)], item("held")
    asked = [client.subscribe(shown(link, own)) for client in clients]
    await here.until_held(link, own)
    assert [one.statuses for one in asked] == [[], []]
    await here.open(link, gate_of(own))
    assert [await one.result() for one in asked] == [{}, {}]
    await here.touch(link, own)
    await here.until(lambda: [client.updates() for client in clients] == [[shown(link, own)]] * 2)


@pytest.mark.parametrize("link", MODERN)
async def test_a_client_that_leaves_before_the_answer_leaves_no_subscription(here: Hall, link: str) -> None:
    client, own = LegacyClient(here.node), item("held")
    client.subscribe(shown(link, own))
    await here.until_held(link, own)
    here.node.fronts.sessions.close(client.session, "gone")
    await here.open(link, gate_of(own))
    async with asyncio.timeout(SECONDS):
        while any(own in one for one in await here.open_filters(link)) or (await here.tally(link))["held"]:
            pass
    assert own not in here.node.calls.keepers[link].subscriptions.uris


async def test_a_client_that_leaves_before_a_legacy_server_answered_leaves_no_subscription(here: Hall) -> None:
    client, own = LegacyClient(here.node), item()
    client.subscribe(shown("old", own))
    async with asyncio.timeout(SECONDS):
        while own not in here.node.calls.keepers["old"].subscriptions._asking:  # noqa: ASYNC110  (a few turns of the loop)
            await asyncio.sleep(0)
    here.node.fronts.sessions.close(client.session, "gone")
    async with asyncio.timeout(SECONDS):
        while await heard_of(here, own) != ["resources/subscribe", "resources/unsubscribe"]:
            pass


async def heard_of(here: Hall, own: str) -> list[str]:
    seen = (await here.call("old__seen").result())["structuredContent"]["messages"]
    return [one["method"] for one in seen if one["method"] != "tools/call" and own in one["text"]]


async def test_a_subscription_is_refused_if_the_server_is_lost_before_it_answers(here: Hall) -> None:
    client, before, own = LegacyClient(here.node), item(), item("held")
    await client.subscribe(shown("pipe", before)).result()
    asked = client.subscribe(shown("pipe", own))
    await here.until_held("pipe", own)
    keeper = here.node.calls.keepers["pipe"]
    restarts = keeper.link.restarts
    await keeper.restart()
    assert (await asked.error())["message"] == "tool_degraded"
    await here.until(lambda: keeper.link.restarts > restarts and keeper.subscriptions._current is not None)
    listens = await here.the_filter("pipe")
    assert before in listens
    assert own not in listens


async def test_a_server_that_is_away_grants_nothing(here: Hall) -> None:
    client, keeper = LegacyClient(here.node), here.node.calls.keepers["pipe"]
    restarts = keeper.link.restarts
    await keeper.restart()
    await here.until(lambda: keeper.link.restarts > restarts)
    if not keeper.subscriptions._open:
        assert (await client.subscribe(shown("pipe", item())).error())["message"] == "tool_degraded"
    await here.until(lambda: keeper.subscriptions._current is not None)
