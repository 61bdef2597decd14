"""Do notifications go up in order, at the rate allowed, marked with their origin and otherwise as they came?"""

import itertools
import json
import random
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.support.scale import quick_or

from interlock.ax.protocol.messages import OVERFLOW, SUBSERVER_LOST, TOOLS_REFUSED
from interlock.ax.protocol.names import WithheldName
from interlock.ax.protocol.notifications import (
    BUFFER_BYTES_MAX,
    SEGMENTS_COUNTED_MAX,
    Drops,
    NoticeGate,
    Overflow,
    Release,
    as_log,
    lost_notice,
    overflow,
    prefix,
    refused_notice,
)
from interlock.wire.jsonrpc.codec import Notification

EVENT = "notifications/vendor/event"
TOOLS = "notifications/tools/list_changed"
UUID = "550e8400-e29b-41d4-a716-446655440000"


def number(count: int) -> Raw:
    return Raw(b'{"n":%d}' % count)


def flood(gate: NoticeGate, count: int, now: float, first: int = 0) -> Release:
    return [one for n in range(first, first + count) for one in gate.receive(EVENT, number(n), now)]


def numbers(released: Release) -> list[int]:
    return [
        json.loads(bytes(one.params))["n"] for one in released if isinstance(one, Notification) and one.method == EVENT
    ]


def overflows(released: Release) -> list[Overflow]:
    return [one for one in released if isinstance(one, Overflow)]


def drain(gate: NoticeGate, until: float = float("inf")) -> list[tuple[float, Notification | Overflow]]:
    """Time passes from deadline to deadline."""
    seen: list[tuple[float, Notification | Overflow]] = []
    while (deadline := gate.next_deadline()) is not None and deadline <= until:
        released = gate.on_deadline(deadline)
        assert released, "a deadline at which nothing is due"
        seen.extend((deadline, one) for one in released)
    return seen


@pytest.mark.req("AX-12-3")
@pytest.mark.parametrize("start", [0.0, 1234567.891, 3e8])
def test_a_burst_passes_up_to_the_rate_and_the_rest_follows_at_the_rate(start: float) -> None:
    gate = NoticeGate("leaf", Drops())
    assert numbers(flood(gate, 150, start)) == list(range(100))
    later = drain(gate)
    assert numbers([one for _, one in later]) == list(range(100, 150))
    assert [at - start for at, _ in later] == pytest.approx([n / 100 for n in range(1, 51)], abs=1e-6)


@pytest.mark.req("AX-12-3")
def test_the_rate_is_settable_and_each_subserver_has_its_own() -> None:
    drops = Drops()
    loud, quiet = NoticeGate("loud", drops, per_s=5), NoticeGate("quiet", drops, per_s=5)
    assert len(flood(loud, 100, 0)) == 5
    assert len(flood(quiet, 5, 0)) == 5
    assert len(drain(loud, until=1.0)) == 5


@pytest.mark.req("AX-12-2", "AX-12-3")
def test_of_one_subject_the_latest_waits_in_the_order_of_arrival() -> None:
    drops = Drops()
    gate = NoticeGate("leaf", drops, per_s=1)
    flood(gate, 2, 0)
    for n, subject in ((2, "a"), (3, "b"), (4, None), (5, "a"), (6, None), (7, "a")):
        assert gate.receive(EVENT, number(n), 0, subject) == []
    assert numbers([one for _, one in drain(gate)]) == [1, 3, 4, 6, 7]
    assert (drops.total, drops.by_segment) == (2, {"leaf": 2})


@pytest.mark.req("AX-12-3")
def test_a_subject_with_endless_news_is_delivered_beside_a_flood() -> None:
    """What is newer is last in order: were it always to take the place of what waits, none would ever go."""
    gate = NoticeGate("leaf", Drops(), per_s=10, buffer_max=20)
    heard: Release = []
    for step in range(10_000):
        now = step / 1000
        heard += gate.receive(EVENT, number(step), now, "busy")
        heard += gate.receive("notifications/other", number(step), now)
    arrived = numbers(heard)
    assert arrived == sorted(set(arrived))
    waits = [after - before for before, after in itertools.pairwise(arrived)]
    assert max(waits) <= 4000


@pytest.mark.req("AX-12-3")
@pytest.mark.parametrize("wrong", [{"per_s": 0}, {"per_s": -1}, {"buffer_max": 0}])
def test_a_rate_or_a_buffer_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        NoticeGate("leaf", Drops(), **wrong)
    NoticeGate("leaf", Drops(), per_s=1, buffer_max=1)


@pytest.mark.req("AX-12-3")
def test_after_a_pause_a_whole_burst_passes_again_and_no_more() -> None:
    gate = NoticeGate("leaf", Drops())
    flood(gate, 100, 0)
    assert len(flood(gate, 100, 0.5)) == 50
    drain(gate)
    assert len(flood(gate, 300, 1000)) == 100


@pytest.mark.req("AX-12-4")
def test_beyond_the_buffer_the_oldest_are_dropped_and_counted() -> None:
    drops = Drops()
    gate = NoticeGate("leaf", drops)
    at_once = flood(gate, 1200, 0)
    later = [one for _, one in drain(gate)]
    assert numbers(at_once) == list(range(100))
    assert numbers(later) == list(range(200, 1200))
    assert drops.total == 100
    assert drops.by_segment == {"leaf": 100}
    assert [(one.dropped, one.since) for one in overflows(later)] == [(100, 0.0)]
    assert isinstance(later[0], Overflow)  # before the first after the gap
    assert overflows(at_once) == []


@pytest.mark.req("AX-12-2")
def test_gaps_appear_only_where_drops_were_reported_and_order_is_kept() -> None:
    drops = Drops()
    gate = NoticeGate("leaf", drops)
    seen: Release = []
    now, clock = 0.0, random.Random(3)
    for n in range(10_000):
        now += clock.choice((0.0, 0.0, 0.0001, 0.002))
        while (deadline := gate.next_deadline()) is not None and deadline <= now:
            seen += gate.on_deadline(deadline)
        seen += gate.receive(EVENT, number(n), now)
    tail = drain(gate)
    seen += [one for _, one in tail]
    arrived = numbers(seen)
    assert arrived == sorted(set(arrived))
    assert arrived[-1] == 9999
    assert sum(one.dropped for one in overflows(seen)) == drops.total == 10_000 - len(arrived)
    assert drops.total > 0


@pytest.mark.req("AX-12-4", "AX-12-6")
def test_an_endless_flood_is_reported_once_a_second_and_keeps_memory_bounded() -> None:
    drops = Drops()
    gate = NoticeGate("leaf", drops)
    told: list[float] = []
    sizes = set()
    for tick in range(50_000):
        now = tick / 5000
        for one in gate.receive(EVENT, number(tick), now):
            if isinstance(one, Overflow):
                told.append(now)
        sizes.add(len(gate._waiting))
    assert max(sizes) == 1000
    assert 8 <= len(told) <= 11
    assert all(later - sooner >= 1.0 for sooner, later in itertools.pairwise(told))


@pytest.mark.req("AX-12-6")
def test_a_gap_at_the_end_is_reported_after_a_second() -> None:
    gate = NoticeGate("leaf", Drops(), per_s=10, buffer_max=1)
    flood(gate, 13, 0)  # 10 pass, 1 waits, 2 are gone
    assert [type(one) for one in gate.on_deadline(0.1)] == [Overflow, Notification]
    flood(gate, 3, 0.1)
    assert [type(one) for one in gate.on_deadline(0.2)] == [Notification]
    assert gate.next_deadline() == pytest.approx(1.1)
    assert overflows(gate.on_deadline(1.1)) == [Overflow(dropped=2, since=0.1)]
    assert gate.next_deadline() is None


