"""Whom does a server's own notification concern that belongs to no call, and how many are too many?"""

import json
from types import SimpleNamespace
from typing import Any

from msgspec import Raw

from interlock.core.calls.caller import Caller, Principal, ViewKey
from interlock.fronts.audience import VENDOR_BYTES_MAX, Audience
from interlock.fronts.lists import capabilities
from interlock.links.connected_link import RECEIVERS_PER_NOTIFICATION, UNSOLICITED_PER_S, Noise
from interlock.links.link import ServerFacts
from interlock.mcp.methods import Era
from interlock.wire.jsonrpc.codec import Notification, encode_value

EVENT = Notification("com.example/event", Raw(b'{"a":1}'))


class Link:
    """As much of a link as the audience asks for."""

    segment = name = "it"
    era = Era.LEGACY
    shared = None

    def __init__(self, *principals: str, owner: str | None = None, client: Caller | None = None) -> None:
        self.noise = Noise()
        self.client = client
        self.owner = owner
        self.waiting = SimpleNamespace(principals=set(principals))


class Member:
    def __init__(self, principal: str, era: Era = Era.LEGACY) -> None:
        self.caller = Caller(Principal(principal), era, "http", ViewKey())
        self.heard: list[Notification] = []

    def on_vendor_notification(self, notification: Notification) -> None:
        self.heard.append(notification)


async def told(link: Any, *members: Any, with_tasks: tuple[str, ...] = (), sees: bool = True) -> list[int]:
    """How many each heard."""
    audience = Audience({})
    audience.members.update(members)
    audience.vendor_notification(link, EVENT, set(with_tasks), lambda caller, link: sees)
    assert audience.untold_notifications == (not any(one.heard for one in members) and len(link.waiting.principals) > 1)
    return [len(one.heard) for one in members]


async def test_all_who_see_the_server_receive_what_no_call_caused() -> None:
    assert await told(Link(), Member("a"), Member("b"), Member("a", Era.MODERN)) == [1, 1, 0]
    assert await told(Link(), Member("a"), sees=False) == [0]


async def test_a_process_with_calls_or_tasks_of_one_principal_is_not_shared() -> None:
    assert await told(Link("a"), Member("a"), Member("b")) == [1, 0]
    assert await told(Link(), Member("a"), Member("b"), with_tasks=("b",)) == [0, 1]


async def test_with_calls_of_several_principals_nobody_receives_it() -> None:
    assert await told(Link("a", "b"), Member("a"), Member("b"), Member("c")) == [0, 0, 0]


async def test_messages_over_a_principals_own_link_are_theirs() -> None:
    assert await told(Link(owner="b"), Member("a"), Member("b")) == [0, 1]


async def test_notifications_of_a_sessions_own_link_reach_only_that_session() -> None:
    mine = Member("b")
    assert await told(Link(owner="b", client=mine.caller), Member("b"), mine) == [0, 1]


async def test_large_results_are_shown_to_no_client() -> None:
    audience, member, link = Audience({}), Member("a"), Link()
    audience.members.add(member)  # type: ignore[arg-type]
    large = Notification("com.example/event", Raw(b'"%b"' % (b"x" * VENDOR_BYTES_MAX)))
    audience.vendor_notification(link, large, set(), lambda caller, link: True)  # type: ignore[arg-type]
    assert (member.heard, audience.untold_notifications) == ([], 1)


async def test_a_server_with_many_clients_is_read_the_more_slowly() -> None:
    audience, link = Audience({}), Link()
    audience.members.update(Member("a") for _ in range(RECEIVERS_PER_NOTIFICATION * UNSOLICITED_PER_S))
    audience.vendor_notification(link, EVENT, set(), lambda caller, link: True)  # type: ignore[arg-type]
    assert link.noise.count_unsolicited(0.5) is not None


class View:
    """As much of a view as capabilities are made of."""

    is_of_one_server = False

    def __init__(self, **said: bytes) -> None:
        self.links: list[Any] = []
        for segment, experimental in said.items():
            link = ListedLink()
            link.segment, link.modern, link.tasks = segment, False, False
            offered = {"experimental": Raw(experimental)}
            link.facts = ServerFacts(era=Era.LEGACY, version="2025-11-25", capabilities=offered)
            self.links.append(link)

    def shows(self, link: Any) -> bool:
        return bool(link.segment != "hidden")


class ListedLink:
    segment: str
    modern: bool
    tasks: bool
    facts: ServerFacts


def test_of_what_servers_call_experimental_only_objects_of_a_bounded_size_are_repeated() -> None:
    view: Any = View(
        good=b'{"x":{"a":1.0},"plain":7,"dev.interlock/ax":{"mine":{}},"y":[]}',
        other=b'{"x":{}}',
        odd=b"[1]",
        huge=b'{"x":{"a":"' + b"x" * 20_000 + b'"}}',
        hidden=b'{"x":{}}',
    )
    said = json.loads(encode_value(capabilities(view, modern=False)))["experimental"]
    assert said == {"good/x": {"a": 1.0}, "other/x": {}, "dev.interlock/ax": {}}
    view.is_of_one_server = True
    view.links = view.links[:1]
    assert json.loads(encode_value(capabilities(view, modern=False)))["experimental"] == {
        "x": {"a": 1.0},
        "dev.interlock/ax": {},
    }
    assert "experimental" not in capabilities(view, modern=True)
