"""The records of the safety loop in the audit log. No record holds a code or a token."""

from typing import Any

import msgspec

from interlock.core.clock import Clock, rfc3339
from interlock.core.recorder import Recorder
from interlock.safety.agents import AgentKey

_encode = msgspec.json.Encoder().encode


class SafetyAudit:
    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock

    def add(self, event: str, agent: AgentKey, name: str, outcome: str, **more: Any) -> None:
        """`event`: start, step, pause, block, unblock, verify, confirm, end, PROTOCOL_VIOLATION."""
        members: dict[str, Any] = {
            "at": rfc3339(self._clock.wall()),
            "who": agent.principal,
            "via": "safety",
            "method": f"agents/{event}",
            "tool": f"agent.{name}",
            "args_sha256": None,
            "verdict": outcome,
            "outcome": outcome,
            "ms": 0.0,
            "agent": name,
        }
        members |= {key: value for key, value in more.items() if value is not None}
        self._recorder.add_line(_encode(members))
