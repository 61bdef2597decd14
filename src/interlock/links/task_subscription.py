"""One `subscriptions/listen` at a modern server for all the tasks that clients want to hear of.

It stands apart from the one for lists and resources: a server that refuses to tell of a task must not fall silent about
those. It is replaced when the tasks change, and said again when the server comes back. The older one stays open until
the server has spoken about the newer, so that nothing happens unheard in between.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import Raw

from interlock.core.calls.call import Outcome
from interlock.core.calls.caller import Asked
from interlock.links.connected_link import ConnectedLink
from interlock.links.handshake import TASKS_META, modern_head
from interlock.mcp.methods import LISTEN, META_SUBSCRIPTION, Era
from interlock.wire.jsonrpc.codec import Request, Response, decode_array, decode_object, find_string
from interlock.wire.refusal import Refusal

AGREE_S: Final = 10.0  # how long a server may take to say what it will tell
AGAIN_S: Final = 2.0  # until a stream that ended is opened again


class _Listening:
    """The open request."""

    def __init__(self, older: "_Listening | None", on_end: Callable[["_Listening", bool], None]) -> None:
        self.upstream_id = 0
        self.handle: object = None
        self.older = older
        self.settled = asyncio.Event()  # acknowledged, refused, or replaced by another
        self.agreed: set[str] = set()
        self._on_end = on_end

    def on_response(self, response: Response, era: Era) -> None:
        self._on_end(self, bool(response.error))

    def on_failed(self, refusal: Refusal, outcome: Outcome) -> None:
        self._on_end(self, False)

    def on_progress(self, params: dict[str, Raw]) -> None:
        pass

    def on_log(self, params: Raw) -> None:
        pass

    def on_request(self, link: Asked, request: Request) -> None:
        pass


class TaskListening:
    def __init__(self, link: ConnectedLink) -> None:
        self._link = link
        self._ids: set[str] = set()  # as the server knows them
        self._open: _Listening | None = None

    async def watch(self, ids: set[str]) -> set[str]:
        """Those of these tasks that the server agrees to tell of."""
        self._ids |= ids
        self.say()
        try:
            async with asyncio.timeout(AGREE_S):
                while (listening := self._open) is not None:
                    await listening.settled.wait()
                    if listening is self._open:
                        return ids & listening.agreed
        except TimeoutError:
            pass
        return set()

    def unwatch(self, ids: set[str]) -> None:
        if ids & self._ids:
            self._ids -= ids
            self.say()

    def say(self) -> None:
        """Tell the server anew, if there is one to be told."""
        link, old = self._link, self._open
        self._open = None
        if self._ids and link.modern and link.pipe is not None:
            self._open = newer = _Listening(old, self._on_ended)
            params = {"_meta": TASKS_META, "notifications": {"taskIds": sorted(self._ids)}}
            link.attach(newer, LISTEN, params, modern_head(LISTEN))
            asyncio.get_running_loop().call_later(AGREE_S, self._settle, newer)
            if old is not None:
                old.settled.set()  # its waiters wait for the newer one
        elif old is not None:
            self._settle(old)
            link.cancel(old, "replaced")

    def on_acknowledged(self, params: Raw) -> None:
        members = decode_object(params) or {}
        meta = decode_object(members["_meta"]) if "_meta" in members else None
        listening = self._open
        if listening is None or bytes((meta or {}).get(META_SUBSCRIPTION, b"")) != b"%d" % listening.upstream_id:
            return
        agreed = decode_object(members["notifications"]) if "notifications" in members else None
        ids = decode_array((agreed or {}).get("taskIds", Raw(b"[]"))) or []
        listening.agreed = {told for raw in ids if (told := find_string(raw)) is not None}
        self._settle(listening)

    def _settle(self, listening: _Listening) -> None:
        """The server has spoken about it, or had the time to: those it replaces are no longer needed."""
        listening.settled.set()
        while (older := listening.older) is not None:
            self._link.cancel(older, "replaced")
            listening.older, older.older = older.older, None

    def _on_ended(self, listening: _Listening, refused: bool) -> None:
        """Its stream ended. A lost server is told again by its keeper; one that is there after a pause."""
        self._settle(listening)
        if listening is self._open and not refused:
            self._open = None
            if self._link.pipe is not None:
                asyncio.get_running_loop().call_later(AGAIN_S, self._say_if_silent)

    def _say_if_silent(self) -> None:
        if self._open is None:
            self.say()
