"""Does the page show what the trials of this run found? It is started last: other workers may still run some."""

import os
import time

import pytest
from tests.conformance import page, verdict
from tests.conformance.trials import TRIALS

OTHERS_S = 400.0


def wait_for_others(session: pytest.Session) -> None:
    """Until every trial of this run is kept; other workers have some of them."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    wanted = {trial.name for trial in TRIALS if any(f"[{trial.name}]" in item.nodeid for item in session.items)}
    deadline = time.monotonic() + OTHERS_S
    while run is not None and time.monotonic() < deadline:
        runs = verdict.kept().get("runs", {})
        if all(runs.get(name) == run for name in wanted):
            return
        time.sleep(0.5)


@pytest.mark.timeout(600)
def test_the_page_shows_these_results(request: pytest.FixtureRequest) -> None:
    wait_for_others(request.session)
    kept = verdict.kept()
    missing = {trial.name for trial in TRIALS} - kept["trials"].keys()
    if missing:
        pytest.skip(f"not run on this machine yet: {', '.join(sorted(missing))}")
    assert page.PAGE.read_text() == page.markdown(kept), "run: python -m tests.conformance --write"
