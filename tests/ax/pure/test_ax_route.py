"""Is a request on an AX link taken only by the node its route names, and for the tool its route names?"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

import interlock.ax.protocol.route
from interlock.ax.protocol.route import (
    CURSOR,
    ROUTE,
    Routed,
    advance,
    as_meta,
    check,
    follow_name,
    follow_uri,
    read_untrusted,
    start,
)
from interlock.wire.refusal import ROUTE_MISMATCH, Refusal

PATH = ("infra", "edge", "stm32h7", "dma2d_status")


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def read(route: object = None, cursor: object = None) -> Routed | Refusal | None:
    meta = {key: raw(value) for key, value in ((ROUTE, route), (CURSOR, cursor)) if value is not None}
    return read_untrusted({}, meta)


def refused(found: object) -> bool:
    return isinstance(found, Refusal) and found.code == ROUTE_MISMATCH and found.message == "route_mismatch"


def test_a_request_without_a_route_has_none() -> None:
    assert read_untrusted({"name": raw("x")}, {"progressToken": raw(1)}) is None


@pytest.mark.req("AX-7.2-5")
def test_the_walk_of_the_draft() -> None:
    at_root = start("infra", PATH[1:])
    assert at_root == Routed(path=PATH, cursor=1)  # matched at 0, inside
    on_first_link = read_untrusted({}, as_meta(at_root))
    assert on_first_link == at_root
    assert check(on_first_link, segment="edge", rest=("stm32h7", "dma2d_status")) is None
    on_second_link = read_untrusted({}, as_meta(advance(on_first_link)))
    assert on_second_link == Routed(path=PATH, cursor=2)
    assert check(on_second_link, segment="stm32h7", rest=("dma2d_status",)) is None
    assert advance(on_second_link).receiver == "dma2d_status"


def test_a_root_without_a_segment_forwards_position_zero() -> None:
    routed = start(None, ("jira", "create"))
    assert (routed.path, routed.cursor, routed.receiver) == (("jira", "create"), 0, "jira")


@pytest.mark.req("AX-7.2-3", "AX-7.2-6")
def test_the_path_is_the_same_on_every_link_and_grows_by_one_per_segment() -> None:
    routed = start("root", ("a", "b", "c", "tool"))
    seen = [routed]
    while len(seen[-1].rest) > 1:
        seen.append(advance(seen[-1]))
    assert {one.path for one in seen} == {("root", "a", "b", "c", "tool")}
    assert [one.cursor for one in seen] == [1, 2, 3]
    assert {bytes(as_meta(one)[ROUTE]) for one in seen} == {b'["root","a","b","c","tool"]'}


@pytest.mark.req("AX-7.2-1")
@pytest.mark.parametrize(
    ("route", "cursor"),
    [
        ("infra.edge", 0),
        ({"0": "infra"}, 0),
        ([], 0),
        (["infra", 7], 0),
        (["infra", None], 0),
        (["infra", ["edge"]], 0),
        (["infra", "Edge"], 0),
        (["infra", ""], 0),
        (["infra", "a.b"], 0),
        (["infra\n", "edge"], 0),
        (["infra", "ü"], 0),
        (["a" * 64, "b"], 0),
        (["a" * 63] * 5, 0),
        (list(PATH), -1),
        (list(PATH), 4),
        (list(PATH), 10**30),
        (list(PATH), 10**7),
        (list(PATH), 1.0),
        (list(PATH), 0.5),
        (list(PATH), "1"),
        (list(PATH), True),
        (list(PATH), [1]),
        (list(PATH), None),
        (None, 1),
        (["a"] * 3000, 0),
    ],
)
def test_a_malformed_route_is_refused(route: object, cursor: object) -> None:
    assert refused(read(route, cursor))


@pytest.mark.req("AX-7.2-1")
@pytest.mark.parametrize("meta", [{ROUTE: Raw(b'["a"]')}, {CURSOR: Raw(b"0")}])
def test_a_route_without_its_cursor_or_the_other_way_round_is_refused_as_such(meta: dict[str, Raw]) -> None:
    refusal = read_untrusted({}, meta)
    assert isinstance(refusal, Refusal)
    assert "one of them is missing" in (refusal.details or {})["detail"]


@pytest.mark.req("AX-7.2-1")
@pytest.mark.parametrize(
    "meta",
    [
        {ROUTE: Raw(b"null"), CURSOR: Raw(b"0")},
        {ROUTE: Raw(b'["a"]'), CURSOR: Raw(b"null")},
        {ROUTE: Raw(b'["\\ud800"]'), CURSOR: Raw(b"0")},
        {ROUTE: Raw(b"[" * 3000), CURSOR: Raw(b"0")},
    ],
)
def test_an_unreadable_route_is_refused(meta: dict[str, Raw]) -> None:
    assert refused(read_untrusted({}, meta))


def test_the_keys_are_read_from_params_too_and_must_agree() -> None:
    keys = as_meta(start("infra", PATH[1:]))
    assert read_untrusted(keys, {}) == read_untrusted({}, keys) == read_untrusted(keys, keys)
    assert refused(read_untrusted(keys, as_meta(start("other", PATH[1:]))))


@pytest.mark.req("AX-7.2-4")
@pytest.mark.parametrize(
    ("segment", "rest"),
    [
        ("infra", PATH[1:]),
        ("other", PATH[2:]),
        ("edge", ("stm32h7", "other")),
        ("edge", ("dma2d_status",)),
        ("edge", ("stm32h7.dma2d_status",)),
        ("edge", ("stm32h7", "dma2d_status", "x")),
        ("edge", ()),
    ],
)
def test_another_receiver_or_another_tool_is_refused(segment: str, rest: tuple[str, ...]) -> None:
    assert refused(check(Routed(path=PATH, cursor=1), segment=segment, rest=rest))


@pytest.mark.req("AX-7.2-4")
@pytest.mark.parametrize("name", ["dma2d_status", "stm32h7.dma2d_status", "infra.edge.stm32h7.dma2d_status"])
def test_the_local_name_the_rest_of_it_and_the_whole_name_lead_to_the_tool_of_the_route(name: str) -> None:
    assert follow_name(Routed(path=PATH, cursor=1), segment="edge", name=name) == "stm32h7.dma2d_status"


@pytest.mark.req("AX-7.2-4")
@pytest.mark.parametrize(
    ("cursor", "segment", "name"),
    [
        (1, "edge", "stm32h7"),
        (1, "edge", "edge.stm32h7.dma2d_status"),
        (1, "edge", "stm32h7__dma2d_status"),
        (1, "edge", "other.dma2d_status"),
        (1, "edge", "DMA2D_STATUS"),
        (1, "edge", ""),
        (1, "other", "dma2d_status"),
        (0, "edge", "dma2d_status"),
        (3, "dma2d_status", "dma2d_status"),  # the way ends here: there is no tool
    ],
)
def test_any_other_name_or_receiver_is_a_disagreement(cursor: int, segment: str, name: str) -> None:
    assert refused(follow_name(Routed(path=PATH, cursor=cursor), segment=segment, name=name))


@pytest.mark.parametrize("uri", ["a://b/c", "mcpax://gw.plc/a://b/c", "mcpax://infra.edge.gw.plc/a://b/c"])
def test_the_route_of_a_resource_leads_to_the_server_that_has_it(uri: str) -> None:
    routed = Routed(path=("infra", "edge", "gw", "plc"), cursor=1)
    assert follow_uri(routed, segment="edge", uri=uri) == "mcpax://gw.plc/a://b/c"


@pytest.mark.parametrize(
    ("segment", "uri"), [("gw", "a://b"), ("edge", "mcpax://gw/a://b"), ("edge", "mcpax://edge.gw.plc/a://b")]
)
def test_a_resource_of_another_server_is_a_disagreement(segment: str, uri: str) -> None:
    assert refused(follow_uri(Routed(path=("infra", "edge", "gw", "plc"), cursor=1), segment=segment, uri=uri))
    assert refused(follow_uri(Routed(path=("infra", "edge"), cursor=1), segment="edge", uri=uri))


@pytest.mark.req("AX-7.2-2")
@pytest.mark.parametrize("odd", ["a__b", "-", "_", "007", "x-y_z"])
def test_segments_that_look_like_joints_stay_whole(odd: str) -> None:
    routed = read_untrusted({}, as_meta(start(odd, (odd, odd))))
    assert isinstance(routed, Routed)
    assert check(routed, segment=odd, rest=(odd,)) is None
    assert refused(check(routed, segment=odd, rest=(odd, odd)))


@given(st.binary(max_size=60), st.binary(max_size=12))
def test_any_bytes_give_a_route_or_the_one_refusal(route: bytes, cursor: bytes) -> None:
    found = read_untrusted({}, {ROUTE: Raw(route), CURSOR: Raw(cursor)})
    assert refused(found) or isinstance(found, Routed)


@pytest.mark.req("AX-7.2-2")
def test_no_name_is_cut_up() -> None:
    text = Path(interlock.ax.protocol.route.__file__).read_text(encoding="utf-8")
    assert "split(" not in text
    assert "partition(" not in text
