"""The events of legacy streams, kept so that a client that lost its stream gets what it missed (SEP-1699)."""

from typing import Any

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore


class Events(EventStore):
    def __init__(self) -> None:
        self.kept: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.kept.append((stream_id, message))
        return str(len(self.kept))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        seen = int(last_event_id)
        if not 0 < seen <= len(self.kept):
            return None
        stream = self.kept[seen - 1][0]
        for number, (stream_id, message) in enumerate(self.kept[seen:], seen + 1):
            if stream_id == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream
