"""Can an agent follow the skill that tells how to add a server, command by command, and leave trust to a person?"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.conformance import toolbox
from tests.interaction.drivers.reference import as_read, furnish, path_of_programs
from tests.interaction.harness import write_config
from tests.protocol.driver_texts import driver, text

pytestmark = pytest.mark.timeout(300)
SERVER = {"kind": "npm", "package": "@modelcontextprotocol/server-filesystem", "args": ["."]}


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder / "bin" / "interlock"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m interlock "$@"\n')
    program.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{program.parent}:{path_of_programs()}",
        "PYTHONPATH": str(toolbox.ROOT / "src"),
        "INTERLOCK_DATA": str(folder / "data"),
    }
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder / "workspace",
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_command_of_the_skill_runs_as_it_is_written_and_trusts_nothing(tmp_path: Path) -> None:
    write_config(tmp_path, {})
    declared = tmp_path / "filesystem-mcp" / "DRIVER.md"
    declared.parent.mkdir()
    declared.write_bytes(text(driver(id="filesystem-mcp", server=SERVER)))
    furnish(tmp_path / "data", [as_read(declared)], record="added-filesystem")
    shown = run("interlock skill show author-mcp", tmp_path)
    assert shown.returncode == 0, shown.stderr
    front = yaml.safe_load(shown.stdout.split("---")[1])
    assert list(front["inputs"]) == ["server_kind", "server_ref", "tools_to_wrap"]
    commands = re.findall(r"```sh\n(.*?)```", shown.stdout, re.DOTALL)
    assert len(commands) == 3
    said = [run(command, tmp_path) for command in commands]
    assert [each.returncode for each in said] == [0, 0, 0], [(each.stdout, each.stderr) for each in said]
    added = json.loads(said[0].stdout)
    assert [each["contract"] for each in added["tools"]] == ["fs-read", "fs-write"]
    assert (added["state"], added["trusted"]) == ("untrusted", False)
    listed = json.loads(run("interlock drivers list --json", tmp_path).stdout)
    assert [each["state"] for each in listed["drivers"]] == ["untrusted"]
