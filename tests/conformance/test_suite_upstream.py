"""Does the official suite pass behind a node, in every pair of eras?"""

import pytest
from tests.conformance import verdict
from tests.conformance.trials import LEGS, Leg


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.parametrize("leg", LEGS, ids=lambda leg: leg.name)
def test_the_suite_finds_nothing_behind_a_node_that_is_not_expected(leg: Leg) -> None:
    results = leg.run()
    verdict.keep(leg, results)
    assert verdict.judge(leg, results) == []
