"""What does a changed claim of a server count for, before a person has accepted it?"""

import itertools

import pytest

from interlock.ax.protocol.capability import AuthScope, Capability, CostClass, safety
from interlock.gate.protocol.policy import ToolClaims, claims_shown, is_looser, no_looser, read_claims

READS = {"readOnlyHint": True}
UNDONE = {"destructiveHint": False}
LASTING = {"destructiveHint": True}
SAID = [Capability(mutable=m, reversible=r) for m, r in itertools.product((True, False), repeat=2)]


def claims(annotations: object, declared: object = None) -> ToolClaims:
    return read_claims(declared, annotations, is_flagged=False)


@pytest.mark.parametrize(
    ("annotations", "declared", "severity", "is_open"),
    [
        (READS, None, 0, False),
        (UNDONE, None, 1, False),
        (LASTING, None, 2, False),
        ({"readOnlyHint": False}, None, 2, False),
        (None, None, 2, True),
        ({"readOnlyHint": "yes"}, None, 2, True),
        (LASTING, {"mutable": False, "reversible": True}, 0, False),
        (READS, {"mutable": True, "reversible": True}, 1, False),
        (READS, {"mutable": "no"}, 2, True),
        (READS, [], 2, True),
    ],
)
def test_claims_are_read_from_a_definition(annotations: object, declared: object, severity: int, is_open: bool) -> None:
    read = claims(annotations, declared)
    assert (read.severity, read.is_open) == (severity, is_open)
    shown = {"annotations": annotations} | ({} if declared is None else {"capability": declared})
    assert claims_shown(shown) == read


@pytest.mark.parametrize("definition", [None, "x", [], 7])
def test_a_definition_that_cannot_be_read_claims_nothing(definition: object) -> None:
    assert claims_shown(definition) == ToolClaims()


def test_looser_is_less_effect_a_lower_scope_or_a_lower_cost() -> None:
    ordered = [claims(READS), claims(UNDONE), claims(LASTING)]
    for first, second in itertools.combinations(ordered, 2):
        assert is_looser(first, second)
        assert not is_looser(second, first)
    assert not is_looser(claims(READS), claims(READS))
    for name, low, high in (("auth_scope", "read", "admin"), ("cost_class", "metered", "expensive")):
        assert is_looser(claims(LASTING, {name: low}), claims(LASTING, {name: high}))
        assert not is_looser(claims(LASTING, {name: high}), claims(LASTING, {name: low}))
    assert is_looser(claims(READS), read_claims(None, READS, is_flagged=True))


@pytest.mark.parametrize("accepted", SAID)
@pytest.mark.parametrize("said", SAID)
def test_the_stricter_of_two_claims_holds(said: Capability, accepted: Capability) -> None:
    held = no_looser(said, ToolClaims(mutable=accepted.mutable, reversible=accepted.reversible))
    assert held.mutable == (said.mutable or accepted.mutable)
    assert safety(held) == (safety(said) or safety(accepted))


def test_scope_and_cost_are_the_higher_of_the_two() -> None:
    said = Capability(auth_scope=AuthScope.READ, cost_class=CostClass.EXPENSIVE)
    held = no_looser(said, ToolClaims(auth_scope=AuthScope.ADMIN, cost_class=CostClass.METERED))
    assert (held.auth_scope, held.cost_class) == (AuthScope.ADMIN, CostClass.EXPENSIVE)
