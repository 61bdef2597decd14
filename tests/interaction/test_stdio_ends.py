"""Does `serve --stdio` end when its input ends, having answered what was asked?"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interaction.harness import write_config
from tests.servers.start import raw

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "once", "version": "1"}},
}


@pytest.mark.parametrize("output", ["pipe", "file"])
def test_input_that_ends_at_once_is_answered_and_ends_the_process(tmp_path: Path, output: str) -> None:
    config = write_config(tmp_path, {"echo": {"command": raw("echo")}})
    command = [sys.executable, "-m", "interlock", "serve", "--stdio", "--config", str(config)]
    command += ["--data", str(tmp_path / "data")]
    answers = tmp_path / "answers"
    with answers.open("wb") as file:
        ended = subprocess.run(
            command,
            input=json.dumps(INITIALIZE).encode() + b"\n",
            stdout=file if output == "file" else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    said = answers.read_bytes() if output == "file" else ended.stdout
    assert ended.returncode == 0, ended.stderr
    assert json.loads(said)["result"]["serverInfo"]["name"] == "interlock"


@pytest.mark.parametrize("attempt", range(3))
def test_input_that_ends_before_the_servers_have_begun_stops_them_for_good(tmp_path: Path, attempt: int) -> None:
    config = write_config(tmp_path, {name: {"command": raw("echo")} for name in ("one", "two")})
    command = [sys.executable, "-m", "interlock", "serve", "--stdio", "--config", str(config)]
    command += ["--data", str(tmp_path / "data")]
    ended = subprocess.run(command, input=b"", capture_output=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
