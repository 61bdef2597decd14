"""What is said of a call that was given up, and when to look for the next one (MCP-AX 7.3)."""

from collections.abc import Iterable
from math import inf
from typing import Final

from interlock.ax.protocol.capability import LatencyClass
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call
from interlock.wire.jsonrpc.errors import CALL_TIMEOUT, Fault

SWEEP_S: Final = 0.1  # shorter than any class's time, so that no deadline is set and passed between two looks
_SWEEP_MIN_S: Final = 0.002  # a loop may wake a little early


def timeout_fault(call: Call, tool: Route | None) -> Fault:
    """`tool` as it is listed now; None for calls of no tool.

    `hop` counts the aggregators from the one that gave up to the tool, both included: 1 is the tool's own aggregator.
    """
    capability = tool.capability if tool is not None else None
    data = {
        "timeout_ms": round((call.timeout_s or 0) * 1000),
        "latency_class": (capability.latency_class if capability is not None else LatencyClass.STANDARD).value,
        "hop": tool.hops if tool is not None else 1,
        "outcome": "unknown" if call.link is not None else "not_sent",  # AX-7.3-1
    }
    return Fault(CALL_TIMEOUT, "call_timeout", data)  # AX-7.3-1


def next_sweep_s(calls: Iterable[Call], now: float) -> float:
    """Seconds until the next deadline. An outer hop waits only 50 ms longer than an inner one, which must be first."""
    due = min((call.deadline for call in calls), default=inf) - now
    return min(SWEEP_S, max(due, _SWEEP_MIN_S))
