"""Do clients that went leave anything behind that only the garbage collector would find?

A node lets the collector look rarely. What waits for it keeps the bodies of its requests, and counts as growth.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.leaving import CALLS, CLIENTS


@pytest.mark.parametrize("kind", CLIENTS)
def test_nothing_leaves_a_circle_for_the_collector(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-m", "tests.runtime.leaving", str(tmp_path), kind]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    left = json.loads(ran.stdout.splitlines()[-1])
    assert len(left) < CALLS / 2, left
