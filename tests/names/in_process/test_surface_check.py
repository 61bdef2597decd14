"""Are a server's tools held to what is registered of their names when its list arrives, each by itself?"""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from tests.approvals.in_process.test_definitions import Shop
from tests.approvals.inboxes import StoredInbox, stored_inbox
from tests.names.pure.test_surface_judgement import (
    ARGUMENT,
    INTEGER,
    RETURN,
    STRING,
    entry,
    raw,
    revision,
    with_property,
)

from interlock.approvals.protocol.approval import Kind
from interlock.approvals.protocol.digests import answers, shown_digest
from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.hop_metadata import ADOPTED, Offer
from interlock.catalog.catalog import Catalog, LiveNamespace
from interlock.catalog.routes import LIST_STEPS_MAX, Route
from interlock.config.plan import AxPlan, GatePlan, Plan, ServerPlan, Spawn
from interlock.core.calls.caller import ViewKey
from interlock.core.calls.check import CheckNumber
from interlock.core.clock import Clock
from interlock.links.connected_link import ServerLink
from interlock.links.link import LinkEvents
from interlock.links.listing import Items, Listing
from interlock.mcp.methods import Era
from interlock.names.protocol.entry import EntryStatus, RegistryEntry
from interlock.names.protocol.grammar import Lookalikes
from interlock.names.protocol.judgement import SchemaPair, SurfacePolicy, SurfaceVerdict
from interlock.names.surface_check import NamesCheck, Pin, SurfaceChecks, SurfacePins, SurfaceQuestions

EVERYTHING = ViewKey(scope="admin", dotted=True)
BAD = with_property(ARGUMENT, query=INTEGER)
DOUBTFUL = with_property(ARGUMENT, query={**STRING, "pattern": "^a"})
WIDER = with_property(ARGUMENT, extra=STRING)


class Names:
    """A registry in memory."""

    def __init__(self, *entries: RegistryEntry) -> None:
        self.entries = {one.surface_name: one for one in entries}
        self.distrusted: set[str] = set()

    def entry(self, name: str) -> RegistryEntry | None:
        return self.entries.get(name)

    def is_trusted(self, entry: RegistryEntry) -> bool:
        return entry.source not in self.distrusted


class Bound:
    """A catalog whose servers are checked."""

    def __init__(self, desk: StoredInbox, shop: Shop, pins: SurfacePins) -> None:
        self.desk, self.shop, self.pins = desk, shop, pins
        self.names = Names(entry(revision()))
        self.links: dict[str, ServerLink] = {}
        self.policy = SurfacePolicy()
        self.questions = SurfaceQuestions(desk.inbox, shop.definitions.rulings)
        self.check = NamesCheck()
        self.checks = SurfaceChecks(
            self.names,
            lambda: self.policy,
            self.questions,
            pins,
            lambda name: Lookalikes(self.names.entries).near(name),
        )
        plan = Plan(workspace=Path(), data=Path(), ax=AxPlan(), gate=GatePlan(mode="open"))
        self.catalog = Catalog(
            plan,
            lambda kinds: None,
            live=LiveNamespace(plan.ax.root_segment),
            checks_for=lambda route: (self.check,) if self.check.applies_to(route) else (),
            surfaces=self.checks,
        )

    async def lists(self, *tools: dict[str, Any], segment: str = "one", offer: Offer = ADOPTED) -> None:
        server = ServerPlan(segment=segment, reach=Spawn(command=("true",)))
        link = self.links.setdefault(segment, ServerLink(server, LinkEvents(), Clock(), vendor_meta=True))
        link.offer = offer
        texts = tuple(json.dumps(tool).encode() for tool in tools)
        items = tuple(
            (tool["name"], msgspec.json.decode(text, type=dict[str, Raw]))
            for tool, text in zip(tools, texts, strict=True)
        )
        self.link = link
        await self.catalog.stock(link, Listing(tools=Items(items=items, digest=b"".join(texts), raws=texts)))

    def listed(self) -> dict[str, Any]:
        page = self.catalog.namespace.view(EVERYTHING).page("tools/list", Era.MODERN, "")
        return {tool["name"]: tool for tool in json.loads(page.items)}

    def route(self, name: str) -> Route:
        found = self.catalog.namespace.view(EVERYTHING).find_tool(name)
        assert found is not None
        return found

    def verdict(self, name: str) -> SurfaceVerdict | None:
        surface = self.route(name).surface
        return None if surface is None else surface.judgement.verdict

    def withheld(self) -> dict[str, str | None]:
        return {one.name: one.code for one in self.catalog.namespace.withheld(self.link)}


