"""Are drivers run in the sandbox that their files declare, and can only the operator do without?"""

import errno
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.servers.caging import GREETING, HOSTILE, OutsideHost, needs_sandbox, outside_host
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

pytestmark = needs_sandbox

CONFIG = '[drivers]\ntrust_workspace = true\nsandbox = { free-mcp = "off" }\n'


def text(data: Any) -> str:
    return f"---\n{yaml.safe_dump(data, sort_keys=False)}---\n"


def declare(workspace: Path, name: str, **changed: Any) -> None:
    """A driver of the hostile server, called as demo.NAME."""
    folder = workspace / ".drivers" / f"{name}-mcp"
    (folder / "tools" / name).mkdir(parents=True)
    contract = {
        "name": name,
        "id": f"demo.{name}",
        "description": "Try something.",
        "version": "1.0.0",
        "inputs": {"type": "object", "properties": {"what": {"type": "string"}, "with": {"type": "array"}}},
        "outputs": {"type": "object"},
    }
    binding = {"tool": f"./tools/{name}/TOOL.md", "version": "^1.0.0", "metadata": {"mcp": {"tool_name": "attempt"}}}
    driver = {
        "name": name,
        "id": f"{name}-mcp",
        "description": "A server that tries to get out.",
        "version": "1.0.0",
        "kind": "mcp",
        "server": {"kind": "binary", "path": sys.executable, "args": [str(HOSTILE)]},
        "transport": "stdio",
        "implements": [binding],
        **changed,
    }
    (folder / "tools" / name / "TOOL.md").write_text(text(contract))
    (folder / "DRIVER.md").write_text(text(driver))


class Scene:
    def __init__(self, node: RunningNode, there: OutsideHost, folder: Path) -> None:
        self.node, self.outside, self.folder = node, there, folder

    def call(self, name: str, what: str, *arguments: Any) -> dict[str, Any]:
        with Wire(self.node) as wire:
            told = {"what": what, "with": list(arguments)}
            message = wire.modern("tools/call", {"name": f"demo.{name}", "arguments": told}).message
        result = message.get("result", {})
        failed = "error" in message or result.get("isError", False)
        return {"error": json.dumps(message)} if failed else result["structuredContent"]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("driven")
    workspace = folder / "workspace"
    for name in ("used", "seen"):
        (folder / name / "private").mkdir(parents=True)
        (folder / name / "note").write_text(name)
    declare(workspace, "free")
    declare(workspace, "caged", sandbox={"env": {"pass": ["WANTED"]}})
    files = {
        "read": [str(folder / "seen")],
        "write": [str(folder / "used")],
        "deny": [str(folder / "used" / "private")],
    }
    declare(workspace, "filed", sandbox={"fs": files, "exec": {"allow": False, "spawn": ["git"]}})
    declare(workspace, "wired", network={"egress": ["localhost"]})
    declare(workspace, "closed", network={"egress": []})
    declare(workspace, "small", runner={"limits": {"memory_mb": 64}})
    declare(workspace, "short", runner="./RUNNER.md")
    (workspace / ".drivers" / "short-mcp" / "RUNNER.md").write_text(text({"limits": {"cpu_ms": 700}}))
    env = {"OPENAI_API_KEY": "sk-host", "WANTED": "passed"}
    names = {f"demo__{name}" for name in ("free", "caged", "filed", "wired", "closed", "small", "short")}
    with outside_host() as there, running_node(folder, {}, CONFIG, env) as node, Wire(node) as wire:
        wait_for(lambda: names <= {tool["name"] for tool in wire.modern("tools/list").message["result"]["tools"]}, 30)
        yield Scene(node, there, folder)
        assert node.process.poll() is None


@pytest.mark.req("AIP-security-1", "AIP-security-2")
def test_a_driver_cannot_leave_its_sandbox_and_could_without_a_sandbox(scene: Scene) -> None:
    there, pid = scene.outside, scene.node.process.pid
    identity, outside_host = str(scene.node.data / "identity.json"), str(scene.folder / "used" / "by-it")
    assert "done" in scene.call("free", "read", identity)
    assert scene.call("free", "write", outside_host) == {"done": outside_host}
    assert scene.call("free", "signal_to", pid) == {"done": "sent"}
    assert "interlock" in scene.call("free", "command_line_of", pid)["done"]
    assert scene.call("free", "tcp", "127.0.0.1", there.port) == {"done": GREETING}
    Path(outside_host).unlink()
    there.heard.clear()
    assert scene.call("caged", "read", identity)["errno"] == errno.ENOENT
    assert scene.call("caged", "read", "/etc/shadow")["errno"] == errno.ENOENT
    scene.call("caged", "write", outside_host)
    assert not Path(outside_host).exists()
    assert scene.call("caged", "signal_to", pid)["errno"] == errno.ESRCH
    assert scene.call("caged", "command_line_of", pid)["errno"] == errno.ENOENT
    assert scene.call("caged", "tcp", "127.0.0.1", there.port)["errno"] == errno.ECONNREFUSED
    assert scene.call("caged", "udp", "192.0.2.1", 53)["errno"] == errno.ENETUNREACH
    assert there.heard == []


@pytest.mark.req("AIP-security-5")
def test_the_sandbox_block_of_a_driver_is_kept(scene: Scene) -> None:
    seen, used = scene.folder / "seen", scene.folder / "used"
    assert scene.call("filed", "read", str(seen / "note")) == {"done": "seen"}
    assert scene.call("filed", "write", str(seen / "made"))["errno"] == errno.EROFS
    assert scene.call("filed", "write", str(used / "made")) == {"done": str(used / "made")}
    assert scene.call("filed", "write", str(used / "private" / "made"))["errno"] == errno.EROFS
    assert scene.call("filed", "run", "git", "--version")["done"].startswith("git version")
    assert scene.call("filed", "run", "sh", "-c", "true")["errno"] == errno.ENOENT
    assert scene.call("caged", "run", "git", "--version")["errno"] == errno.ENOENT


