"""The metrics of rooms, as text that monitoring programs read (X-7.3-2): counters since the start, and what is now."""

from collections.abc import Iterator
from typing import Final

import msgspec

from interlock.rooms.rooms import Rooms

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_HELP: Final = {
    "interlock_room_participants": ("gauge", "Participants that are connected."),
    "interlock_room_connections": ("gauge", "Connections of participants."),
    "interlock_room_envelopes_total": ("counter", "Envelopes that were accepted, by kind."),
    "interlock_room_refusals_total": ("counter", "Envelopes that were refused, by code."),
    "interlock_room_violations_total": ("counter", "MCP messages of restricted participants, which were refused."),
    "interlock_room_proposals_total": ("counter", "Proposals that came to stand so, by status."),
    "interlock_room_proposals_pending": ("gauge", "Proposals that wait."),
    "interlock_room_proposal_decision_seconds": ("histogram", "How long proposals waited until they were decided."),
}


class _Sample(msgspec.Struct, frozen=True):
    metric: str
    value: float
    labels: tuple[tuple[str, str], ...]
    suffix: str = ""

    def line(self) -> str:
        # No label needs escaping: topics, kinds, codes and statuses are words.
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.metric}{self.suffix}{{{labels}}} {self.value:g}"


def exposition(rooms: Rooms) -> str:
    samples = list(_samples(rooms))
    lines: list[str] = []
    for metric, (kind, told) in _HELP.items():
        lines += [f"# HELP {metric} {told}", f"# TYPE {metric} {kind}"]
        lines += [sample.line() for sample in samples if sample.metric == metric]
    return "\n".join(lines) + "\n"


def _samples(rooms: Rooms) -> Iterator[_Sample]:
    index = rooms.proposals.index
    for topic, room in rooms.by_topic.items():
        here = (("room", topic),)
        connected = [len(seat.connections) for seat in room.seats.values() if seat.connections]
        yield _Sample("interlock_room_participants", len(connected), here)
        yield _Sample("interlock_room_connections", sum(connected), here)
        for kind, count in room.accepted.items():
            yield _Sample("interlock_room_envelopes_total", count, (*here, ("kind", kind)))
        for code, count in room.refused.items():
            yield _Sample("interlock_room_refusals_total", count, (*here, ("code", code)))
        yield _Sample("interlock_room_violations_total", room.refused["privilege_violation"], here)
        yield _Sample("interlock_room_proposals_pending", len(index.pending(topic)), here)
        waits = index.waits.get(topic)
        if waits is not None:
            name = "interlock_room_proposal_decision_seconds"
            for bound, count in waits.cumulated():
                yield _Sample(name, count, (*here, ("le", bound)), "_bucket")
            yield _Sample(name, waits.total_s, here, "_sum")
            yield _Sample(name, waits.count, here, "_count")
    for (topic, status), count in index.counts.items():
        yield _Sample("interlock_room_proposals_total", count, (("room", topic), ("status", status)))