@pytest.mark.req("AX-12-4")
def test_large_notifications_are_bounded_by_their_bytes() -> None:
    drops = Drops()
    gate = NoticeGate("leaf", drops, per_s=1)
    large = Raw(b'"' + b"x" * (BUFFER_BYTES_MAX // 4) + b'"')
    for _ in range(50):
        gate.receive(EVENT, large, 0)
    assert gate._waiting_bytes <= BUFFER_BYTES_MAX
    assert drops.total == 50 - 1 - 3
    gate.receive(EVENT, Raw(b'"' + b"x" * BUFFER_BYTES_MAX + b'"'), 0)
    assert gate._waiting_bytes == 0
    gate.receive(EVENT, Raw(b'"' + b"x" * (BUFFER_BYTES_MAX - 2 - len(EVENT)) + b'"'), 0)
    assert gate._waiting_bytes == BUFFER_BYTES_MAX


def test_a_waiting_notice_does_not_keep_the_message_it_was_cut_from() -> None:
    gate = NoticeGate("leaf", Drops(), per_s=1)
    flood(gate, 1, 0)
    message = b'{"pad":"%b","params":{"n":1}}' % (b"x" * 1_000_000)
    cut = msgspec.json.decode(message, type=dict[str, Raw])["params"]
    before = sys.getrefcount(message)
    gate.receive(EVENT, cut, 0)
    del cut
    assert sys.getrefcount(message) < before


@pytest.mark.req("AX-12-3")
def test_list_changed_is_a_flag_that_is_never_dropped() -> None:
    drops = Drops()
    gate = NoticeGate("leaf", drops, per_s=10, buffer_max=5)
    flood(gate, 10, 0)
    for _ in range(1000):
        assert gate.receive(TOOLS, Raw(b""), 0) == []
    flood(gate, 50, 0, first=10)
    later = [one for _, one in drain(gate)]
    assert [one.method for one in later if isinstance(one, Notification)].count(TOOLS) == 1
    assert drops.total == 45
    assert len(gate.receive(TOOLS, Raw(b""), 1000)) == 1


@pytest.mark.req("AX-12-3")
def test_a_cancellation_passes_at_once_and_costs_nothing() -> None:
    gate = NoticeGate("leaf", Drops(), per_s=1)
    flood(gate, 5, 0)
    cancelled = Raw(b'{"requestId":1}')
    assert gate.receive("notifications/cancelled", cancelled, 0) == [Notification("notifications/cancelled", cancelled)]
    gate = NoticeGate("leaf", Drops(), per_s=1)
    for _ in range(100):
        gate.receive("notifications/cancelled", cancelled, 0)
    assert len(flood(gate, 1, 0)) == 1


@pytest.mark.req("AX-12-9")
def test_a_causal_child_does_not_wait_for_its_parent() -> None:
    gate = NoticeGate("leaf", Drops())
    child = Raw(b'{"_meta":{"x-mcpax-event-id":"2","x-mcpax-causal-parent":"1"}}')
    assert gate.receive(EVENT, child, 0) == [Notification(EVENT, child)]
    assert gate.next_deadline() is None


def test_the_counter_has_a_limit_of_segments() -> None:
    drops = Drops()
    for n in range(SEGMENTS_COUNTED_MAX + 10):
        drops.count(f"s{n}")
    drops.count("s0")
    assert drops.total == SEGMENTS_COUNTED_MAX + 11
    assert len(drops.by_segment) == SEGMENTS_COUNTED_MAX
    assert drops.by_segment["s0"] == 2


# Prefixes


def up(method: str, params: bytes, *hops: tuple[str, bool]) -> dict[str, object]:
    notice = Notification(method, Raw(params))
    for segment, aggregator in hops:
        found = prefix(notice, segment, aggregator=aggregator)
        assert found is not None
        notice = found
    assert notice.method == method
    decoded: dict[str, object] = json.loads(bytes(notice.params))
    return decoded


THREE = (("stm32h7", False), ("gw", True), ("edge", True))


@pytest.mark.req("AX-12-1")
def test_the_origin_grows_at_each_hop() -> None:
    assert up(EVENT, b"", *THREE) == {"_meta": {"x-mcpax-origin": "edge.gw.stm32h7"}}
    assert up(EVENT, b'{"a":1}', *THREE) == {"a": 1, "_meta": {"x-mcpax-origin": "edge.gw.stm32h7"}}


@pytest.mark.req("AX-12-1")
@pytest.mark.parametrize("forged", ["jira", "a.b", "", "..", 7, None, ["x"], "a" * 300])
def test_a_leaf_cannot_set_an_origin_and_an_aggregator_only_an_origin_below_itself(forged: object) -> None:
    params = json.dumps({"_meta": {"x-mcpax-origin": forged}}).encode()
    assert up(EVENT, params, ("leaf", False)) == {"_meta": {"x-mcpax-origin": "leaf"}}
    origin = up(EVENT, params, ("agg", True))["_meta"]["x-mcpax-origin"]  # type: ignore[index]
    assert origin == (f"agg.{forged}" if forged in ("jira", "a.b") else "agg")


@pytest.mark.req("AX-12-1")
def test_loggers_and_uris_are_prefixed() -> None:
    log = up("notifications/message", b'{"level":"info","logger":"boot","data":1}', *THREE)
    assert log["logger"] == "edge.gw.stm32h7.boot"
    assert up("notifications/message", b'{"level":"info","data":1}', *THREE)["logger"] == "edge.gw.stm32h7"
    assert up("notifications/message", b'{"logger":7}', ("a", False))["logger"] == "a"
    updated = up("notifications/resources/updated", b'{"uri":"file:///a.b/c"}', *THREE)
    assert updated["uri"] == "mcpax://edge.gw.stm32h7/file:///a.b/c"
    forged = up("notifications/resources/updated", b'{"uri":"mcpax://jira/x"}', ("leaf", False))
    assert forged["uri"] == "mcpax://leaf/mcpax://jira/x"


IDS = [
    b'"550e8400-e29b-41d4-a716-446655440000"',
    b'"550E8400-E29B-41D4-A716-446655440000"',
    b"null",
    b'"not a uuid"',
    b"7",
    b"1.50",
    b"12345678901234567890123",
    b'{"b":1,"a":[ null ]}',
    rb'"\u00e9\ud800"',
]


@pytest.mark.req("AX-12-9")
def test_delivery_keeps_nothing_about_events() -> None:
    gate = NoticeGate("leaf", Drops(), per_s=1_000_000)
    sizes = set()
    for n in range(quick_or(100_000, 1_000_000)):
        params = Raw(b'{"_meta":{"x-mcpax-event-id":"%d","x-mcpax-causal-parent":"%d"}}' % (n, n + 1))
        assert len(gate.receive(EVENT, params, n / 1000)) == 1
        if n % 10_000 == 0:
            sizes.add(tuple(sys.getsizeof(value) for value in vars(gate).values() if not isinstance(value, int)))
            assert not gate._waiting
    assert len(sizes) == 1
    assert not hasattr(prefix, "cache_info")


@pytest.mark.req("AX-12-7")
@pytest.mark.parametrize("place", ["_meta", "params"])
@pytest.mark.parametrize("value", IDS)
def test_event_ids_pass_byte_for_byte(place: str, value: bytes) -> None:
    keys = b'"x-mcpax-event-id":%b,"x-mcpax-causal-parent":%b' % (value, value)
    params = b'{"_meta":{%b}}' % keys if place == "_meta" else b"{%b}" % keys
    notice = Notification(EVENT, Raw(params))
    for segment, aggregator in THREE:
        found = prefix(notice, segment, aggregator=aggregator)
        assert found is not None
        notice = found
    assert keys in bytes(notice.params)


@pytest.mark.req("AX-12-7")
def test_ids_that_are_absent_are_not_invented() -> None:
    assert b"event-id" not in bytes(prefix(Notification(EVENT, Raw(b'{"a":1}')), "s", aggregator=True).params)  # type: ignore[union-attr]


@pytest.mark.req("AX-12-7")
def test_all_else_stays_the_bytes_it_was_in_its_order() -> None:
    params = b'{"z":1.50,"a":{"y" : [ 1 ]},"_meta":{"v":1e2,"u":null},"big":123456789012345678901234567890}'
    found = prefix(Notification(EVENT, Raw(params)), "s", aggregator=False)
    assert found is not None
    assert bytes(found.params) == params.replace(b'"u":null', b'"u":null,"x-mcpax-origin":"s"')


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (EVENT, b"[1]"),
        (EVENT, b"null"),
        (EVENT, b"{"),
        ("notifications/resources/updated", b"{}"),
        ("notifications/resources/updated", b'{"uri":7}'),
        (SUBSERVER_LOST, b'{"segment":"x"}'),
        (OVERFLOW, b'{"segment":"x"}'),
    ],
)
def test_a_malformed_notification_goes_nowhere(method: str, params: bytes) -> None:
    assert prefix(Notification(method, Raw(params)), "leaf", aggregator=False) is None


