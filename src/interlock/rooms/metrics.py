"""The metrics of rooms (X-7.3-2): counters since the start, and what is there now."""

from collections.abc import Iterator

from interlock.core.metrics import Metrics, Sample
from interlock.rooms.rooms import Rooms


def define_room_metrics(metrics: Metrics, rooms: Rooms) -> None:
    index = rooms.proposals.index

    def count_connections(topic: str) -> list[int]:
        return [len(seat.connections) for seat in rooms.by_topic[topic].seats.values() if seat.connections]

    def read_decision_times() -> Iterator[Sample]:
        for topic, waits in index.waits.items():
            if topic not in rooms.by_topic:
                continue
            for bound, count in waits.cumulated():
                yield Sample(count, {"room": topic, "le": bound}, "_bucket")
            yield Sample(waits.total_s, {"room": topic}, "_sum")
            yield Sample(waits.count, {"room": topic}, "_count")

    metrics.gauge(
        "interlock_room_participants",
        "Participants that are connected.",
        lambda: [Sample(len(count_connections(topic)), {"room": topic}) for topic in rooms.by_topic],
    )
    metrics.gauge(
        "interlock_room_connections",
        "Connections of participants.",
        lambda: [Sample(sum(count_connections(topic)), {"room": topic}) for topic in rooms.by_topic],
    )
    metrics.read_counter(
        "interlock_room_envelopes_total",
        "Envelopes that were accepted, by kind.",
        lambda: [
            Sample(count, {"room": topic, "kind": kind})
            for topic, room in rooms.by_topic.items()
            for kind, count in room.accepted.items()
        ],
    )
    metrics.read_counter(
        "interlock_room_refusals_total",
        "Envelopes that were refused, by code.",
        lambda: [
            Sample(count, {"room": topic, "code": code})
            for topic, room in rooms.by_topic.items()
            for code, count in room.refused.items()
        ],
    )
    metrics.read_counter(
        "interlock_room_violations_total",
        "MCP messages of restricted participants, which were refused.",
        lambda: [
            Sample(room.refused["privilege_violation"], {"room": topic}) for topic, room in rooms.by_topic.items()
        ],
    )
    metrics.read_counter(
        "interlock_room_proposals_total",
        "Proposals that reached a status, by status.",
        lambda: [Sample(count, {"room": topic, "status": status}) for (topic, status), count in index.counts.items()],
    )
    metrics.gauge(
        "interlock_room_proposals_pending",
        "Proposals that wait.",
        lambda: [Sample(len(index.pending(topic)), {"room": topic}) for topic in rooms.by_topic],
    )
    metrics.histogram(
        "interlock_room_proposal_decision_seconds",
        "How long proposals waited until they were decided.",
        read_decision_times,
    )