@pytest.fixture
async def bound(tmp_path: Path) -> AsyncIterator[Bound]:
    async with stored_inbox(tmp_path) as desk:
        pins = SurfacePins(desk.store.kv, desk.clock)
        made = Bound(desk, Shop(desk), pins)
        yield made
        await made.questions.close()


def tool(name: str = "search", argument: Any = ARGUMENT, returned: Any = RETURN, **more: Any) -> dict[str, Any]:
    given = {} if returned is None else {"outputSchema": returned}
    return {"name": name, "inputSchema": argument, **given, "annotations": {"readOnlyHint": True}, **more}


def surface_of(listed: dict[str, Any]) -> Any:
    return listed.get("_meta", {}).get("dev.interlock/surface")


@pytest.mark.req("REG-2-1", "REG-8.1-1", "REG-8.1-6")
async def test_a_registered_name_carries_its_verdict_in_the_list(bound: Bound) -> None:
    await bound.lists(tool(), tool("other"))
    await bound.lists(tool(argument=WIDER), segment="two")
    listed = bound.listed()
    pair = SchemaPair(raw(ARGUMENT), raw(RETURN))
    told = {"name": "search", "verdict": "identical", "digest": pair.digest, "status": "Active"}
    assert surface_of(listed["one.search"]) == told
    assert surface_of(listed["two.search"])["verdict"] == "compatible"
    assert listed["two.search"]["inputSchema"] == WIDER  # what a client sees is the server's own
    assert surface_of(listed["one.other"]) is None
    assert bound.route("one.search").checks == ()


@pytest.mark.req("REG-2-1")
async def test_a_server_cannot_write_the_verdict_itself(bound: Bound) -> None:
    forged = {"dev.interlock/surface": {"verdict": "identical"}, "Dev.Interlock/Surface": 1, "their.own/key": 1}
    await bound.lists(tool("free", _meta=forged), tool("search", BAD, _meta=forged))
    assert bound.listed()["one.free"]["_meta"].keys() == {"their.own/key"} | (
        bound.listed()["one.free"]["_meta"].keys() - forged.keys()
    )
    assert surface_of(bound.listed()["one.free"]) is None


@pytest.mark.req("REG-8.1-2")
async def test_a_mismatch_is_not_listed_and_every_call_is_answered_with_the_difference(bound: Bound) -> None:
    await bound.lists(tool(argument=BAD), tool("other"))
    assert bound.listed().keys() == {"one.other"}
    assert bound.withheld() == {"search": "surface_mismatch"}
    route = bound.route("one.search")
    (check,) = route.checks
    assert check.number is CheckNumber.NAMES
    fault = route.refusal
    assert fault is not None and fault.details is not None
    assert (fault.number, fault.message) == (32140, "surface_mismatch")
    offered, registered = SchemaPair(raw(BAD), raw(RETURN)), SchemaPair(raw(ARGUMENT), raw(RETURN))
    assert (fault.details["registered"], fault.details["offered"]) == (registered.digest, offered.digest)
    assert [each["path"] for each in fault.details["differences"]] == ["/query"]
    assert "`query` is string in the specification and integer at the server" in fault.details["detail"]


@pytest.mark.req("REG-8.1-1")
async def test_only_what_changed_in_a_list_is_checked_again(bound: Bound) -> None:
    await bound.lists(tool(argument=BAD))
    await bound.lists(tool())
    assert bound.listed().keys() == {"one.search"}
    bound.names.entries["search"] = entry(revision(), revision(2, argument=BAD))
    await bound.lists(tool())
    assert bound.verdict("one.search") is SurfaceVerdict.IDENTICAL  # nothing was said to have changed
    bound.catalog.reconsider("one")
    await bound.lists(tool())
    assert bound.verdict("one.search") is SurfaceVerdict.MISMATCH


@pytest.mark.req("REG-8.1-2")
async def test_session_refuses_everything_the_server_offers(bound: Bound) -> None:
    bound.policy = SurfacePolicy(enforce="session")
    await bound.lists(tool(argument=BAD), tool("other"))
    assert bound.listed() == {}
    assert bound.withheld() == {"other": "surface_mismatch", "search": "surface_mismatch"}
    assert [one.checks[0].number for one in (bound.route("one.other"), bound.route("one.search"))] == [6, 6]


@pytest.mark.req("REG-8.1-2", "REG-N-5")
@pytest.mark.parametrize("policy", [SurfacePolicy(enforce="warn"), SurfacePolicy(per_name={"search": "warn"}), None])
async def test_a_warning_lists_the_tool_with_its_verdict(bound: Bound, policy: SurfacePolicy | None) -> None:
    if policy is None:  # imported, and not trusted yet
        bound.names.entries["search"] = entry(revision(), source="https://names.example")
        bound.names.distrusted.add("https://names.example")
    else:
        bound.policy = policy
    await bound.lists(tool(argument=BAD))
    assert surface_of(bound.listed()["one.search"])["verdict"] == "mismatch"
    surface = bound.route("one.search").surface
    assert surface is not None and "`query` is" in surface.warning
    bound.names.distrusted.clear()
    bound.policy = SurfacePolicy()
    bound.catalog.reconsider("one")
    await bound.lists(tool(argument=BAD))
    assert bound.listed() == {}


@pytest.mark.req("REG-8.1-2")
async def test_off_compares_nothing(bound: Bound) -> None:
    bound.policy = SurfacePolicy(enforce="off")
    await bound.lists(tool(argument=BAD))
    assert surface_of(bound.listed()["one.search"]) is None


@pytest.mark.req("REG-4.2-7", "REG-3-1")
async def test_the_leaf_and_the_listed_name_are_both_looked_up(bound: Bound) -> None:
    bound.names.entries["create_issue"] = msgspec.structs.replace(entry(revision()), surface_name="create_issue")
    below = Offer(kind="aggregator", scope=AuthScope.ADMIN)
    await bound.lists(tool("edge.search", BAD), segment="infra", offer=below)
    await bound.lists(tool("2fa-list", BAD), tool("Search", BAD))
    assert bound.verdict("infra.edge.search") is SurfaceVerdict.MISMATCH
    assert bound.listed().keys() >= {"one.2fa-list"}
    await bound.lists(tool("createIssue", BAD), segment="two")
    assert bound.verdict("two.create_issue") is SurfaceVerdict.MISMATCH  # the name that clients see
    assert "two.create_issue" not in bound.listed()


@pytest.mark.req("REG-3-2", "REG-8.1-5")
@pytest.mark.parametrize("name", ["Search", "search_", "5earch", "se-arch", "sеarch", "ѕearch", "ｓearch"])
async def test_a_name_that_only_looks_registered_is_reported_as_a_different_name(bound: Bound, name: str) -> None:
    found = bound.checks.judge("one", f"one.{name}", (name,), {}, {}, _effort())
    assert found is not None and found.refusal is None and found.meta is None
    assert found.judgement.near == "search"
    is_like_a_name = name == "Search"
    verdict = SurfaceVerdict.UNREGISTERED if is_like_a_name else SurfaceVerdict.NOT_REGISTRABLE
    assert found.judgement.verdict is verdict


