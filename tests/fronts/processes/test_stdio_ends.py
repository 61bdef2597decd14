"""Does `serve --stdio` end when its input ends, having answered what was asked?"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.start import raw
from tests.support.node_process import running_node, write_config

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


@pytest.mark.parametrize("bridged", [False, True], ids=["alone", "bridged"])
def test_input_and_output_may_be_files_or_nothing(tmp_path: Path, bridged: bool) -> None:
    """No loop can wait for such, and one of them would end the process."""
    asked, told = tmp_path / "asked", tmp_path / "told"
    asked.write_bytes(json.dumps(INITIALIZE).encode() + b"\n")
    with contextlib.ExitStack() as stack:
        if bridged:
            node = stack.enter_context(running_node(tmp_path, {"echo": {"command": raw("echo")}}))
            config, data = node.config, node.data
        else:
            config, data = write_config(tmp_path, {"echo": {"command": raw("echo")}}), tmp_path / "data"
        for source, target in ((os.devnull, os.devnull), (asked, os.devnull), (os.devnull, told), (asked, told)):
            command = [sys.executable, "-m", "interlock", "serve", "--stdio", "--config", str(config)]
            with Path(source).open("rb") as stdin, Path(target).open("wb") as stdout:
                ended = subprocess.run(
                    [*command, "--data", str(data)],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=subprocess.PIPE,
                    timeout=30,
                    check=False,
                )
            assert (ended.returncode, ended.stderr) == (0, b"")
    assert bridged or json.loads(told.read_bytes())["result"]["serverInfo"]["name"] == "interlock"
