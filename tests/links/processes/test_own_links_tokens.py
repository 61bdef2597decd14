"""Users' own links to one server: whose room does a call take, and whose link makes room for another's?"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from tests.support.node_with_clock import (
    ClockedNode,
    ModernRequest,
    clocked_node,
    filled_answers,
    limit_calls,
    park,
    steps,
)

from interlock.catalog.catalog import EVERYTHING
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CheckNumber
from interlock.credentials.token import TokenHolder
from interlock.links import own_links
from interlock.links.connected_link import ServerLink
from interlock.links.own_links import OwnLinks

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Granted(TokenHolder):
    """A user who has agreed, to a server that looks at no token."""

    has_token = True

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.line = b""
        self.waits_for_consent = False

    async def ready(self) -> None:
        pass

    def subscribe(self, on_line: Callable[[], None]) -> None:
        pass

    def unsubscribe(self, on_line: Callable[[], None]) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClockedNode]:
    async with clocked_node(tmp_path_factory.mktemp("personal")) as here:
        yield here


@pytest_asyncio.fixture(loop_scope="module")
async def own(here: ClockedNode) -> AsyncIterator[OwnLinks]:
    link = here.node.calls.keepers["web"].link
    links = OwnLinks(
        link.plan,
        here.node.links.connector_parts,
        here.node.calls.link_events,
        here.node.calls.keepers,
        per="principal",
        vendor_meta=False,
        token_of=Granted,
    )
    link.own = links
    yield links
    link.own = None
    await links.stop()


def gated(here: ClockedNode, who: str, gate: str) -> ModernRequest:
    return here.call("web__interview", steps(gate, {"gate": gate}), who=who)


async def opened(here: ClockedNode, who: str, gate: str, asked: ModernRequest) -> Any:
    await here.call("web__open", {"gate": gate}, who=who).result()
    return await asked.result()


def of(own: OwnLinks, who: str) -> ServerLink:
    return own._keepers[who, b"", 0].link


async def sent(here: ClockedNode, asked: ModernRequest) -> None:
    await here.until(lambda: asked.running.link is not None)


async def test_the_first_call_of_a_user_takes_room_on_their_link_and_not_on_the_nodes(
    here: ClockedNode, own: OwnLinks
) -> None:
    node_link = here.node.calls.keepers["web"].link
    asked = gated(here, "ada", "first")
    assert node_link.booked == 1
    await sent(here, asked)
    assert (node_link.booked, of(own, "ada").booked) == (0, 1)
    assert (await opened(here, "ada", "first", asked))["resultType"] == "complete"
    assert (node_link.booked, of(own, "ada").booked) == (0, 0)


async def test_the_first_call_of_a_user_is_suspended_on_their_link_when_it_is_parked(
    here: ClockedNode, own: OwnLinks
) -> None:
    arguments, said = await park(here, "aside", name="web__interview", who="ada")
    link = of(own, "ada")
    assert (len(link.waiting.suspended), link.in_flight, link.booked) == (1, {}, 0)
    answered = here.again("web__interview", arguments, said, filled_answers(said), who="ada")
    assert (await answered.result())["resultType"] == "complete"
    assert (len(link.waiting.suspended), link.in_flight, link.booked, here.node.calls.keepers["web"].link.booked) == (
        0,
        {},
        0,
        0,
    )


async def test_a_users_link_that_has_no_room_takes_no_first_call_either(
    here: ClockedNode, own: OwnLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_calls(here.node, 1, monkeypatch)
    first, second = gated(here, "ada", "room"), gated(here, "ada", "no room")
    assert (await second.error())["data"]["reason"] == "link_busy"
    monkeypatch.undo()
    await sent(here, first)
    assert (await opened(here, "ada", "room", first))["resultType"] == "complete"


async def test_a_link_with_a_call_under_way_makes_no_room_for_another_user(
    here: ClockedNode, own: OwnLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_links, "CONNECTIONS_MAX", 2)
    asked = gated(here, "ada", "kept")
    await sent(here, asked)
    await here.call("web__tally", who="bob").result()
    await here.call("web__tally", who="eve").result()
    assert {who for who, *_ in own._keepers} == {"ada", "eve"}
    assert (await opened(here, "ada", "kept", asked))["resultType"] == "complete"


async def test_a_link_whose_call_waits_for_its_user_does_not_end_and_the_next_user_must_wait(
    here: ClockedNode, own: OwnLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_links, "CONNECTIONS_MAX", 1)
    arguments, said = await park(here, "waits", name="web__interview", who="ada")
    error = await here.call("web__tally", who="bob").error()
    assert (error["data"]["reason"], error["data"]["limit"]) == ("own_links_full", 1)
    answered = here.again("web__interview", arguments, said, filled_answers(said), who="ada")
    assert (await answered.result())["resultType"] == "complete"
    await here.call("web__tally", who="bob").result()
    assert {who for who, *_ in own._keepers} == {"bob"}


async def test_a_call_meets_the_users_own_link_as_it_was_explained(here: ClockedNode, own: OwnLinks) -> None:
    route = here.node.calls.catalog.namespace.view(EVERYTHING).find_tool("web.open")
    assert route is not None

    def availability() -> str:
        verdicts = here.node.calls.dispatch.guard.explain(route, Principal("zoe"))
        return next(one.verdict for one in verdicts if one.number is CheckNumber.AVAILABILITY)

    assert availability() == "later"
    await here.call("web__open", {"gate": "explained"}, who="zoe").result()
    used_at = own._keepers["zoe", b"", 0].used_at
    assert availability() == "pass"
    assert own._keepers["zoe", b"", 0].used_at == used_at  # looking is no use