def _effort() -> Any:
    from interlock.wire.schemas.budget import Effort

    return Effort(LIST_STEPS_MAX)


@pytest.mark.req("REG-7.3-2")
async def test_a_deprecated_name_is_warned_of_with_its_successor_and_still_held_to(bound: Bound) -> None:
    bound.names.entries["search"] = entry(
        revision(), status=EntryStatus.DEPRECATED, deprecated_on="2026-11-01", successor="find"
    )
    await bound.lists(tool())
    surface = bound.route("one.search").surface
    assert surface is not None
    assert surface.warning == "search identical: search is deprecated since 2026-11-01; its successor is find"
    assert surface_of(bound.listed()["one.search"])["status"] == "Deprecated"
    await bound.lists(tool(argument=BAD))
    assert bound.listed() == {}


@pytest.mark.req("REG-8.2-2")
@pytest.mark.parametrize(
    ("meta", "notes"),
    [
        ({"dev.interlock/specification": 1}, ("behind",)),
        ({"dev.interlock/specification": 2}, ("behind", "claim_mismatch")),
        ({"x-mcpax-capability": {"schema_version": "1.0.0"}}, ("behind",)),
        ({"x-mcpax-capability": {"schema_version": "1.1.0"}}, ("behind", "claim_mismatch")),
        ({}, ("behind",)),
    ],
    ids=str,
)
async def test_a_claim_is_read_from_the_list_and_the_schemas_decide(bound: Bound, meta: Any, notes: Any) -> None:
    bound.names.entries["search"] = entry(revision(), revision(2, argument=WIDER))
    bound.policy = SurfacePolicy(enforce="warn")
    await bound.lists(tool(_meta=meta))
    surface = bound.route("one.search").surface
    assert surface is not None
    assert (surface.judgement.behind, surface.judgement.notes) == (1, notes)
    assert "it keeps to revision 1; 2 is current" in surface.warning
    is_contradicted = "claim_mismatch" in notes
    assert ("it claims a revision that its schemas are not of" in surface.warning) is is_contradicted


@pytest.mark.req("REG-4.2-8")
async def test_a_shortened_alias_keeps_the_surface_name_beside_it(bound: Bound) -> None:
    long = "_".join(["search"] * 8)
    bound.names.entries[long] = msgspec.structs.replace(entry(revision()), surface_name=long)
    await bound.lists(tool(long), segment="a-server-with-a-long-name")
    page = bound.catalog.namespace.view(ViewKey(scope="admin")).page("tools/list", Era.MODERN, "")
    (listed,) = json.loads(page.items)
    assert len(listed["name"]) <= 64 and not listed["name"].endswith(long)
    assert surface_of(listed)["name"] == long


@pytest.mark.req("REG-8.1-4")
async def test_an_undecided_pair_waits_for_a_person_once_and_is_remembered(bound: Bound) -> None:
    await bound.lists(tool(argument=DOUBTFUL))
    await bound.lists(tool(argument=DOUBTFUL))
    await bound.questions.close()
    assert bound.listed() == {}
    (asked,) = bound.desk.inbox.waiting(Kind.DEFINITION)
    assert answers(asked) == ("accept",)
    assert asked.params is not None and shown_digest(asked.params) == asked.digest
    shown = json.loads(bytes(asked.params))["surface"]
    assert shown["differences"] == ['`query` has no pattern in the specification and pattern "^a" at the server']
    await bound.shop.decides(asked, "accept")
    bound.catalog.reconsider("one")
    await bound.lists(tool(argument=DOUBTFUL))
    assert surface_of(bound.listed()["one.search"])["verdict"] == "undecided"
    other = with_property(ARGUMENT, query={**STRING, "pattern": "^b"})
    await bound.lists(tool(argument=other))
    assert bound.listed() == {}  # what was accepted is that pair alone


