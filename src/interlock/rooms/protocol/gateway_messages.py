"""The gateway's own messages in a room: welcome, presence, errors, violations, events (MCPx 4.4).

Each function returns one envelope from `system:gateway`; the caller passes its id and time.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.rooms.protocol.envelope import MCP, PRESENCE, SYSTEM, V01, Envelope, EnvelopeRefusal, violation_error
from interlock.rooms.protocol.participants import GATEWAY, Participant, Privilege

HISTORY_DEFAULT: Final = 100
HISTORY_MAX: Final = 1000

_encode = msgspec.json.Encoder().encode


class Stamp(msgspec.Struct, frozen=True):
    """The id and timestamp of one gateway message."""

    id: str
    ts: str


def system_event(
    stamp: Stamp, payload: Any, *, to: str | None = None, answers: str | None = None, kind: str = SYSTEM
) -> Envelope:
    """Return a gateway event for everyone, or for the participant `to`. `answers` is the id of the envelope that it
    replies to.
    """
    recipients, text = None if to is None else (to,), _encode(payload)
    return Envelope(
        id=stamp.id, ts=stamp.ts, sender=GATEWAY, to=recipients, kind=kind, correlation_id=answers, payload=text
    )


def welcome(
    stamp: Stamp, topic: str, who: Participant, others: Iterable[Participant], *, keeps_history: bool, last: int
) -> Envelope:
    """Return the first message on a new connection, sent to it alone (X-4.4.1-1). `last` is the sequence number of the
    newest stored envelope.
    """
    payload = {
        "event": "welcome",
        "participant": who.described(),  # X-4.4.1-1
        "participants": [other.described() for other in others],
        "protocol": V01,  # X-4.4.1-1
        "topic": topic,
        "history": {"enabled": keeps_history, "limit": HISTORY_DEFAULT},
        "sequence": last,
    }
    return system_event(stamp, payload, to=who.id)


def sequence(stamp: Stamp, number: int, of: str) -> Envelope:
    """Return the event that assigns a sequence number in the topic to the envelope with the id `of` (X-N-4)."""
    return system_event(stamp, {"event": "sequence", "sequence": number}, answers=of)


def presence(stamp: Stamp, event: Literal["join", "leave", "heartbeat"], who: Participant) -> Envelope:
    """Return the event that reports that a participant joined, left or is still present (X-4.4.1)."""
    return system_event(stamp, {"event": event, "participant": who.described()}, kind=PRESENCE)


def refusal(stamp: Stamp, to: str, refused: EnvelopeRefusal) -> Envelope:
    """Return the reply to a refused envelope: the violation of MCPx 4.4.2, or an error event (X-4-14)."""
    if refused.code == "privilege_violation":  # X-4.4.2-1
        # X-4.4.2-2, X-4.4.2-3
        body = {"jsonrpc": "2.0", "id": Raw(refused.answers), "error": violation_error()}
        return system_event(stamp, body, to=to, answers=refused.id, kind=MCP)
    payload = {"event": "error", "code": refused.code, "message": refused.message, "details": refused.details or {}}
    return system_event(stamp, payload, to=to, answers=refused.id)


def privilege_changed(stamp: Stamp, who: Participant, old: Privilege, by: str) -> Envelope:
    """Return the event that reports a participant's new privilege. `by` is the admin who changed it."""
    new = who.privilege.value
    payload = {"event": "privilege_changed", "participant": {"id": who.id, "privilege": new}}
    return system_event(stamp, {**payload, "oldPrivilege": old.value, "newPrivilege": new, "by": by})  # X-5.1-5


def history(stamp: Stamp, to: str, envelopes: Sequence[tuple[int, bytes]], *, more: bool) -> Envelope:
    """Return an event that contains old envelopes. They are wrapped so that no target mistakes an old call for a new
    one (X-4.4.1-6).
    """
    texts, sequences = [Raw(data) for _, data in envelopes], [sequence for sequence, _ in envelopes]
    payload = {"event": "history", "envelopes": texts, "sequences": sequences, "more": more}
    return system_event(stamp, payload, to=to)
