"""The records of rooms in the audit log: who came, what was refused, who changed a privilege. Payloads are digests."""

import hashlib
from typing import Any

import msgspec

from interlock.core.clock import Clock, rfc3339
from interlock.core.recorder import Recorder
from interlock.rooms.protocol.envelope import Envelope

_encode = msgspec.json.Encoder().encode


class RoomAudit:
    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock

    def add(
        self, event: str, topic: str, who: str, outcome: str, envelope: Envelope | None = None, **more: Any
    ) -> None:
        """`event`: join, leave, publish, refuse, observe, promote, demote, disconnect, create, fulfil, edit."""
        members: dict[str, Any] = {
            "at": rfc3339(self._clock.wall()),
            "who": who,
            "via": "rooms",
            "method": f"rooms/{event}",
            "tool": f"rooms.{topic}",
            "args_sha256": None if envelope is None else hashlib.sha256(envelope.payload).hexdigest(),
            "verdict": outcome,
            "outcome": outcome,
            "ms": 0.0,
            "room": topic,
        }
        if envelope is not None:
            members |= {"envelope": envelope.id, "kind": envelope.kind, "correlation_id": envelope.correlation_id}
        members |= {key: value for key, value in more.items() if value is not None}
        self._recorder.add_line(_encode(members))
