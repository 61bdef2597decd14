"""A sink that puts notes of the node into the answer: put before a call's own when there is something to say."""

from interlock.core.calls.caller import Sink
from interlock.mcp.results import with_note

NOTES_MAX = 3  # in one answer; `interlock links logs` has all


class NotedSink:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._notes: dict[str, None] = {}

    def add(self, note: str) -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes[note] = None

    def emit(self, message: bytes) -> None:
        self._sink.emit(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        self._sink.answer(with_note(message, "\n".join(self._notes)), status)

    def drop(self) -> None:
        self._sink.drop()


def add_note(sink: Sink, note: str) -> Sink:
    """Return a sink that adds the note to the answer."""
    noted = sink if isinstance(sink, NotedSink) else NotedSink(sink)
    noted.add(note)
    return noted
