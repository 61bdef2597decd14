"""The life of one registration, from its first beat to the end of its grace (MCP-AX 6.3, 13.2, 13.3).

    LIVE      beats come
    SUSPECT   two were missed: its session lasts, and it is asked whether it is there
    LOST      the third was missed or the link is gone: the session is over, its names may stay listed as degraded
    ENDED     its names are gone

A miss is an interval without a beat, counted from the last one or from the registration. With an interval of 0 only the
link can be lost.
"""

import enum
from collections.abc import Mapping
from typing import Final

from interlock.ax.protocol.messages import HEARTBEAT_MS, HEARTBEATS_MISSED_MAX

SUSPECT_AFTER: Final = 2  # misses. With the third the three intervals of 13.3 would be used up already


class LivenessState(enum.Enum):
    LIVE = "live"
    SUSPECT = "suspect"
    LOST = "lost"
    ENDED = "ended"


class LivenessInput(enum.Enum):
    BEAT = "beat"
    SECOND_MISS = "second miss"
    THIRD_MISS = "third miss"
    LINK_CLOSED = "link closed"
    GRACE_OVER = "grace over"
    END = "end"  # deregistered, superseded, refused later, released


TABLE: Final[Mapping[tuple[LivenessState, LivenessInput], LivenessState]] = {
    (LivenessState.LIVE, LivenessInput.BEAT): LivenessState.LIVE,
    (LivenessState.LIVE, LivenessInput.SECOND_MISS): LivenessState.SUSPECT,
    (LivenessState.LIVE, LivenessInput.LINK_CLOSED): LivenessState.LOST,
    (LivenessState.LIVE, LivenessInput.END): LivenessState.ENDED,
    (LivenessState.SUSPECT, LivenessInput.BEAT): LivenessState.LIVE,
    (LivenessState.SUSPECT, LivenessInput.THIRD_MISS): LivenessState.LOST,
    (LivenessState.SUSPECT, LivenessInput.LINK_CLOSED): LivenessState.LOST,
    (LivenessState.SUSPECT, LivenessInput.END): LivenessState.ENDED,
    (LivenessState.LOST, LivenessInput.GRACE_OVER): LivenessState.ENDED,
    (LivenessState.LOST, LivenessInput.END): LivenessState.ENDED,
}

_DUE: Final = {
    LivenessState.LIVE: LivenessInput.SECOND_MISS,
    LivenessState.SUSPECT: LivenessInput.THIRD_MISS,
    LivenessState.LOST: LivenessInput.GRACE_OVER,
}


class Violation(Exception):
    """The table has no such row: the caller's mistake, never a peer's."""


class Liveness:
    """`due` is when the next input comes by itself; None: never."""

    def __init__(self, interval_ms: int, now: float) -> None:
        self.interval_ms = interval_ms
        self.state = LivenessState.LIVE
        self.since = now  # when this state began
        self._heard_at = now
        self.due = self._when_due(0.0)

    @property
    def has_session(self) -> bool:
        return self.state in (LivenessState.LIVE, LivenessState.SUSPECT)

    @property
    def deadline_ms(self) -> int:
        return HEARTBEATS_MISSED_MAX * self.interval_ms

    @property
    def retry_after_ms(self) -> int:
        return self.interval_ms or HEARTBEAT_MS  # 13.2; AX-13.2-2

    def step(self, what: LivenessInput, now: float, grace_s: float = 0.0) -> LivenessState:
        """`grace_s` counts where the step is a loss. Returns the state there was."""
        before = self.state
        try:
            self.state = TABLE[before, what]
        except KeyError:
            raise Violation(f"{what.value} does not happen to a registration that is {before.value}") from None
        if self.state is not before:
            self.since = now
        if what is LivenessInput.BEAT:
            self._heard_at = now  # AX-6.3-2: resets the count
        self.due = self._when_due(grace_s)
        return before

    def step_due(self, grace_s: float = 0.0) -> LivenessState:
        """What was due happens, at the time it was due."""
        if self.due is None:
            raise Violation(f"nothing is due for a registration that is {self.state.value}")
        return self.step(_DUE[self.state], self.due, grace_s)

    def _when_due(self, grace_s: float) -> float | None:
        match self.state:
            case LivenessState.LOST:
                return self.since + grace_s  # AX-13.2-4
            case LivenessState.LIVE | LivenessState.SUSPECT if self.interval_ms:  # AX-6.3-3
                misses = SUSPECT_AFTER if self.state is LivenessState.LIVE else HEARTBEATS_MISSED_MAX
                return self._heard_at + misses * self.interval_ms / 1000  # AX-6.3-2
            case _:
                return None
