"""Does a hop change only what MCP-AX lets it change in a tool's metadata, and believe only what the sender may say?"""

import json
from typing import Any

import pytest
from msgspec import Raw

from interlock.ax.protocol.capability import (
    Availability,
    Capability,
    LatencyClass,
    as_object,
    needed_hints,
    read_capability,
)
from interlock.ax.protocol.hop_metadata import (
    ADOPTED,
    Offer,
    as_declared,
    at_its_strictest,
    declared_values,
    degraded_meta,
    lean_meta,
    least_latency_class,
    published_annotation,
    raise_to_hop,
    read_below,
    timeout_s,
)
from interlock.ax.protocol.names import is_nested, maybe_own_uri, show_uri
from interlock.wire.jsonrpc.codec import encode_value

LEAF = Offer(kind="leaf")
AGGREGATOR = Offer(kind="aggregator")


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def capability(**keys: object) -> Capability:
    found = read_capability(keys)
    assert isinstance(found, Capability)
    return found


@pytest.mark.req("AX-9.2-2")
@pytest.mark.parametrize(
    ("said", "hops"),
    [(1, 2), (7, 8), (0, 2), (-3, 2), ("4", 2), (2.0, 2), (True, 2), (None, 2), ([1], 2), (10**30, 10**30 + 1)],
)
def test_hops_count_up_from_an_aggregators_word_and_never_from_a_leafs(said: object, hops: int) -> None:
    meta = {"x-mcpax-hops": raw(said)}
    assert read_below(meta, AGGREGATOR).hops == hops
    assert read_below(meta, LEAF).hops == read_below(meta, ADOPTED).hops == 1
    assert read_below({}, AGGREGATOR).hops == 2


@pytest.mark.parametrize("offer", [ADOPTED, LEAF, AGGREGATOR])
def test_ax_keys_of_a_server_do_not_pass_and_others_do(offer: Offer) -> None:
    meta = {key: raw(1) for key in ("a", "x-mcpax-name", "X-MCPAX-Origin", "x-mcpax-future", "x-mcp-header", "z")}
    assert list(read_below(meta, offer).rest) == ["a", "x-mcp-header", "z"]


@pytest.mark.req("AX-11.3-17")
def test_flags_from_below_are_read_to_the_letter() -> None:
    assert read_below({"x-mcpax-safety": raw("irreversible_mutable")}, LEAF).flagged
    assert read_below({"x-mcpax-gated": Raw(b"true")}, AGGREGATOR).gated
    for odd in (b'"harmless"', b"true", b"null", b"{}", b"1"):
        assert not read_below({"x-mcpax-safety": Raw(odd)}, AGGREGATOR).flagged
    for odd in (b'"true"', b"false", b"1", b"null"):
        assert not read_below({"x-mcpax-gated": Raw(odd)}, AGGREGATOR).gated


def test_declared_values_are_believed_from_aggregators_if_the_values_are_valid() -> None:
    meta = {"x-mcpax-declared": raw({"latency_class": "realtime", "availability": "sometimes", "odd": False})}
    assert read_below(meta, AGGREGATOR).declared == {"latency_class": "realtime"}
    more = {"mutable": False, "idempotentHint": True, "transport": "x-lora"}
    bad = {"reversible": 1, "readOnlyHint": "yes", "transport_class": "native"}
    assert read_below({"x-mcpax-declared": raw({**more, **bad})}, AGGREGATOR).declared == more
    assert read_below(meta, LEAF).declared == {}
    for odd in (b"7", b"null", b'{"latency_class":7}', b"{"):
        assert read_below({"x-mcpax-declared": Raw(odd)}, AGGREGATOR).declared == {}


@pytest.mark.req("AX-9.2-3")
@pytest.mark.parametrize(
    ("link_ms", "times", "least"),
    [
        (0, [], "realtime"),
        (500, [], "realtime"),
        (700, [], "fast"),
        (5001, [], "standard"),
        (30_001, [], "slow"),
        (121_000, [], "batch"),
        (0, [2.0] * 19, "realtime"),
        (0, [2.0] * 20, "fast"),
        (0, [0.1] * 19 + [2.0], "realtime"),
        (0, [0.1] * 95 + [2.0] * 5, "realtime"),
        (0, [2.0] * 6 + [0.1] * 94, "fast"),
        (40_000, [2.0] * 20, "slow"),
    ],
)
def test_the_least_class_covers_the_way(link_ms: float, times: list[float], least: str) -> None:
    assert least_latency_class(link_ms, times).value == least


@pytest.mark.req("AX-9.2-3")
def test_a_class_is_raised_and_never_lowered() -> None:
    for declared in LatencyClass:
        for least in LatencyClass:
            found = raise_to_hop(capability(latency_class=declared.value), least).latency_class
            assert found is max(declared, least)


