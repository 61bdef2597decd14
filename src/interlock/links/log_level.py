"""How much a legacy server is to log: told when a client wants another level, and again after each return."""

import asyncio
from typing import Final

from interlock.core.calls.call import Inquiry, Outcome
from interlock.links.connected_link import ConnectedLink
from interlock.mcp.methods import LOG_RANK, SET_LEVEL, Era
from interlock.wire.jsonrpc.codec import Response
from interlock.wire.refusal import CALL_TIMEOUT, Refusal

QUIET: Final = "emergency"  # what a server is told once no client wants its logs any more
TAKEN_S: Final = 2.0  # a log line is worth no longer wait

Heard = asyncio.Future[Response | Refusal]


class LogLevel:
    def __init__(self, link: ConnectedLink) -> None:
        self._link = link
        self._level: str | None = None
        self.of_sessions: str | None = None
        self._of_requests: str | None = None  # of 2026-07-28, each of which names its own
        self._heard: Heard | None = None

    def set(self, level: str | None) -> Heard | None:
        """What sessions want; None: nothing. Done when the server has taken what it was told, or had its time; None
        when it has already."""
        self.of_sessions = level
        return self._settle()

    def want(self, level: str) -> Heard | None:
        """At least this much: each client hears only what it asked for, whatever the server says."""
        self._of_requests = (
            level if self._of_requests is None else min(level, self._of_requests, key=lambda one: LOG_RANK[one])
        )
        return self._settle()

    def _settle(self) -> Heard | None:
        wanted = [level for level in (self.of_sessions, self._of_requests) if level is not None]
        level = min(wanted, key=lambda one: LOG_RANK[one]) if wanted else None
        if level is None and self._level is not None:
            level = QUIET
        if level != self._level:
            self._level = level
            self.say()
        heard = self._heard
        return None if heard is None or heard.done() else heard

    def say(self) -> None:
        facts = self._link.facts
        if facts is not None and facts.era is Era.LEGACY and "logging" in facts.capabilities and self._level:
            inquiry = self._link.ask(SET_LEVEL, {"level": self._level})
            self._heard = inquiry.future
            asyncio.get_running_loop().call_later(TAKEN_S, self._stop_waiting, inquiry)

    def _stop_waiting(self, inquiry: Inquiry) -> None:
        if not inquiry.future.done():
            self._link.cancel(inquiry, "timeout")
            inquiry.on_failed(Refusal(CALL_TIMEOUT, "call_timeout"), Outcome.TIMEOUT)