@given(st.sampled_from([EVENT, "notifications/message", SUBSERVER_LOST]), st.binary(max_size=80), st.booleans())
def test_any_bytes_are_prefixed_or_refused(method: str, params: bytes, aggregator: bool) -> None:
    found = prefix(Notification(method, Raw(params)), "s", aggregator=aggregator)
    assert found is None or json.loads(bytes(found.params))["_meta"]["x-mcpax-origin"].startswith("s")


# Our own


@pytest.mark.req("AX-13.1-1")
def test_a_loss_is_reported_with_its_growing_path() -> None:
    notice = lost_notice("stm32h7", "heartbeat_timeout", "2026-05-01T12:05:00Z", UUID)
    assert notice.method == "notifications/mcpax/subserver_lost"
    assert json.loads(bytes(notice.params)) == {
        "segment": "stm32h7",
        "reason": "heartbeat_timeout",
        "since": "2026-05-01T12:05:00Z",
        "_meta": {"x-mcpax-event-id": UUID},
    }
    seen = up(SUBSERVER_LOST, bytes(notice.params), ("gw", True), ("edge", True))
    assert seen["segment"] == "edge.gw.stm32h7"
    assert seen["_meta"] == {"x-mcpax-event-id": UUID, "x-mcpax-origin": "edge.gw"}


