"""Is a namespace that grew step by step the same as one made at once, and is only what changed told and made anew?"""

import asyncio
import gc
import json
import random
import weakref
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalog.in_process.test_link_items import AGGREGATOR, EVERYTHING, LEAF, House, Tool, full, listing, tool
from tests.support.scale import examples

from interlock.ax.protocol.names import alias, is_qualified, may_collide, withhold_colliding_aliases
from interlock.catalog.catalog import Namespace, View
from interlock.catalog.routes import ShownTools
from interlock.core.calls.caller import ViewKey
from interlock.links.connected_link import ServerLink
from interlock.links.listing import Listing
from interlock.mcp.items import decode_cursor_untrusted, encode_cursor
from interlock.mcp.methods import Era

KEYS = (
    ViewKey(scope="admin", dotted=True),
    ViewKey(scope="read"),
    ViewKey(scope="write", tools=("a*", "*.other")),
    ViewKey(scope="admin", only="a"),
)
SEGMENTS = ("a", "a-b", "a_b", "b", "zz")
LONG = "l" * 60  # a name of two of them is too long to be spelled out in an alias


class Told(House):
    """A house that hears of metadata too."""

    def __init__(self, **ax: Any) -> None:
        super().__init__(**ax)
        self.marked: list[frozenset[str]] = []
        self.catalog.on_metadata = self.marked.append

    def anew(self) -> Namespace:
        """The same link_items, with nothing taken from before."""
        now = self.catalog.namespace
        link_items = tuple(sorted(now.link_items, key=lambda items: items.link.segment + "."))
        names = [route.qualified for items in link_items for route in (*items.tools, *items.prompts)]
        clashing = {one.name: one for one in withhold_colliding_aliases(names).withheld}
        return Namespace(now.version, link_items, None, clashing, ShownTools())


def seen(view: View) -> dict[str, Any]:
    lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
    return {
        "tools": {name: id(route) for name, route in view.tools.items()},
        "prompts": {name: id(route) for name, route in view.prompts.items()},
        "tool_routes": [id(route) for route in view.tool_routes],
        "prompt_routes": [id(route) for route in view.prompt_routes],
        "pages": [view.page(method, era, after) for method in lists for era in Era for after in ("", "a.t2")],
        "private": view.private,
        "ttl_s": view.ttl_s,
    }


def offered(numbers: list[int]) -> Listing:
    tools = [tool(f"t{number}", {"mutable": number % 3 == 0}, description=f"{number}") for number in numbers]
    tools += [tool(LONG + LONG[:3])] if 7 in numbers else []
    prompts = [{"name": f"p{number}"} for number in numbers if number % 2]
    return listing(*tools, prompts=prompts, resources=[{"uri": f"x://{number}"} for number in numbers[:2]])


Step = tuple[str, str, list[int], bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("stock", "stock", "stock", "degrade", "drop")),
        st.sampled_from(SEGMENTS),
        st.lists(st.integers(0, 8), max_size=5, unique=True),
        st.booleans(),
    ),
    max_size=20,
)


@settings(max_examples=examples(30, 600), deadline=None)
@given(steps=STEPS)
def test_every_view_is_what_it_would_be_if_it_were_made_at_once(steps: list[Step]) -> None:
    async def walk() -> None:
        house = Told()
        links: dict[str, ServerLink] = {}
        for what, segment, numbers, look in steps:
            link = links.setdefault(segment, house.link(segment, LEAF))
            if what == "stock":
                await house.catalog.stock(link, offered(numbers))
            elif what == "degrade":
                house.catalog.degrade(link)
            else:
                house.catalog.drop(links.pop(segment))
            now, anew = house.catalog.namespace, house.anew()
            assert now.link_items == anew.link_items
            assert now.clashing == anew.clashing
            for key in KEYS if look else ():
                assert seen(now.view(key)) == seen(anew.view(key)), key

    asyncio.run(walk())


NAMES = st.lists(st.text("ab_-", min_size=1, max_size=30), min_size=1, max_size=6).map(".".join).filter(is_qualified)


@given(one=NAMES, other=NAMES)
def test_only_names_that_were_shortened_can_share_an_alias(one: str, other: str) -> None:
    assert one == other or alias(one) != alias(other) or (may_collide(alias(one)) and may_collide(alias(other)))


def test_a_shortened_alias_may_collide_and_a_spelled_alias_may_not() -> None:
    assert may_collide(alias(".".join([LONG, LONG])))
    assert not may_collide(alias("a" * 60 + "." + "bb"))
    assert not may_collide("x" * 64)


