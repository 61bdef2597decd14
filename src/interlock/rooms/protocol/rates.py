"""Rates: how much one participant may send in a minute (X-7.3-3). Time is an argument."""

from collections import deque
from typing import Final, Literal

from interlock.rooms.protocol.errors import Refusal
from interlock.rooms.protocol.settings import Rates

SPAN_S: Final = 60.0

What = Literal["proposals", "chat", "envelopes"]


class RateWindow:
    """The last minute of one participant in one room; it outlives connections."""

    def __init__(self) -> None:
        self._sent: dict[What, deque[float]] = {"proposals": deque(), "chat": deque(), "envelopes": deque()}

    def refused(self, what: tuple[What, ...], rates: Rates, now: float, id: str) -> Refusal | None:
        """The refusal of one envelope more; where there is none it is counted."""
        for one in what:
            sent, most = self._recent(one, now), getattr(rates, one)
            if len(sent) >= most:
                wait_ms = max(1, int((sent[0] + SPAN_S - now) * 1000)) if sent else int(SPAN_S * 1000)
                said = f"at most {most} {one} a minute; wait {wait_ms} ms"
                return Refusal("rate_limited", said, {"limit": most, "retry_after_ms": wait_ms}, id)
        self.count(what, now)
        return None

    def count(self, what: tuple[What, ...], now: float) -> None:
        for one in what:
            self._sent[one].append(now)

    def used(self, now: float) -> dict[What, int]:
        return {what: len(self._recent(what, now)) for what in self._sent}

    def resets_in(self, now: float) -> float:
        firsts = [self._recent(what, now)[0] for what in self._sent if self._recent(what, now)]
        return max(0.0, min(firsts) + SPAN_S - now) if firsts else 0.0

    def is_idle(self, now: float) -> bool:
        return not any(self._recent(what, now) for what in self._sent)

    def _recent(self, what: What, now: float) -> deque[float]:
        sent = self._sent[what]
        while sent and sent[0] <= now - SPAN_S:
            sent.popleft()
        return sent
