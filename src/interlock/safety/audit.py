"""The records of the safety loop in the audit log. No record holds a code or a token."""

from typing import Any

import msgspec

from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.safety.agents import AgentKey

_encode = msgspec.json.Encoder().encode


class SafetyAudit:
    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock

    def add(self, event: str, agent: AgentKey, name: str, outcome: str, **more: Any) -> None:
        """Write an event about an agent to the audit log.

        `event` is start, step, pause, block, unblock, verify, confirm, end or PROTOCOL_VIOLATION.
        """
        details: dict[str, Any] = {"agent": name}
        details |= {key: value for key, value in more.items() if value is not None}
        self._recorder.add_line(
            AuditRecord.event(
                self._clock.wall(),
                agent.principal,
                "safety",
                f"agents/{event}",
                f"agent.{name}",
                verdict=outcome,
                **details,
            )
        )
