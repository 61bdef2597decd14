"""The session-bind check and what it needs: questions, pins, names that look alike."""

from collections.abc import Callable

import msgspec

from interlock.approvals.classifications import Rulings
from interlock.approvals.inbox import Inbox
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.names.protocol.lookalikes import Lookalikes
from interlock.names.protocol.policy import SurfacePolicy
from interlock.names.state import RegistryState
from interlock.names.surface_check import SurfaceChecks
from interlock.names.surface_pins import SurfacePins
from interlock.names.surface_questions import SurfaceQuestions
from interlock.store.ports import KeyValue


class SurfaceParts(msgspec.Struct, frozen=True, kw_only=True):
    checks: SurfaceChecks
    questions: SurfaceQuestions
    pins: SurfacePins


def make_surface_parts(
    state: RegistryState, inbox: Inbox, rulings: Rulings, kv: KeyValue, clock: Clock, plan: Callable[[], Plan]
) -> SurfaceParts:
    """`plan`: the configuration as it is now."""
    questions, pins = SurfaceQuestions(inbox, rulings), SurfacePins(kv, clock)
    checks = SurfaceChecks(state, lambda: policy_of(plan()), questions, pins, _LazyLookalikes(state).near)
    return SurfaceParts(checks=checks, questions=questions, pins=pins)


def policy_of(plan: Plan) -> SurfacePolicy:
    registry = plan.registry
    return SurfacePolicy(enforce=registry.enforce, per_name=registry.per_name, strict=registry.strict)


class _LazyLookalikes:
    """Made when first asked, and again when the registry is another."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._version = ""
        self._found = Lookalikes()

    def near(self, name: str) -> str | None:
        if self._version != self._state.version:
            self._version = self._state.version
            if self._found.names != self._state.registry.entries.keys():
                self._found = Lookalikes(self._state.registry.entries)
        return self._found.near(name)
