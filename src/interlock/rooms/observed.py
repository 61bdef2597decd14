"""What rooms in observe mode have put on record: which envelopes of whom a mixed room would have refused (X-8-3)."""

from typing import Final

import msgspec

from interlock.core.recorder import Recorder
from interlock.store.ports import AuditReader

METHOD: Final = "rooms/observe"
_MARK: Final = METHOD.encode()  # most records are not even decoded
_PAGE: Final = 1000


class _Record(msgspec.Struct):
    method: str = ""
    room: str = ""
    who: str = ""
    participant: str = ""
    kind: str = ""
    at: str = ""


class Observed(msgspec.Struct):
    """Of one participant."""

    participant: str
    principal: str
    first: str
    last: str
    envelopes: int = 0
    kinds: set[str] = msgspec.field(default_factory=set)


async def observed_in(topic: str, audit: AuditReader, recorder: Recorder) -> list[Observed]:
    """By participant. Raises StoreError."""
    await recorder.flush()
    found: dict[str, Observed] = {}
    after = 0
    while records := await audit.read(after, _PAGE):
        after = records[-1].sequence
        for record in records:
            if _MARK in record.data:
                _count(msgspec.json.decode(record.data, type=_Record), topic, found)
    return [found[participant] for participant in sorted(found)]


def _count(record: _Record, topic: str, found: dict[str, Observed]) -> None:
    if record.method != METHOD or record.room != topic:
        return
    id = record.participant
    one = found.setdefault(id, Observed(id, record.who, record.at, record.at))
    one.principal, one.last = record.who, record.at
    one.envelopes += 1
    one.kinds.add(record.kind)
