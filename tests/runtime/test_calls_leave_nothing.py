"""Does an ended call leave anything behind that only the garbage collector would find?"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.leaving import CALLS


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_call_leaves_no_circle_for_the_collector(tmp_path: Path, era: str) -> None:
    command = [sys.executable, "-m", "tests.runtime.leaving", str(tmp_path), era]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    left = json.loads(ran.stdout.splitlines()[-1])
    assert len(left) < CALLS / 2, left