async def test_names_that_share_an_alias_are_withheld_and_come_back_when_the_other_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("interlock.ax.protocol.names._digest", lambda text, digits: "0" * digits)
    house = Told()
    name = f"{LONG}.{'m' * 30}"
    links = [house.link(segment, AGGREGATOR) for segment in ("xx-aaaaaaaaaaaaaaaaa", "xx-aaaaaaaaaaaaaaaab")]
    for link in links:
        await house.catalog.stock(link, listing(name, "short.one"))
    withheld = [f"{link.segment}.{name}" for link in links]
    assert sorted(house.catalog.namespace.clashing) == withheld
    assert sorted(house.routes()) == [f"{link.segment}.short.one" for link in links]
    house.catalog.drop(links[0])
    assert house.catalog.namespace.clashing == {}
    assert sorted(house.routes()) == [withheld[1], f"{links[1].segment}.short.one"]


# What is told


def changed(house: Told) -> tuple[list[frozenset[str]], list[frozenset[str]]]:
    said = house.told.copy(), house.marked.copy()
    house.told.clear()
    house.marked.clear()
    return said


async def test_clients_learn_of_definitions_and_parents_of_metadata_too() -> None:
    house = Told()
    link = house.link("l", LEAF)

    async def list_(*tools: Tool) -> tuple[list[frozenset[str]], list[frozenset[str]]]:
        await house.catalog.stock(link, listing(*tools))
        return changed(house)

    tools, nothing = [frozenset({"tools"})], list[frozenset[str]]()
    assert await list_(tool("t", {"mutable": False})) == (tools, nothing)
    assert await list_(tool("t", {"mutable": False})) == (nothing, nothing)
    assert await list_(tool("t", {"mutable": False, "cost_class": "metered"})) == (nothing, tools)
    assert await list_(tool("t", {"mutable": False, "cost_class": "metered"}, description="new")) == (tools, nothing)
    assert await list_(tool("t", {"mutable": True, "cost_class": "metered"}, description="new")) == (tools, nothing)
    house.catalog.degrade(link)
    assert changed(house) == (nothing, tools)
    house.catalog.degrade(link)
    assert changed(house) == (nothing, nothing)
    assert await list_(tool("t", {"mutable": True, "cost_class": "metered"}, description="new")) == (nothing, tools)
    house.catalog.drop(link)
    assert changed(house) == (tools, nothing)


@pytest.mark.parametrize("kind", ["tools", "prompts", "resources"])
async def test_a_list_in_another_order_is_news_for_parents_only(kind: str) -> None:
    house = Told()
    link = house.link("l", LEAF)
    key = "uri" if kind == "resources" else "name"
    pair: list[Tool] = [{key: "x:one"}, {key: "x:two"}] if kind != "tools" else [tool("one"), tool("two")]

    async def list_(offered: list[Tool]) -> None:
        await house.catalog.stock(link, listing(*offered) if kind == "tools" else listing(**{kind: offered}))

    await list_(pair)
    changed(house)
    await list_(pair[::-1])
    assert changed(house) == ([], [frozenset({kind})])
    await list_(pair[::-1])
    assert changed(house) == ([], [])


async def test_an_aggregators_list_keeps_its_order_when_only_some_of_it_is_new() -> None:
    house = House()
    link = house.link("edge", AGGREGATOR)
    old = listing(*(tool(name, full()) for name in ("b.two", "a.one", "b.one")))
    await house.catalog.stock(link, old)
    new = listing(*(tool(name, full()) for name in ("b.zero", "b.two", "a.two", "b.one", "a.one")))
    await house.catalog.stock(link, same_items(old, new))
    assert list(house.routes()) == ["edge.b.zero", "edge.b.two", "edge.a.two", "edge.b.one", "edge.a.one"]


