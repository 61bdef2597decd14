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
from tests.conformance.driver_places import STORE
from tests.drivers.driver_texts import driver, text
from tests.drivers.reference_node import as_read, furnish, path_of_programs
from tests.servers import caging
from tests.support.node_process import running_node, wait_for, write_config

pytestmark = pytest.mark.timeout(300)
SERVER = {"kind": "npm", "package": "@modelcontextprotocol/server-filesystem", "args": ["."]}
# Where no sandbox can be made, the driver's own is left out: what is shown here is not about it.
UNCAGED = '[drivers.sandbox]\nfilesystem-mcp = "off"\n' if caging.WHY_NOT else ""
OPEN = '[gate]\nmode = "open"\nunannotated = "allow"\n'


def prepare(folder: Path) -> dict[str, str]:
    """The packages that the skill's example needs; the environment of whoever follows it."""
    declared = folder / "filesystem-mcp" / "DRIVER.md"
    declared.parent.mkdir()
    declared.write_bytes(text(driver(id="filesystem-mcp", server=SERVER)))
    furnish(folder / "data", [as_read(declared)], record="added-filesystem")
    program = folder / "bin" / "interlock"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexport INTERLOCK_DATA="{folder / "data"}" INTERLOCK_PACKAGES="{STORE}"\n'
        f'exec "{sys.executable}" -m interlock "$@"\n'
    )
    program.chmod(0o755)
    return {
        "PATH": f"{program.parent}:{path_of_programs()}",
        "PYTHONPATH": str(toolbox.ROOT / "src"),
    }


def run(command: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder / "workspace",
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def commands_of(skill: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", skill, re.DOTALL)


@pytest.mark.req("AIP-author-7")
def test_every_command_of_the_skill_runs_as_it_is_written_and_trusts_nothing(tmp_path: Path) -> None:
    write_config(tmp_path, {}, UNCAGED)
    env = prepare(tmp_path)
    shown = run("interlock skill show author-mcp", tmp_path, env)
    assert shown.returncode == 0, shown.stderr
    front = yaml.safe_load(shown.stdout.split("---")[1])
    assert list(front["inputs"]) == ["server_kind", "server_ref", "tools_to_wrap"]
    commands = commands_of(shown.stdout)
    assert len(commands) == 3
    said = [run(command, tmp_path, env) for command in commands]
    assert [each.returncode for each in said] == [0, 0, 0], [(each.stdout, each.stderr) for each in said]
    added = json.loads(said[0].stdout)
    assert [each["contract"] for each in added["tools"]] == ["fs-read", "fs-write"]
    assert (added["state"], added["trusted"]) == ("untrusted", False)
    listed = json.loads(run("interlock drivers list --json", tmp_path, env).stdout)
    assert [each["state"] for each in listed["drivers"]] == ["untrusted"]


@pytest.mark.req("AIP-author-7")
def test_a_driver_written_by_an_agent_waits_for_a_person(tmp_path: Path) -> None:
    """The agent has no command line but a server that runs programs."""
    env = prepare(tmp_path)
    shell = {"command": caging.hostile(), "env": env, "cwd": str(tmp_path / "workspace")}
    place = {"INTERLOCK_PACKAGES": str(STORE)}
    with running_node(tmp_path, {"shell": shell}, UNCAGED + OPEN, env=env | place) as node:

        def follow(command: str) -> str:
            told = caging.attempt(node, "shell", "run", "sh", "-c", command)
            assert "done" in told, told
            return str(told["done"])

        commands = commands_of(follow("interlock skill show author-mcp"))
        added = json.loads(follow(commands[0]))
        assert (added["state"], added["trusted"]) == ("untrusted", False)
        assert (tmp_path / "workspace/.drivers/filesystem-mcp/DRIVER.md").is_file()
        (listed,) = wait_for(lambda: node.admin("/admin/drivers")["drivers"])
        assert (listed["id"], listed["state"]) == ("filesystem-mcp", "untrusted")
        assert not [one for one in node.admin("/admin/tools")["tools"] if not one["name"].startswith("shell.")]
        trusted = run("interlock drivers trust filesystem-mcp --yes", tmp_path, env)
        assert trusted.returncode == 0, trusted.stderr
        wait_for(lambda: node.admin("/admin/drivers")["drivers"][0]["state"] == "ready", 60)