@pytest.mark.req("AX-9.2-3")
def test_the_timeout_follows_the_class_with_slack_for_the_hops_below() -> None:
    assert timeout_s(LatencyClass.FAST, 1, 300.0) == 5.0
    assert timeout_s(LatencyClass.FAST, 3, 300.0) == pytest.approx(5.1)
    assert timeout_s(LatencyClass.BATCH, 3, 300.0) is None
    assert timeout_s(None, 3, 200.0) == pytest.approx(200.1)


FULL = as_object(capability(mutable=False, latency_class="realtime", schema_version="1.2.3"))
ODD = f'{{"vendor": 1.50, {json.dumps(FULL)[1:-1]}, "nothing":null,"big":12345678901234567890123}}'


@pytest.mark.req("AX-9.2-1")
def test_a_full_annotation_passes_as_its_bytes() -> None:
    said = Raw(ODD.encode())
    read = read_capability(json.loads(ODD))
    assert isinstance(read, Capability)
    assert published_annotation(said, read) is said


@pytest.mark.req("AX-9.2-1")
def test_only_the_changed_key_is_written_again() -> None:
    said = Raw(ODD.encode())
    read = read_capability(json.loads(ODD))
    assert isinstance(read, Capability)
    shown = bytes(published_annotation(said, raise_to_hop(read, LatencyClass.SLOW)))
    assert json.loads(shown) == {**json.loads(ODD), "latency_class": "slow"}
    assert b'"vendor":1.50' in shown


def test_missing_keys_are_filled_in_behind_the_declared_keys() -> None:
    read = read_capability({"idempotent": True, "x": None})
    assert isinstance(read, Capability)
    shown = json.loads(bytes(published_annotation(raw({"idempotent": True, "x": None}), read)))
    assert list(shown)[:2] == ["idempotent", "x"]
    assert shown == as_object(read)
    assert json.loads(bytes(published_annotation(None, Capability()))) == as_object(Capability())


def test_the_owners_word_is_kept_over_several_changes() -> None:
    leaf = capability(latency_class="realtime")
    first = declared_values({}, leaf, raise_to_hop(leaf, LatencyClass.FAST))
    assert first == {"latency_class": "realtime"}
    middle = capability(latency_class="fast")
    assert declared_values(first, middle, raise_to_hop(middle, LatencyClass.SLOW)) == {"latency_class": "realtime"}
    assert declared_values({}, leaf, leaf) == {}


@pytest.mark.req("AX-13.2-1")
def test_a_degraded_tool_says_so_and_keeps_what_was_declared() -> None:
    said = capability(latency_class="fast", availability="scheduled")
    meta = {"x-mcpax-capability": raw(as_object(said)), "x-mcpax-declared": {"latency_class": "realtime"}, "x": 1}
    shown = degraded_meta(meta)
    assert json.loads(bytes(shown["x-mcpax-capability"])) == {**as_object(said), "availability": "degraded"}
    assert shown["x-mcpax-declared"] == {"latency_class": "realtime", "availability": "scheduled"}
    assert shown["x"] == 1
    already = capability(availability="degraded")
    shown = degraded_meta({"x-mcpax-capability": raw(as_object(already))})
    assert "x-mcpax-declared" not in shown
    assert already.availability is Availability.DEGRADED


@pytest.mark.parametrize(
    ("said", "annotations", "mutable"),
    [
        ({"mutable": False}, None, False),
        ({"mutable": False}, {"readOnlyHint": True}, False),
        ({"mutable": False}, {"readOnlyHint": False}, True),
        ({"mutable": False}, {"destructiveHint": True}, True),
        ({"mutable": True, "reversible": True, "idempotent": True, "auth_scope": "read"}, None, True),
        ({"mutable": True, "auth_scope": "admin"}, {"readOnlyHint": True}, True),
    ],
)
def test_an_unproved_word_only_tightens(said: dict[str, object], annotations: object, mutable: bool) -> None:
    before = capability(**said)
    after = at_its_strictest(before, annotations)
    assert after.mutable is mutable
    if mutable:
        assert not after.reversible
        assert not after.idempotent
        assert after.auth_scope.value == ("admin" if said.get("auth_scope") == "admin" else "write")
    else:
        assert after is before


def test_the_declared_annotation_is_found_again_under_what_hops_changed() -> None:
    below = raw({"latency_class": "fast", "mutable": False})
    assert as_declared(below, {"latency_class": "realtime"}) == {"latency_class": "realtime", "mutable": False}
    assert as_declared(None, {}) is None
    assert as_declared(Raw(b"[1]"), {}) == [1]
    assert as_declared(Raw(b"{"), {}) is None


