"""Does what a server lists come to stand in the namespace as its offer allows, and no further?"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from msgspec import Raw

from interlock.ax.protocol.capability import AuthScope, as_object, read_capability
from interlock.ax.protocol.hop_metadata import ADOPTED, Offer
from interlock.ax.protocol.route import check, read_untrusted
from interlock.catalog.catalog import Catalog, LiveNamespace
from interlock.catalog.routes import LinkItems, Route, Rulings
from interlock.config.plan import AxPlan, GatePlan, Plan, ServerPlan, Spawn, ToolClass, ToolRule
from interlock.core.calls.caller import ViewKey
from interlock.core.clock import Clock
from interlock.links.connected_link import ServerLink
from interlock.links.link import LinkEvents
from interlock.links.listing import Items, Listing
from interlock.mcp.methods import Era
from interlock.wire.jsonrpc.codec import decode_object
from interlock.wire.refusal import NAMESPACE_INVALID

SOURCE = Path(__file__).resolve().parents[3] / "src/interlock"
LEAF = Offer(kind="leaf", scope=AuthScope.ADMIN)
AGGREGATOR = Offer(kind="aggregator", scope=AuthScope.ADMIN)
EVERYTHING = ViewKey(scope="admin", dotted=True)
READ_ONLY = {"annotations": {"readOnlyHint": True}}
Tool = dict[str, Any]


class House:
    """A catalog and its links."""

    def __init__(self, *, tools: tuple[ToolRule, ...] = (), gate: GatePlan | None = None, **ax: Any) -> None:
        self.plan = Plan(workspace=Path(), data=Path(), ax=AxPlan(**ax), tools=tools, gate=gate or GatePlan())
        self.told: list[frozenset[str]] = []  # what clients are told
        self.notes = 0  # how often parents are told of metadata besides
        self.catalog = Catalog(
            self.plan,
            self.told.append,
            self._note,
            live=LiveNamespace(self.plan.ax.root_segment),
            checks_for=lambda route: (),
        )

    def _note(self, kinds: frozenset[str]) -> None:
        assert kinds == {"tools"}
        self.notes += 1

    def link(self, segment: str, offer: Offer = ADOPTED, **classes: Any) -> ServerLink:
        plan = ServerPlan(segment=segment, reach=Spawn(command=("true",)), classes=classes)
        link = ServerLink(plan, LinkEvents(), Clock(), vendor_meta=True)
        link.offer = offer
        return link

    def link_items(self, segment: str) -> LinkItems:
        return next(one for one in self.catalog.namespace.link_items if one.link.segment == segment)

    def routes(self) -> dict[str, Route]:
        return {route.qualified: route for route in self.catalog.namespace.view(EVERYTHING).tool_routes}

    def listed(self) -> dict[str, Any]:
        page = self.catalog.namespace.view(EVERYTHING).page("tools/list", Era.MODERN, "")
        return {tool["name"]: tool for tool in json.loads(page.items)}

    def withheld(self, segment: str) -> dict[str, str]:
        return {one.name: one.code or one.reason for one in self.link_items(segment).withheld}


class Ruled(Rulings):
    """Operators that say this of every tool."""

    def __init__(self, said: ToolClass) -> None:
        self._said = said

    def get(self, tool: str, digest: str) -> ToolClass | None:
        return self._said

    def knows(self, tool: str) -> bool:
        return True


def items(offered: Sequence[Tool], key: str = "name") -> Items:
    text = json.dumps(offered).encode()
    found = tuple((one[key], decode_object(json.dumps(one).encode()) or {}) for one in offered)
    return Items(items=found, digest=text)


def listing(*offered: str | Tool, **kinds: Sequence[Tool]) -> Listing:
    tools = [{"name": one, "inputSchema": {"type": "object"}} if isinstance(one, str) else one for one in offered]
    keys = {"prompts": "name", "resources": "uri", "templates": "uriTemplate"}
    return Listing(tools=items(tools), **{kind: items(value, keys[kind]) for kind, value in kinds.items()})


def tool(
    name: str, capability: dict[str, Any] | None = None, /, meta: dict[str, Any] | None = None, **more: Any
) -> Tool:
    said = {} if capability is None else {"x-mcpax-capability": capability}
    return {"name": name, "inputSchema": {"type": "object"}, "_meta": {**said, **(meta or {})}, **more}


def full(**keys: Any) -> dict[str, Any]:
    read = read_capability(keys)
    return as_object(read)  # type: ignore[arg-type]


# Names


@pytest.mark.req("AX-4.1-3", "AX-4.3-1")
async def test_an_adopted_servers_dots_are_normalised_and_a_leafs_end_its_registration() -> None:
    house = House()
    adopted, leaf = house.link("a"), house.link("l", LEAF)
    assert (await house.catalog.stock(adopted, listing("a.b"))).refused is None
    assert list(house.routes()) == ["a.a_b"]
    await house.catalog.stock(leaf, listing("fine"))
    done = await house.catalog.stock(leaf, listing("fine", "a.b", "x"))
    assert done.refused is not None
    assert (done.refused.code, done.refused.message) == (NAMESPACE_INVALID, "namespace_invalid")
    assert done.refused.details is not None
    assert done.refused.details["names"] == ["a.b"]
    assert list(house.routes()) == ["a.a_b"]  # none of its tools, also not those of before


@pytest.mark.req("AX-4.3-1")
async def test_a_leafs_dotted_prompt_ends_its_registration_too() -> None:
    house = House()
    done = await house.catalog.stock(house.link("l", LEAF), listing("t", prompts=[{"name": "p.q"}]))
    assert done.refused is not None
    assert house.catalog.namespace.link_items == ()


@pytest.mark.req("AX-4.1-3")
async def test_a_leafs_other_odd_names_are_normalised() -> None:
    house = House()
    await house.catalog.stock(house.link("l", LEAF), listing("createIssue", "größe"))
    assert {name: route.original for name, route in house.routes().items()} == {
        "l.create_issue": "createIssue",
        "l.gr__e": "größe",
    }


@pytest.mark.req("AX-4.3-1")
@pytest.mark.parametrize("name", ["x..z", "X.y", ".x", "x.", "", "x. y", "x.ü", "a" * 64, "x.\n", "x/y"])
async def test_an_aggregator_with_an_invalid_name_is_refused(name: str) -> None:
    house = House()
    done = await house.catalog.stock(house.link("agg", AGGREGATOR), listing("ok.name", name))
    assert done.refused is not None
    assert done.refused.details is not None
    assert done.refused.details["names"] == [name]
    assert house.routes() == {}


async def test_a_refusal_repeats_only_so_many_names() -> None:
    house = House()
    names = [f"{'n' * 500}.{number}" for number in range(500)]
    done = await house.catalog.stock(house.link("l", LEAF), listing(*names))
    assert done.refused is not None
    assert done.refused.details is not None
    assert len(json.dumps(done.refused.details)) < 20_000


@pytest.mark.req("AX-2-3")
@pytest.mark.parametrize("root", [None, "infra"])
async def test_route_and_local_name_make_the_qualified_name(root: str | None) -> None:
    house = House(root_segment=root)
    prompts = [{"name": "gw.greet"}]
    await house.catalog.stock(
        house.link("edge", AGGREGATOR), listing("gw.stm32h7.dma2d_status", "own", prompts=prompts)
    )
    await house.catalog.stock(house.link("leaf", LEAF), listing("readAll"))
    await house.catalog.stock(house.link("adopted"), listing("a.b"))
    own = [] if root is None else [root]
    view = house.catalog.namespace.view(EVERYTHING)
    routes = [*view.tool_routes, *view.prompt_routes]
    assert {tuple(route.segments) for route in routes} >= {(*own, "edge", "gw", "stm32h7"), (*own, "edge")}
    for route in routes:
        assert ".".join((*route.segments, route.local)) == route.qualified
        assert (*own, *route.below) == route.segments
    found = view.find_tool(".".join([*own, "edge.gw.stm32h7.dma2d_status"]))
    assert found is not None
    assert found.original == "gw.stm32h7.dma2d_status"
    assert bytes(found.wire_name) == b'"gw.stm32h7.dma2d_status"'


@pytest.mark.parametrize("root", [None, "infra"])
async def test_a_call_that_begins_here_has_its_route_ready_for_ax_peers_only(root: str | None) -> None:
    house = House(root_segment=root)
    await house.catalog.stock(house.link("edge", AGGREGATOR), listing("gw.status"))
    await house.catalog.stock(house.link("leaf", LEAF), listing("readAll"))
    await house.catalog.stock(house.link("adopted"), listing("t"))
    for route in house.routes().values():
        if route.link.segment == "adopted":
            assert route.onward is None
            continue
        assert route.onward is not None
        routed = read_untrusted({}, route.onward)
        assert check(routed, segment=route.link.segment, rest=(*route.below[1:], route.local)) is None  # type: ignore[arg-type]
        assert routed.cursor == (0 if root is None else 1)  # type: ignore[union-attr]


@pytest.mark.req("AX-4.1-4")
async def test_the_limit_of_255_withholds_at_this_level_only() -> None:
    below = ".".join(["s" * 63] * 3 + ["t" * 58])  # 250
    house = House()
    await house.catalog.stock(house.link("edge", AGGREGATOR), listing(below, below + "u", "sibling"))
    assert {len(name) for name in house.routes()} == {255, 12}
    assert list(house.withheld("edge")) == [below + "u"]
    assert "256" in house.withheld("edge")[below + "u"]


@pytest.mark.req("AX-4.3-2")
async def test_a_hostile_registrant_stays_below_its_own_segment() -> None:
    house = House()
    victim = house.link("jira", LEAF)
    await house.catalog.stock(victim, listing("create"))
    before = house.routes()["jira.create"]
    forged = tool("jira.create", meta={"x-mcpax-name": "jira.create", "x-mcpax-hops": -5, "x-mcpax-origin": "jira"})
    await house.catalog.stock(house.link("evil", AGGREGATOR), Listing(tools=items([forged])))
    assert set(house.routes()) == {"jira.create", "evil.jira.create"}
    assert house.routes()["jira.create"] is before
    assert "x-mcpax-name" not in house.listed()["evil.jira.create"]["_meta"]


async def test_a_name_listed_twice_by_an_aggregator_is_withheld() -> None:
    house = House()
    twice = [tool("a.b", description="one"), tool("a.b", description="two"), tool("a.c"), tool("a.c")]
    await house.catalog.stock(house.link("agg", AGGREGATOR), Listing(tools=items(twice)))
    assert list(house.routes()) == ["agg.a.c"]  # the same to the byte is one
    assert list(house.withheld("agg")) == ["a.b"]


# Hops


@pytest.mark.req("AX-9.2-2")
async def test_hops_count_the_aggregators_on_the_way() -> None:
    house = House()
    forged = tool("t", meta={"x-mcpax-hops": 9})
    for segment, offer in (("adopted", ADOPTED), ("leaf", LEAF), ("agg", AGGREGATOR)):
        await house.catalog.stock(house.link(segment, offer), Listing(tools=items([forged, tool("u")])))
    hops = {name: shown["_meta"]["x-mcpax-hops"] for name, shown in house.listed().items()}
    assert hops == {"adopted.t": 1, "adopted.u": 1, "leaf.t": 1, "leaf.u": 1, "agg.t": 10, "agg.u": 2}
    assert house.routes()["agg.t"].timeout_s == pytest.approx(300.45)


async def test_tools_beyond_max_hops_are_withheld_and_reported() -> None:
    house = House(max_hops=3)
    offered = [tool(f"t{hops}", meta={"x-mcpax-hops": hops}) for hops in (1, 2, 3, 10**40)]
    await house.catalog.stock(house.link("agg", AGGREGATOR), Listing(tools=items(offered)))
    assert list(house.routes()) == ["agg.t1", "agg.t2"]
    assert set(house.withheld("agg").values()) == {"hops_exceeded"}


# Capability


ANNOTATION = {
    **full(mutable=False, latency_class="realtime"),
    "vendor": {"a": None, "b": 12345678901234567890},
    "n": None,
}


async def validate_request(levels: int, below: Listing, *, link_latency_ms: float = 0) -> tuple[House, Listing]:
    """The list of a leaf, seen through so many aggregators."""
    for level in range(levels):
        house = House()
        kind: Literal["leaf", "aggregator"] = "aggregator" if level else "leaf"
        offer = Offer(kind=kind, link_latency_ms=link_latency_ms)
        done = await house.catalog.stock(house.link(f"s{level}", offer), below)
        assert done.refused is None
        below = Listing(tools=items(list(house.listed().values())))
    return house, below


@pytest.mark.req("AX-9.2-1", "AX-9.1-1")
async def test_a_capability_arrives_three_hops_up_as_it_was_declared() -> None:
    house, _ = await validate_request(3, listing(tool("t", ANNOTATION)))
    meta = house.listed()["s2.s1.s0.t"]["_meta"]
    assert meta["x-mcpax-capability"] == ANNOTATION
    assert meta["x-mcpax-hops"] == 3
    assert "x-mcpax-declared" not in meta


@pytest.mark.req("AX-9.1-1")
async def test_an_invalid_capability_withholds_the_tool_with_a_report() -> None:
    house = House()
    odd = [tool("a", {"mutable": 1}), tool("b", {"latency_class": "Realtime"}), tool("ok", {"mutable": False})]
    broken = {**tool("c"), "_meta": {"x-mcpax-capability": 7}}
    await house.catalog.stock(house.link("l", LEAF), Listing(tools=items([*odd, broken])))
    assert list(house.routes()) == ["l.ok"]
    assert set(house.withheld("l").values()) == {"capability_invalid"}


@pytest.mark.req("AX-9.1-1")
async def test_a_capability_that_cannot_be_read_withholds_only_its_tool() -> None:
    unreadable = {"name": Raw(b'"t"'), "_meta": Raw(rb'{"x-mcpax-capability":{"v":"\ud800"}}')}
    house = House()
    tools = Items(items=(("t", unreadable), *items([tool("u")]).items), digest=b"1")
    await house.catalog.stock(house.link("l", LEAF), Listing(tools=tools))
    assert list(house.routes()) == ["l.u"]


@pytest.mark.req("AX-9.2-3")
async def test_declared_link_latency_raises_the_class_at_once_and_keeps_the_owners_word() -> None:
    house, _ = await validate_request(
        2, listing(tool("t", ANNOTATION), tool("slow", full(latency_class="slow"))), link_latency_ms=700
    )
    shown = house.listed()
    assert shown["s1.s0.t"]["_meta"]["x-mcpax-capability"] == {**ANNOTATION, "latency_class": "fast"}
    assert shown["s1.s0.t"]["_meta"]["x-mcpax-declared"] == {"latency_class": "realtime"}
    assert house.routes()["s1.s0.t"].timeout_s == pytest.approx(5.05)
    assert shown["s1.s0.slow"]["_meta"]["x-mcpax-capability"]["latency_class"] == "slow"
    assert "x-mcpax-declared" not in shown["s1.s0.slow"]["_meta"]


@pytest.mark.req("AX-9.2-3", "AX-9.2-4", "AX-13.1-3")
async def test_measured_latency_raises_when_the_list_is_rebuilt_and_does_not_fall_in_a_session() -> None:
    house = House()
    offer = Offer(kind="leaf", session="one")
    link = house.link("l", offer)
    offered = listing(tool("t", ANNOTATION))

    async def latency_class() -> str:
        await house.catalog.stock(link, offered)
        shown: str = house.listed()["l.t"]["_meta"]["x-mcpax-capability"]["latency_class"]
        return shown

    link.latencies.extend([2.0] * 19)
    assert await latency_class() == "realtime"
    link.latencies.append(2.0)
    assert house.routes()["l.t"].timeout_s == 0.5  # nothing flickers between two lists
    assert await latency_class() == "fast"
    assert house.routes()["l.t"].timeout_s == 5.0
    link.latencies.extend([0.001] * 100)
    assert await latency_class() == "fast"
    link.offer = Offer(kind="leaf", session="two")
    assert await latency_class() == "realtime"
    assert house.told == [frozenset({"tools"})]  # metadata alone costs no client its cache
    assert house.notes == 2


@pytest.mark.req("AX-13.2-1")
async def test_degraded_tools_stay_listed_with_the_declared_value_kept() -> None:
    house = House()
    link = house.link("l", LEAF)
    offered = listing(tool("t", full(availability="scheduled")), tool("u", full(availability="degraded")), tool("v"))
    await house.catalog.stock(link, offered)
    version = house.catalog.namespace.version
    house.catalog.degrade(link)
    assert house.catalog.namespace.version == version + 1
    shown = house.listed()
    assert {tool["_meta"]["x-mcpax-capability"]["availability"] for tool in shown.values()} == {"degraded"}
    assert shown["l.t"]["_meta"]["x-mcpax-declared"] == {"availability": "scheduled"}
    assert shown["l.v"]["_meta"]["x-mcpax-declared"] == {"availability": "always"}
    assert "x-mcpax-declared" not in shown["l.u"]["_meta"]
    house.catalog.degrade(link)
    assert house.catalog.namespace.version == version + 1
    done = await house.catalog.stock(link, offered)
    assert done.changed == ()
    assert house.listed()["l.t"]["_meta"]["x-mcpax-capability"]["availability"] == "scheduled"
    house.catalog.degrade(link)
    house.catalog.drop(link)
    assert house.listed() == {}
    assert house.told == [frozenset({"tools"})] * 2
    assert house.notes == 3


# Proof, scope, safety


MIXED = listing(
    tool("look", **READ_ONLY), tool("claims", {"mutable": False}, annotations={"readOnlyHint": False}), tool("break")
)


@pytest.mark.req("AX-4.2-7", "AX-4.2-11")
async def test_mutable_tools_of_an_unproved_registrant_are_withheld() -> None:
    house = House()
    await house.catalog.stock(house.link("l", Offer(kind="leaf", proved=False)), MIXED)
    assert list(house.routes()) == ["l.look"]
    assert house.withheld("l") == {"claims": "authority_unverified", "break": "authority_unverified"}
    await house.catalog.stock(house.link("m", Offer(kind="leaf", proved=True)), MIXED)
    assert "m.break" in house.routes()


@pytest.mark.req("AX-4.2-7")
async def test_a_tool_that_turns_mutable_is_withheld_then_and_proof_brings_it_back() -> None:
    house = House()
    link = house.link("l", Offer(kind="leaf", proved=False))
    await house.catalog.stock(link, listing(tool("t", **READ_ONLY)))
    assert "l.t" in house.routes()
    await house.catalog.stock(link, listing("t"))
    assert house.routes() == {}
    link.offer = LEAF
    await house.catalog.stock(link, listing("t"))
    assert "l.t" in house.routes()


@pytest.mark.req("AX-4.2-7", "AX-4.2-11")
async def test_without_required_proof_an_unproved_word_is_still_only_believed_where_it_tightens() -> None:
    house = House(require_proof="never")
    soft = tool("t", full(mutable=True, reversible=True, idempotent=True), annotations={"destructiveHint": False})
    await house.catalog.stock(house.link("l", Offer(kind="leaf", proved=False)), listing(soft))
    shown = house.listed()["l.t"]
    assert shown["_meta"]["x-mcpax-safety"] == "irreversible_mutable"
    route = house.routes()["l.t"]
    assert route.capability is not None and route.irreversible
    assert (route.capability.reversible, route.capability.idempotent, route.price.mutable) == (False, False, True)
    assert shown["annotations"] == {"destructiveHint": False, "readOnlyHint": False, "idempotentHint": False}


async def test_the_operator_classifies_an_unproved_leafs_tool() -> None:
    house = House()
    await house.catalog.stock(house.link("l", Offer(kind="leaf", proved=False), t="read_only"), listing("t"))
    assert house.listed()["l.t"]["_meta"]["x-mcpax-capability"]["mutable"] is False


@pytest.mark.req("AX-10.2-1", "AX-10.2-2")
@pytest.mark.parametrize(
    ("scope", "seen"), [("read", {"r"}), ("write", {"r", "w", "implied"}), ("admin", {"r", "w", "a", "implied"})]
)
async def test_a_registration_offers_nothing_above_its_scope(scope: str, seen: set[str]) -> None:
    house = House()
    offered = listing(
        tool("r", full(mutable=False)),
        tool("w", full(mutable=False, auth_scope="write")),
        tool("a", full(mutable=False, auth_scope="admin")),
        tool("implied", full(mutable=True, auth_scope="read")),
    )
    other = house.link("other", Offer(kind="leaf", scope=AuthScope.ADMIN))
    await house.catalog.stock(other, offered)
    link = house.link("l", Offer(kind="leaf", scope=AuthScope(scope)))
    await house.catalog.stock(link, offered)
    listed = {name.removeprefix("l.") for name in house.routes() if name.startswith("l.")}
    assert listed == seen
    assert house.link_items("l").out_of_scope == {f"l.{name}" for name in {"r", "w", "a", "implied"} - seen}
    assert set(house.withheld("l").values()) <= {"scope_denied"}
    assert sum(name.startswith("other.") for name in house.routes()) == 4
    await house.catalog.stock(link, listing(tool("r", full(mutable=True))))  # it only read before
    assert ("l.r" in house.routes()) is (scope != "read")


@pytest.mark.req("AX-11.2-1")
async def test_only_irreversible_mutable_tools_are_flagged() -> None:
    house = House()
    offered = [
        tool(f"{'m' if mutable else 'n'}{'r' if reversible else 'i'}", full(mutable=mutable, reversible=reversible))
        for mutable in (True, False)
        for reversible in (True, False)
    ]
    await house.catalog.stock(house.link("l", LEAF), listing(*offered))
    flagged = {name for name, shown in house.listed().items() if "x-mcpax-safety" in shown["_meta"]}
    assert flagged == {"l.mi"}
    assert {name for name, route in house.routes().items() if route.irreversible} == flagged


@pytest.mark.req("AX-11.2-1", "AX-11.3-16", "AX-11.3-17")
async def test_flags_from_below_stay_whatever_the_operator_here_says() -> None:
    rules = (ToolRule(match="*", capability={"mutable": True, "reversible": True, "latency_class": "realtime"}),)
    house = House(tools=rules)
    flags = {"x-mcpax-safety": "irreversible_mutable", "x-mcpax-gated": True}
    offered = listing(
        tool("flagged", full(), meta=flags), tool("gated", full(mutable=True, reversible=True), meta=flags)
    )
    await house.catalog.stock(house.link("agg", AGGREGATOR), offered)
    for name, shown in house.listed().items():
        assert shown["_meta"]["x-mcpax-safety"] == "irreversible_mutable"
        assert shown["_meta"]["x-mcpax-gated"] is True
        assert house.routes()[name].irreversible
        assert house.routes()[name].gated
    assert house.listed()["agg.flagged"]["_meta"]["x-mcpax-capability"] == full()


@pytest.mark.req("AX-11.2-1", "AX-11.3-17")
async def test_a_leaf_cannot_write_what_is_ours_to_write() -> None:
    forged = {"x-mcpax-safety": "harmless", "x-mcpax-declared": {"latency_class": "realtime"}, "x-mcpax-gated": "no"}
    house = House()
    await house.catalog.stock(house.link("l", LEAF), listing(tool("t", meta={**forged, "vendor": 1})))
    meta = house.listed()["l.t"]["_meta"]
    assert meta.keys() == {"vendor", "x-mcpax-capability", "x-mcpax-hops", "x-mcpax-safety", "x-mcpax-gated"}
    assert meta["x-mcpax-gated"] is True
    assert meta["x-mcpax-safety"] == "irreversible_mutable"


def holds(house: House) -> dict[str, str | None]:
    return {
        name: route.gate.hold.value if route.gate is not None and route.gate.hold is not None else None
        for name, route in house.routes().items()
    }


@pytest.mark.req("AX-11.3-16")
async def test_a_gate_that_defers_believes_aggregators_with_proved_authority_and_nobody_else() -> None:
    flags = {"x-mcpax-gated": True}
    offered = listing(tool("held", full(reversible=False, mutable=True), meta=flags), tool("free", full()))
    unproved = Offer(kind="aggregator", scope=AuthScope.ADMIN, proved=False)
    house = House(gate=GatePlan(mode="defer"), require_proof="never")
    for segment, offer in (("agg", AGGREGATOR), ("leaf", LEAF), ("plain", ADOPTED), ("unproved", unproved)):
        await house.catalog.stock(house.link(segment, offer), offered)
    found = holds(house)
    assert found["agg.held"] is None
    assert {name: found[f"{name}.held"] for name in ("leaf", "plain", "unproved")} == {
        "leaf": "call",
        "plain": "call",
        "unproved": "call",
    }
    assert all(route.gated for name, route in house.routes().items() if name.endswith(".held"))


async def test_only_what_may_be_held_below_is_listened_to_on_its_way_back() -> None:
    house = House(gate=GatePlan(mode="open"))
    flags = {"x-mcpax-gated": True}
    offered = listing(
        tool("flagged", full(mutable=True, reversible=False)),
        tool("gated", full(mutable=True, reversible=True), meta=flags),
        tool("free", full(mutable=True, reversible=True)),
    )
    for segment, offer in (("agg", AGGREGATOR), ("plain", ADOPTED)):
        await house.catalog.stock(house.link(segment, offer), offered)
    relays = {name for name, route in house.routes().items() if route.gate is not None and route.gate.relays}
    assert relays == {"agg.flagged", "agg.gated"}
    assert all(route.gate is None for name, route in house.routes().items() if name not in relays)


async def test_a_tool_is_open_only_while_it_is_unclassified() -> None:
    rules = (
        ToolRule(match="*.ruled", capability={"reversible": True}),
        ToolRule(match="*.timed", capability={"latency_class": "slow"}),
    )
    house = House(tools=rules)
    hinted = {"annotations": {"destructiveHint": True}}
    offered = listing(tool("bare"), tool("classed"), tool("ruled"), tool("timed"), {**tool("hinted"), **hinted})
    await house.catalog.stock(house.link("s", ADOPTED, classed="reversible"), offered)
    await house.catalog.stock(house.link("agg", AGGREGATOR), listing(tool("bare")))
    assert holds(house) == {
        "s.bare": "definition",
        "s.classed": None,
        "s.ruled": None,
        "s.timed": "definition",
        "s.hinted": "call",
        "agg.bare": "call",
    }
    assert {name for name, route in house.routes().items() if route.is_open} == {"s.bare", "s.timed"}


async def test_the_items_of_a_link_are_built_again_only_after_a_new_decision_of_an_operator() -> None:
    house = House()
    link, offered = house.link("s"), listing(tool("bare"))
    await house.catalog.stock(link, offered)
    before = house.link_items("s")
    await house.catalog.stock(link, offered)
    assert house.link_items("s") is before
    house.catalog.replan(msgspec.structs.replace(house.plan, gate=GatePlan(unannotated="allow")))
    assert holds(house) == {"s.bare": "definition"}
    await house.catalog.stock(link, offered)
    assert holds(house) == {"s.bare": None}
    assert "x-mcpax-gated" not in house.listed()["s.bare"]["_meta"]


async def test_clients_learn_when_an_operators_decision_changes_what_they_see() -> None:
    house = House()
    link, offered = house.link("s"), listing(tool("bare"))
    await house.catalog.stock(link, offered)
    told = len(house.told)
    house.catalog.rulings = Ruled("read_only")
    house.catalog.reconsider("s")
    await house.catalog.stock(link, offered)
    assert house.told[told:] == [frozenset({"tools"})]
    await house.catalog.stock(link, offered)
    assert len(house.told) == told + 1


# Changed definitions


async def test_a_changed_definition_is_noticed_with_both_digests() -> None:
    house = House()
    link = house.link("l", LEAF)
    await house.catalog.stock(link, listing(tool("a", description="reads"), tool("b"), tool("gone")))
    done = await house.catalog.stock(link, listing(tool("a", description="reads and sends"), tool("b"), tool("new")))
    [changed] = done.changed
    assert changed.name == "l.a"
    assert changed.before.digest != changed.after.digest
    assert bytes(changed.before.item["description"]) == b'"reads"'
    again = await house.catalog.stock(link, listing(tool("a", description="reads and sends"), tool("b")))
    assert again.changed == ()


@pytest.mark.req("AX-11.3-14")
@pytest.mark.parametrize(
    "after",
    [
        tool("t", full(mutable=True, reversible=True)),
        tool("t", full(schema_version="1.0.1")),
        tool("T", full()),
        tool("t", full(), inputSchema={"type": "object", "properties": {"x": {}}}),
        tool("t", full(), outputSchema={"type": "object"}),
        tool("t", full(), annotations={"readOnlyHint": True}),
    ],
)
async def test_each_part_of_a_definition_is_watched(after: Tool) -> None:
    house = House()
    link = house.link("l", LEAF)
    await house.catalog.stock(link, listing(tool("t", full())))
    assert [one.name for one in (await house.catalog.stock(link, listing(after))).changed] == ["l.t"]


@pytest.mark.req("AX-13.1-3")
async def test_a_new_session_with_the_same_definitions_changes_nothing_but_a_change_is_noticed() -> None:
    house = House()
    offered = listing(tool("t", full(), description="d"))
    first = house.link("l", Offer(kind="leaf", session="one"))
    await house.catalog.stock(first, offered)
    house.catalog.degrade(first)
    second = house.link("l", Offer(kind="leaf", session="two"))
    assert (await house.catalog.stock(second, offered)).changed == ()
    assert house.routes()["l.t"].link is second
    assert (len(house.told), house.notes) == (1, 2)
    third = house.link("l", Offer(kind="leaf", session="three"))
    other = listing(tool("t", full(), description="e"))
    assert (await house.catalog.stock(third, other)).changed != ()
    kept = house.link_items("l")
    await house.catalog.stock(third, other)
    assert house.link_items("l") is kept
    fourth = house.link("l", third.offer)  # of the same session, and another connection
    await house.catalog.stock(fourth, other)
    assert house.routes()["l.t"].link is fourth
    assert (await house.catalog.stock(fourth, offered)).changed != ()  # within a session as well


async def test_a_class_raised_or_an_availability_changed_on_the_way_is_no_changed_definition() -> None:
    house = House()
    link = house.link("agg", AGGREGATOR)
    await house.catalog.stock(link, listing(tool("t", full(latency_class="realtime"))))
    moved = full(latency_class="fast", availability="degraded")
    meta = {"x-mcpax-declared": {"latency_class": "realtime", "availability": "always"}}
    assert (await house.catalog.stock(link, listing(tool("t", moved, meta=meta)))).changed == ()
    lied = full(latency_class="fast")
    assert (await house.catalog.stock(link, listing(tool("t", lied)))).changed != ()


async def test_a_stricter_value_called_declared_does_not_hide_a_loosened_definition() -> None:
    house = House()
    link = house.link("agg", AGGREGATOR)
    await house.catalog.stock(link, listing(tool("t", full(mutable=True, reversible=False))))
    lied = tool("t", full(mutable=False), meta={"x-mcpax-declared": {"mutable": True, "odd": 1, "transport": 7}})
    assert (await house.catalog.stock(link, listing(lied))).changed != ()
    assert house.listed()["agg.t"]["_meta"]["x-mcpax-declared"] == {"mutable": True}


# Lives


async def test_a_link_that_was_superseded_drops_nothing_of_its_successor() -> None:
    house = House()
    old, new = house.link("l", LEAF), house.link("l", LEAF)
    await house.catalog.stock(old, listing("t"))
    await house.catalog.stock(new, listing("t"))
    house.catalog.drop(old)
    house.catalog.degrade(old)
    assert house.routes()["l.t"].link is new
    assert not house.link_items("l").degraded


async def test_a_link_that_leaves_while_its_list_is_prepared_leaves_no_items() -> None:
    house = House()
    link = house.link("l", LEAF)
    stocking = asyncio.ensure_future(house.catalog.stock(link, listing(*(f"t{n}" for n in range(1000)))))
    await asyncio.sleep(0)
    house.catalog.drop(link)
    done = await stocking
    assert (done.items, done.refused) == (None, None)
    assert house.catalog.namespace.link_items == ()


async def test_ten_thousand_tools_are_prepared_in_slices() -> None:
    house = House()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.ensure_future(others())
    await house.catalog.stock(house.link("agg", AGGREGATOR), listing(*(f"s{n % 50}.t{n}" for n in range(10_000))))
    waiting.cancel()
    assert len(house.routes()) == 10_000
    assert turns >= 49
    assert len({id(route.segments) for route in house.routes().values()}) == 50  # ways are shared


# Resources


@pytest.mark.parametrize("root", [None, "infra"])
async def test_a_resource_below_an_aggregator_has_one_prefix_that_grows(root: str | None) -> None:
    house = House(root_segment=root)
    resources = [{"uri": "mcpax://gw.leaf/file:///x", "name": "x"}, {"uri": "info:own", "name": "o"}]
    resources += [{"uri": uri, "name": "bad"} for uri in ("mcpax://A/x", "mcpax://gw", "mcpax://../x")]
    edge, leaf = house.link("edge", AGGREGATOR), house.link("leaf", LEAF)
    await house.catalog.stock(edge, listing(resources=resources))
    await house.catalog.stock(leaf, listing(resources=[{"uri": "file:///x", "name": "x"}]))
    way = "" if root is None else f"{root}."
    view = house.catalog.namespace.view(EVERYTHING)
    shown = [one["uri"] for one in json.loads(view.page("resources/list", Era.MODERN, "").items)]
    assert shown == [
        f"mcpax://{way}edge.gw.leaf/file:///x",
        f"mcpax://{way}edge/info:own",
        f"mcpax://{way}leaf/file:///x",
    ]
    assert view.find_resource(shown[0]) == (edge, "mcpax://gw.leaf/file:///x")
    assert view.find_resource(shown[1]) == (edge, "info:own")
    assert view.find_resource(shown[2]) == (leaf, "file:///x")
    assert view.find_resource(f"mcpax://{way}leaf.gw/file:///x") == []
    assert set(house.withheld("edge").values()) == {"namespace_invalid"}
    assert house.catalog.namespace.show_uri(edge, "mcpax://gw.leaf/file:///x") == shown[0]


@pytest.mark.parametrize(
    ("root", "pattern", "covered"),
    [
        (None, "leaf.*", True),
        (None, "le*", True),
        (None, "*", True),
        (None, "leaf.?", False),  # tools of one letter
        (None, "leaf.[!e]", False),
        (None, "leaf.*o", False),
        (None, "leaf.e*", False),
        (None, "leaf.[*]", False),
        ("infra", "leaf.*", False),  # no name begins so
        ("infra", "infra.leaf.*", True),
        ("infra", "infra.*", True),
        ("infra", "infra.other.*", False),
    ],
)
async def test_a_pattern_that_does_not_cover_a_server_shows_none_of_its_resources(
    root: str | None, pattern: str, covered: bool
) -> None:
    house = House(root_segment=root)
    leaf = house.link("leaf", LEAF)
    await house.catalog.stock(leaf, listing(tool("echo"), resources=[{"uri": "file:///x", "name": "x"}]))
    view = house.catalog.namespace.view(ViewKey(dotted=True, scope="admin", tools=(pattern,)))
    assert bool(json.loads(view.page("resources/list", Era.MODERN, "").items)) is covered
    assert bool(view.find_resource("file:///x")) is covered
    assert covered <= bool(view.tools)


async def test_after_other_rules_each_list_is_read_again_and_clients_are_informed() -> None:
    house = House()
    links = [house.link(segment) for segment in ("one", "two")]
    for link in links:
        await house.catalog.stock(link, listing("kept", "gone"))
    house.told.clear()
    rule = ToolRule(match="*.gone", hide=True)
    house.catalog.replan(Plan(workspace=Path(), data=Path(), tools=(rule,)))
    for link in links:
        await house.catalog.stock(link, listing("kept", "gone"))
    assert list(house.routes()) == ["one.kept", "two.kept"]
    assert house.told
    assert all(told == {"tools"} for told in house.told)


async def test_another_order_of_the_same_tools_is_no_change_for_clients() -> None:
    house = House()
    link = house.link("l", Offer(kind="leaf", session="one"))
    await house.catalog.stock(link, listing(tool("t", full()), tool("u", full())))
    await house.catalog.stock(link, listing(tool("u", full()), tool("t", full())))
    assert len(house.told) == 1
    await house.catalog.stock(link, listing(tool("u", full()), tool("t", full(), description="otherwise")))
    assert len(house.told) == 2


async def test_a_list_that_is_being_built_when_the_rules_change_follows_the_new_rules() -> None:
    house = House(gate=GatePlan(mode="open"))
    link = house.link("plant")
    many = listing(*(tool(f"t{number}", annotations={"destructiveHint": True}) for number in range(1000)))
    stocking = asyncio.ensure_future(house.catalog.stock(link, many))
    await asyncio.sleep(0)
    assert not stocking.done()
    house.catalog.replan(msgspec.structs.replace(house.plan, gate=GatePlan(mode="gated")))
    await stocking
    assert all(route.is_held for route in house.link_items("plant").tools)