async def test_a_walk_over_pages_loses_no_tool_while_servers_come_go_and_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("interlock.catalog.catalog.PAGE_ITEMS", 2)
    house = House()
    links = {segment: house.link(segment) for segment in ("m", "d", "x")}

    async def list_(segment: str, *names: str) -> None:
        await house.catalog.stock(links[segment], listing(*(tool(name, full()) for name in names)))

    def page(cursor: str) -> tuple[list[str], str | None]:
        view = house.catalog.namespace.view(EVERYTHING)
        listed = view.page("tools/list", Era.MODERN, decode_cursor_untrusted(cursor) or "")
        return [shown["name"] for shown in json.loads(listed.items)], listed.next_cursor

    for segment in links:
        await list_(segment, "c", "b", "a")
    first, cursor = page("")
    assert first == ["d.c", "d.b"] and cursor is not None
    assert page(cursor)[0] == ["d.a", "m.c"]
    await list_("d", "z", "c", "b", "y", "a")  # before and after the place
    assert page(cursor)[0] == ["d.y", "d.a"]
    await list_("d", "c", "a")  # the item at the place is gone: the items of its server are repeated
    assert page(cursor)[0] == ["d.c", "d.a"]
    house.catalog.drop(links["d"])
    assert page(cursor) == (["m.c", "m.b"], encode_cursor("m/m.b"))
    for segment in ("m", "x"):
        house.catalog.drop(links[segment])
    assert page(cursor) == ([], None)


async def test_servers_are_listed_as_configured_and_a_new_order_is_news() -> None:
    house = House()
    segments = ("plant", "z", "a", "k")  # k is not configured
    links = [house.link(segment) for segment in segments]
    house.catalog.replan(msgspec.structs.replace(house.plan, servers=tuple(link.plan for link in links[:3])))
    for link in links[::-1]:
        await house.catalog.stock(link, listing("t"))
    assert list(house.routes()) == ["plant.t", "z.t", "a.t", "k.t"]
    house.told.clear()
    house.catalog.replan(msgspec.structs.replace(house.plan, servers=tuple(link.plan for link in links[2::-1])))
    assert list(house.routes()) == ["a.t", "z.t", "plant.t", "k.t"]
    assert house.told == [frozenset(("tools", "prompts", "resources"))]


# What is kept


def same_items(old: Listing, new: Listing) -> Listing:
    """As `read_list` gives it: an item whose bytes are the same is the same object."""
    known = {name: (name, item) for name, item in old.tools.items}
    items = tuple(
        known[name] if name in known and known[name][1] == item else (name, item) for name, item in new.tools.items
    )
    return msgspec.structs.replace(new, tools=msgspec.structs.replace(new.tools, items=items))


@pytest.mark.parametrize("offer", [LEAF, AGGREGATOR], ids=["leaf", "aggregator"])
async def test_tools_that_are_listed_as_before_keep_their_routes(offer: Any) -> None:
    house = Told()
    link = house.link("l", offer)
    first = listing(*(tool(f"t{number}") for number in range(20)))
    await house.catalog.stock(link, first)
    before = house.routes()
    second = same_items(first, listing(*(tool(f"t{number}") for number in range(1, 20)), tool("new")))
    await house.catalog.stock(link, second)
    after = house.routes()
    assert after.keys() == before.keys() - {"l.t0"} | {"l.new"}
    assert all(after[name] is before[name] for name in after.keys() & before.keys())


async def test_a_name_that_is_listed_twice_is_withheld_though_one_of_the_two_was_there_before() -> None:
    house = Told()
    link = house.link("l", AGGREGATOR)
    first = listing(tool("x.t"), tool("x.u"))
    await house.catalog.stock(link, first)
    second = listing(tool("x.t"), tool("x.u"), tool("x.t", description="another"))
    items = (first.tools.items[0], first.tools.items[1], second.tools.items[2])
    tools = msgspec.structs.replace(second.tools, items=items)
    await house.catalog.stock(link, msgspec.structs.replace(second, tools=tools))
    assert list(house.routes()) == ["l.x.u"]
    assert house.withheld("l") == {"x.t": "duplicate_in_manifest"}


async def test_other_rules_build_every_route_again() -> None:
    house = Told()
    link = house.link("l", LEAF)
    offer = listing(tool("t", {"mutable": True}))
    await house.catalog.stock(link, offer)
    before = house.routes()["l.t"]
    house.catalog.replan(house.plan)
    await house.catalog.stock(link, offer)
    assert house.routes()["l.t"] is not before


async def test_snapshots_that_were_replaced_leave_nothing_for_the_collector() -> None:
    house = Told()
    links = [house.link(f"s{number}", LEAF) for number in range(5)]
    for link in links:
        await house.catalog.stock(link, listing("t"))
    gc.collect()
    gc.disable()
    try:
        gone = []
        for round_ in range(10):
            now = house.catalog.namespace
            seen(now.view(random.Random(round_).choice(KEYS)))
            gone.append(weakref.ref(now))
            del now
            await house.catalog.stock(links[round_ % 5], listing("t", f"t{round_}"))
        for key in KEYS:
            house.catalog.namespace.view(key)
        assert [ref() for ref in gone] == [None] * 10
    finally:
        gc.enable()