async def test_a_server_that_keeps_changing_has_one_question_in_the_inbox(bound: Bound) -> None:
    for letter in "abc":
        await bound.lists(tool(argument=with_property(ARGUMENT, query={**STRING, "pattern": f"^{letter}"})))
        await bound.questions.close()
    (asked,) = bound.desk.inbox.waiting(Kind.DEFINITION)
    assert b"^c" in bytes(asked.params or b"")


@pytest.mark.req("REG-8.1-4")
async def test_a_denied_pair_stays_refused_and_is_not_asked_again(bound: Bound) -> None:
    await bound.lists(tool(argument=DOUBTFUL))
    await bound.questions.close()
    (asked,) = bound.desk.inbox.waiting(Kind.DEFINITION)
    await bound.shop.decides(asked, None)
    bound.catalog.reconsider("one")
    await bound.lists(tool(argument=DOUBTFUL))
    await bound.questions.close()
    assert bound.listed() == {} and bound.desk.inbox.waiting(Kind.DEFINITION) == []


@pytest.mark.req("REG-8.2-3")
async def test_a_pinned_tool_that_drifts_is_refused_until_it_is_pinned_again(bound: Bound) -> None:
    pair = SchemaPair(raw(ARGUMENT), raw(RETURN))
    await bound.pins.put(Pin(tool="one.free", digest=pair.digest, argument=raw(ARGUMENT), returned=raw(RETURN)))
    await bound.lists(tool("free"))
    assert bound.route("one.free").surface is None
    await bound.lists(tool("free", WIDER))
    surface = bound.route("one.free").surface
    assert surface is not None and surface.refusal is None and "repin free" in surface.warning
    await bound.lists(tool("free", BAD))
    fault = bound.route("one.free").refusal
    assert fault is not None and fault.details is not None
    assert (fault.number, fault.message, fault.details["pinned"]) == (32141, "specification_drift", pair.digest)
    assert bound.withheld() == {"free": "specification_drift"}
    bound.policy = SurfacePolicy(strict=True)
    await bound.lists(tool("free", WIDER))
    assert bound.route("one.free").refusal is not None
    again = SurfacePins(bound.desk.store.kv, bound.desk.clock)
    await again.open()
    assert again.get("one.free") == bound.pins.get("one.free")
    assert await again.remove("one.free") and again.get("one.free") is None


@pytest.mark.req("REG-6-4", "REG-7.1-1")
async def test_an_entry_without_schemas_hides_nothing(bound: Bound) -> None:
    bare = msgspec.structs.replace(revision(), argument_digest=None, return_digest=None)
    bound.names.entries["search"] = entry(bare)
    await bound.lists(tool(argument=BAD))
    assert surface_of(bound.listed()["one.search"])["verdict"] == "unverifiable"
    bound.names.entries["search"] = entry(revision(), status=EntryStatus.WITHDRAWN)
    bound.catalog.reconsider("one")
    await bound.lists(tool())
    assert bound.listed().keys() == {"one.search"}


async def test_a_hostile_list_is_checked_within_a_bound(bound: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.catalog.link_items.LIST_STEPS_MAX", 5_000)
    names = [f"name_{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(30)]
    bound.names.entries = {name: msgspec.structs.replace(entry(revision()), surface_name=name) for name in names}
    bomb = {
        "type": "object",
        "properties": {
            f"p{n}": {"anyOf": [{"$ref": "#/properties/p0"}, {"$ref": "#/properties/p1"}]} for n in range(60)
        },
        "required": ["query"],
    }
    started = time.process_time()
    await bound.lists(*(tool(name, {**bomb, "title": name}, {"anyOf": [bomb, RETURN]}) for name in names))
    assert time.process_time() - started < 5
    assert bound.listed() == {}
    warned = [
        surface.warning
        for route in map(bound.route, sorted(f"one.{name}" for name in names))
        if (surface := route.surface)
    ]
    assert "too much to compare" in warned[-1] and len(warned) == len(names)