def test_uris_nest_and_unnest_by_cutting_a_literal_prefix() -> None:
    own = "file:///a.b/c?x=mcpax://y"
    leaf = show_uri("stm32h7", own, aggregator=False)
    assert leaf == "mcpax://stm32h7/file:///a.b/c?x=mcpax://y"
    edge = show_uri("infra.edge", leaf, aggregator=True)
    assert edge == "mcpax://infra.edge.stm32h7/file:///a.b/c?x=mcpax://y"
    assert maybe_own_uri("infra.edge", edge, aggregator=True) == leaf
    assert maybe_own_uri("stm32h7", leaf, aggregator=False) == own
    assert maybe_own_uri("infra.edge", edge, aggregator=False) is None
    assert maybe_own_uri("infra.ed", edge, aggregator=True) is None
    assert maybe_own_uri("edge", show_uri("edge", "info:x", aggregator=True), aggregator=True) == "info:x"


@pytest.mark.parametrize("uri", ["mcpax://a/x", "mcpax://a.b/", "mcpax://a.b-c_/mcpax://q"])
def test_a_uri_of_the_tree_has_valid_segments(uri: str) -> None:
    assert is_nested(uri)


@pytest.mark.parametrize(
    "uri", ["mcpax://a", "mcpax:///x", "mcpax://A/x", "mcpax://a..b/x", "http://a/x", "mcpax://" + "a" * 64 + "/"]
)
def test_a_uri_that_only_resembles_a_tree_uri_is_no_tree_uri(uri: str) -> None:
    assert not is_nested(uri)


# What ordinary clients are told

NOTHING = {
    "latency_class": "standard",
    "consistency": "best_effort",
    "mutable": True,
    "reversible": False,
    "idempotent": False,
    "transport": "native",
    "auth_scope": "write",
    "cost_class": "free",
    "availability": "always",
    "schema_version": "0.0.0",
}
FLAGGED = {"x-mcpax-hops": 1, "x-mcpax-safety": "irreversible_mutable"}
FINAL = {"x-mcpax-hops": 1, "x-mcpax-safety": "irreversible_mutable", "x-mcpax-gated": True}
READS = {"mutable": False, "reversible": True, "auth_scope": "read"}


@pytest.mark.req("AX-3.2-2")
@pytest.mark.parametrize(
    ("capability", "marks", "annotations", "left"),
    [
        ({}, FINAL, None, FLAGGED),
        ({}, FINAL, {"readOnlyHint": False, "title": "T"}, FLAGGED),
        (READS, {"x-mcpax-hops": 1}, {"readOnlyHint": True}, {"x-mcpax-hops": 1}),
        ({"reversible": True, "idempotent": True}, {}, {"destructiveHint": False, "idempotentHint": True}, {}),
        # What the hints do not say.
        (READS, {"x-mcpax-hops": 1}, None, {"x-mcpax-capability": READS, "x-mcpax-hops": 1}),
        ({"latency_class": "slow"}, FINAL, None, {"x-mcpax-capability": {"latency_class": "slow"}, **FLAGGED}),
        (
            {"x-vendor": [1], "nothing": None},
            FINAL,
            None,
            {"x-mcpax-capability": {"x-vendor": [1], "nothing": None}, **FLAGGED},
        ),
        # Marks that the capability does not bring with it.
        (
            {},
            {"x-mcpax-hops": 3, "x-mcpax-safety": "irreversible_mutable"},
            None,
            {"x-mcpax-hops": 3, "x-mcpax-safety": "irreversible_mutable", "x-mcpax-gated": False},
        ),
        (
            READS,
            {"x-mcpax-safety": "irreversible_mutable", "x-mcpax-gated": True},
            {"readOnlyHint": True},
            {"x-mcpax-safety": "irreversible_mutable", "x-mcpax-gated": True},
        ),
        (
            {"availability": "degraded"},
            {**FINAL, "x-mcpax-declared": {"availability": "always"}},
            None,
            {
                "x-mcpax-capability": {"availability": "degraded"},
                "x-mcpax-declared": {"availability": "always"},
                **FLAGGED,
            },
        ),
    ],
)
def test_only_differences_from_the_defaults_are_shown_unasked(
    capability: dict[str, Any], marks: dict[str, Any], annotations: Any, left: dict[str, Any]
) -> None:
    meta = {"x-mcpax-capability": raw({**NOTHING, **capability}), **marks}
    assert json.loads(encode_value(lean_meta(meta, annotations))) == left


@pytest.mark.parametrize(
    ("published", "given", "needed"),
    [
        ({"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False}, None, {}),
        (
            {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True},
            None,
            {"readOnlyHint": True, "idempotentHint": True},
        ),
        ({"readOnlyHint": False, "destructiveHint": False}, {"idempotentHint": True}, {"destructiveHint": False}),
        (
            {"readOnlyHint": False, "destructiveHint": True},
            {"readOnlyHint": True, "destructiveHint": False},
            {"readOnlyHint": False, "destructiveHint": True},
        ),
        ({"destructiveHint": False}, {"readOnlyHint": True}, {}),
    ],
)
def test_hints_that_say_what_mcp_says_anyway_are_not_needed(
    published: dict[str, bool], given: Any, needed: dict[str, bool]
) -> None:
    assert needed_hints(published, given) == needed
