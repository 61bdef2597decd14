"""Does the official suite find as little behind a node as it finds in fixtures of others alone?"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from tests.conformance import suite, toolbox, verdict
from tests.conformance.foreign import FOREIGN, FOREIGN_ALONE, Foreign

AT_ONCE = 3  # the suite mostly waits

Running = dict[Foreign, Future[dict[str, suite.Scenario]]]


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    asked = [
        item.callspec.params["trial"]
        for item in request.session.items
        if hasattr(item, "callspec") and isinstance(item.callspec.params.get("trial"), Foreign)
    ]
    wanted = dict.fromkeys(one for trial in asked for one in (trial.alone, trial) if one is not None)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {trial: pool.submit(trial.run) for trial in wanted}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trial", [*FOREIGN_ALONE, *FOREIGN], ids=lambda trial: trial.name)
def test_the_suite_finds_nothing_behind_a_node_that_it_does_not_find_in_the_fixture_alone(
    trial: Foreign, running: Running
) -> None:
    try:
        if trial.alone is not None:
            verdict.keep(trial.alone, running[trial.alone].result())
        results = running[trial].result()
    except toolbox.ToolMissing as missing:
        pytest.skip(f"A FOREIGN FIXTURE CANNOT BE HAD, it is not shown: {missing}")
    verdict.keep(trial, results)
    assert verdict.judge(trial, results) == []