@pytest.mark.req("AIP-security-3", "AIP-import-11")
def test_a_driver_reaches_the_hosts_of_its_file(scene: Scene) -> None:
    url = f"http://localhost:{scene.outside.port}/"
    assert scene.call("wired", "fetch", url) == {"done": GREETING}
    assert "egress_denied" in scene.call("wired", "tunnel", "127.0.0.1", scene.outside.port)["failed"]
    with Wire(scene.node) as wire:
        asked = {"name": "demo.wired", "arguments": {"what": "fetch", "with": ["http://api.bar.com/"]}}
        said = json.dumps(wire.modern("tools/call", asked).message)
    assert "egress_denied: api.bar.com" in said
    assert "allow with: interlock drivers allow wired api.bar.com" in said
    assert "failed" in scene.call("caged", "fetch", url)


@pytest.mark.req("AIP-import-11")
def test_a_driver_that_dials_out_is_given_the_command_that_allows_it_and_then_works(scene: Scene) -> None:
    url = f"http://localhost:{scene.outside.port}/"
    file = scene.folder / "workspace" / ".drivers" / "closed-mcp" / "DRIVER.md"
    before = file.read_bytes()
    with Wire(scene.node) as wire:
        asked = {"name": "demo.closed", "arguments": {"what": "fetch", "with": ["http://api.bar.com/"]}}
        said = json.dumps(wire.modern("tools/call", asked).message)
    assert "egress_denied: api.bar.com" in said
    command = re.search(r"allow with: interlock (drivers allow closed) (api\.bar\.com)", said)
    assert command is not None, said
    assert "failed" in scene.call("closed", "fetch", url)
    for host in (command[2], "localhost"):  # nothing here has the name of the other one
        assert scene.node.cli(*command[1].split(), host).returncode == 0
    wait_for(lambda: scene.call("closed", "fetch", url) == {"done": GREETING}, 30)
    assert file.read_bytes() == before


@pytest.mark.req("AIP-security-14")
def test_a_driver_has_the_environment_of_its_file(scene: Scene) -> None:
    known = {"PATH", "HOME", "TMPDIR", "LANG", "PWD", "WANTED"}
    assert set(scene.call("caged", "environment")["done"]) - {"TZ"} == known


@pytest.mark.req("AIP-30.front-6")
def test_a_driver_that_uses_more_than_its_runner_allows_is_ended_and_comes_back(scene: Scene) -> None:
    """The server goes in the middle of a call, which is a lost link for whoever called."""
    for name, what, amount, limit in (("small", "allocate", 120, "memory_mb"), ("short", "burn", 20_000, "cpu_ms")):
        assert "tool_degraded" in scene.call(name, what, amount)["error"]
        log = scene.folder / "stderr.txt"
        wait_for(lambda limit=limit, log=log: f"({limit}) and was ended" in log.read_text())
    wait_for(lambda: "done" in scene.call("small", "entries", "/"))
    assert "done" in scene.call("free", "entries", "/")


@pytest.mark.req("AIP-security-1")
def test_a_driver_without_a_sandbox_is_shown(scene: Scene) -> None:
    links = {link["segment"]: link.get("sandbox") for link in scene.node.admin("/admin/links")["links"]}
    assert (links["free"], links["caged"]) == (False, True)
    assert "no sandbox" in scene.node.cli("drivers", "list").stdout


@pytest.mark.req("AIP-security-5", "AIP-security-13")
def test_a_link_put_at_a_declared_path_takes_the_driver_away_and_opens_nothing(tmp_path: Path) -> None:
    workspace, keys = tmp_path / "workspace", tmp_path / "home" / ".ssh"
    out, kept = workspace / "out", workspace / "kept"
    for each in (out, kept, keys):
        each.mkdir(parents=True)
        (each / "note").write_text(each.name)
    declare(workspace, "filed", sandbox={"fs": {"write": ["../../out"]}})

    def trust() -> dict[str, Any]:
        shown: dict[str, Any] = node.admin("/admin/drivers/filed-mcp")
        node.admin("/admin/drivers/filed-mcp/trust", "POST", {"digest": shown["digest"]})
        return shown

    def stands(state: str) -> bool:
        return bool(node.admin("/admin/drivers/filed-mcp")["state"] == state)

    with running_node(tmp_path, {}) as node:
        there = Scene(node, None, tmp_path)  # type: ignore[arg-type]
        assert trust()["sandbox"]["fs"]["write"] == [str(out)]
        wait_for(lambda: stands("ready"))
        assert there.call("filed", "read", str(out / "note")) == {"done": "out"}
        out.rename(workspace / "former")
        out.symlink_to(keys)
        node.cli("links", "restart", "filed")
        wait_for(lambda: stands("rejected"))
        assert str(keys) in node.admin("/admin/drivers/filed-mcp")["reason"]
        assert "error" in there.call("filed", "read", str(keys / "note"))
        out.unlink()
        out.symlink_to("kept")
        wait_for(lambda: stands("untrusted"))
        shown = trust()
        assert shown["sandbox"]["fs"]["write"] == [str(kept)]
        assert shown["changed"] == [f"links://{out}"]
        wait_for(lambda: stands("ready"))
        assert there.call("filed", "read", str(out / "note")) == {"done": "kept"}
