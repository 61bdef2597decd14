"""The topology C.3 of the draft: seven nodes, TLS between them, under load, with processes killed one after another."""

import time
from collections.abc import Iterator

import pytest
from tests.ax.regions import GRACE_S, PLACES, Load, Regions, regions
from tests.ax.tree import parent, wait_parent
from tests.support.node_process import wait_for

INTERVAL_S = 5.0  # of a node's heartbeat
LONG = "a_name_so_long_that_no_alias_can_hold_all_of_it_and_its_region"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    with regions(tmp_path_factory.mktemp("regions")) as started:
        yield started


def test_the_four_prefixes_exist_and_equal_names_reach_the_right_region(tree: Regions) -> None:
    assert {name for name in tree.names() if name.endswith(".count")} == {
        "global.us.east.till.count",
        "global.us.west.till.count",
        "global.eu.west.till.count",
        "global.eu.east.till.count",
    }
    with Load(tree, "plain", clients=2) as load:
        load.wait_more(*PLACES)
    assert load.wrong == []
    assert load.errors == {}
    assert tree.done() == dict.fromkeys(load.results, 1)


@pytest.mark.req("AX-C.3-2")
def test_the_region_can_be_read_from_every_form_of_a_name(tree: Regions) -> None:
    with tree.wire() as wire:
        aliases = {
            one["_meta"]["x-mcpax-name"]: one["name"] for one in wire.modern("tools/list").message["result"]["tools"]
        }
    for place in PLACES:
        region = f"global__{place.replace('.', '__')}"
        assert aliases[f"global.{place}.till.count"] == f"{region}__till__count"
        short = aliases[f"global.{place}.till.{LONG}"]
        assert len(short) == 64
        assert short[:16] == region[:16] == region
        assert short.endswith(LONG[-35:])
        with tree.wire() as wire:
            answer = wire.modern("tools/call", {"name": short, "arguments": {}}).message["result"]
        assert answer["content"][0]["text"] == place


@pytest.mark.parametrize(
    ("victim", "lost"),
    [
        ("us", ("us.east", "us.west")),
        ("us.west", ("us.west",)),
        ("till us.east", ("us.east",)),
        ("global", ()),
    ],
    ids=["child of the root", "grandchild", "leaf", "root"],
)
def test_a_kill_under_load_loses_no_answer_and_makes_none_wrong(
    tree: Regions, victim: str, lost: tuple[str, ...]
) -> None:
    before = tree.done()
    gone = {f"global.{place}.till.count" for place in lost}
    struck = tree.tills[victim[5:]] if victim.startswith("till ") else tree.sites[victim]
    with Load(tree, victim.replace(" ", "-")) as load:
        load.wait_more(*PLACES)
        struck.kill()
        if lost:
            began = time.monotonic()
            left = tree.wait_names(set(), gone, INTERVAL_S)
            assert time.monotonic() - began < INTERVAL_S + GRACE_S
            standing = [place for place in PLACES if place not in lost]
            assert {f"global.{place}.till.count" for place in standing} <= left
            load.wait_more(*standing)
        struck.again()
        tree.wait_names(gone, set())
        load.wait_more(*PLACES)
    done = tree.done() - before
    assert load.wrong == []
    assert max(done.values()) == 1
    assert not [key for key in load.results if done[key] != 1]  # what was said to be done was done, there, once
    unsure = {key for key, error in load.errors.items() if error.get("data", {}).get("outcome") == "unknown"}
    assert done.keys() <= load.results.keys() | unsure | set(load.unanswered)  # and nothing else was, but what may be
    for place, error in ((place, error) for (place, _), error in load.errors.items()):
        assert place in lost or victim == "global", error
        assert (error["code"], error["message"].partition(":")[0]) in (
            (32002, "tool_degraded"),
            (-32601, "tool_not_found"),
        ), error
    assert not load.unanswered or victim == "global"


@pytest.mark.req("AX-C.3-1")
def test_regions_whose_aggregator_is_killed_are_back_below_their_backup_and_the_others_do_not_notice(
    tree: Regions,
) -> None:
    moved = {"global.us.eu-west.till.count", "global.us.eu-east.till.count"}
    with Load(tree, "moving") as load:
        load.wait_more(*PLACES)
        tree.sites["eu"].kill()
        began = time.monotonic()
        tree.wait_names(moved, {"global.eu.west.till.count", "global.eu.east.till.count"}, 3 * INTERVAL_S)
        with tree.wire() as wire:
            for name in moved:
                call = {"name": name, "arguments": {"token": f"moved-{name}"}}
                wait_for(lambda call=call: "result" in wire.modern("tools/call", call).message)
        assert time.monotonic() - began < 3 * INTERVAL_S
        load.wait_more("us.east", "us.west")
    assert load.wrong == []
    assert {place for place, _ in load.errors} == {"eu.west", "eu.east"}
    assert parent(tree.sites["eu.west"].node, 1)["state"] == "registered"
    tree.sites["eu"].again()
    wait_parent(tree.sites["eu"].node, {"state": "registered"})
    tree.home("eu.west", "eu.east")