def test_plain_clients_see_a_warning() -> None:
    for notice, event in (
        (lost_notice("gw", "connection_lost", "2026-05-01T12:05:00Z", UUID), "subserver_lost"),
        (overflow("gw", 100, "2026-05-01T12:05:00Z", UUID), "notification_overflow"),
    ):
        log = as_log(notice)
        assert log is not None
        assert log.method == "notifications/message"
        shown = json.loads(bytes(log.params))
        assert (shown["level"], shown["logger"]) == ("warning", "mcpax")
        assert shown["data"]["event"] == event
        assert shown["data"]["segment"] == "gw"
        assert shown["data"]["since"] == "2026-05-01T12:05:00Z"
        assert shown["_meta"] == {"x-mcpax-event-id": UUID}
    assert as_log(Notification(EVENT, Raw(b"{}"))) is None
    assert as_log(Notification(SUBSERVER_LOST, Raw(b"[]"))) is None


@pytest.mark.req("AX-4.2-7")
def test_refused_tools_are_named_with_a_reason_up_to_a_limit() -> None:
    withheld = [WithheldName(name="n" * 500, reason="why", code="authority_unverified")]
    withheld += [WithheldName(name=f"t{n}", reason="two tools would be listed as t") for n in range(500)]
    notice = refused_notice(withheld)
    assert notice.method == TOOLS_REFUSED
    body = json.loads(bytes(notice.params))
    assert body["total"] == 501
    assert len(body["tools"]) == 100
    assert body["tools"][0] == {"name": "n" * 128, "reason": "authority_unverified", "detail": "why"}
    assert body["tools"][1]["reason"] == "name_refused"


@pytest.mark.parametrize(
    "method",
    ['x","id":9,"method":"elicitation/create","y":"', "a\\b", "a b", "", "x" * 129, "größe", "a\n"],
)
def test_a_method_that_could_write_members_of_its_own_is_malformed(method: str) -> None:
    assert prefix(Notification(method, Raw(b"{}")), "s", aggregator=False) is None
