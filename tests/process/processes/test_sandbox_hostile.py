"""Does a server that tries to get out of its sandbox stay in it? Each attempt is made without one too, and succeeds."""

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.caging import GREETING, HOSTILE, OutsideHost, attempt, hostile, needs_sandbox, outside_host
from tests.support.node_process import RunningNode, running_node, wait_for

pytestmark = needs_sandbox

SHADOW = Path("/etc/shadow")


class Scene:
    def __init__(self, node: RunningNode, there: OutsideHost, folder: Path) -> None:
        self.node = node
        self.outside = there
        self.folder = folder
        self.allowed = folder / "allowed"
        self.private = folder / "private"

    def free(self, what: str, *arguments: Any) -> dict[str, Any]:
        return attempt(self.node, "free", what, *arguments)

    def caged(self, what: str, *arguments: Any) -> dict[str, Any]:
        return attempt(self.node, "caged", what, *arguments)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("cage")
    for name in ("allowed", "private"):
        (folder / name).mkdir()
        (folder / name / "note").write_text(name)
    servers = {
        "free": {"command": hostile()},
        "caged": {"command": hostile(), "egress": [], "files": [str(folder / "allowed")]},
    }
    with outside_host() as there, running_node(folder, servers, env={"OPENAI_API_KEY": "sk-host"}) as node:
        yield Scene(node, there, folder)
        assert node.process.poll() is None
        assert node.link("free")["state"] == node.link("caged")["state"] == "ready"


@pytest.mark.req("AIP-security-1")
def test_an_undeclared_path_cannot_be_read(scene: Scene) -> None:
    note, identity = str(scene.private / "note"), str(scene.node.data / "identity.json")
    assert scene.free("read", note) == {"done": "private"}
    assert "done" in scene.free("read", identity)
    assert scene.caged("read", note)["errno"] == errno.ENOENT
    assert scene.caged("read", identity)["errno"] == errno.ENOENT
    assert scene.caged("entries", str(scene.node.data))["done"] == ["homes"]
    assert scene.caged("read", str(SHADOW))["errno"] == errno.ENOENT
    assert ("done" in scene.free("read", str(SHADOW))) == os.access(SHADOW, os.R_OK)


@pytest.mark.req("AIP-security-1")
def test_an_undeclared_path_cannot_be_written(scene: Scene) -> None:
    for folder in (scene.private, Path("/var/tmp"), Path("/etc") if os.access("/etc", os.W_OK) else None):
        if folder is None:
            continue
        path = folder / f"interlock-test-{os.getpid()}"
        try:
            assert scene.free("write", str(path)) == {"done": str(path)}
            path.unlink()
            assert scene.caged("write", str(path))["errno"] in (errno.ENOENT, errno.EROFS)
            assert not path.exists()
        finally:
            path.unlink(missing_ok=True)


def test_declared_folders_are_readable_and_writable_and_links_in_them_lead_nowhere(scene: Scene) -> None:
    assert scene.caged("read", str(scene.allowed / "note")) == {"done": "allowed"}
    assert scene.caged("write", str(scene.allowed / "made"), "by it") == {"done": str(scene.allowed / "made")}
    assert (scene.allowed / "made").read_text() == "by it"
    note = str(scene.private / "note")
    assert scene.free("link", note, str(scene.allowed / "way-out")) == {"done": "private"}
    assert scene.caged("link", note, str(scene.allowed / "other-way-out"))["errno"] == errno.ENOENT
    assert scene.caged("read", str(scene.allowed / "way-out"))["errno"] == errno.ENOENT


@pytest.mark.req("AIP-security-1")
def test_the_host_gets_no_signal_and_is_not_seen(scene: Scene) -> None:
    pid = scene.node.process.pid
    assert scene.free("signal_to", pid) == {"done": "sent"}
    assert "interlock" in scene.free("command_line_of", pid)["done"]
    assert scene.caged("signal_to", pid)["errno"] == errno.ESRCH
    assert scene.caged("command_line_of", pid)["errno"] == errno.ENOENT
    seen = [each for each in scene.caged("entries", "/proc")["done"] if each.isdigit()]
    assert len(seen) <= 3
    assert len([each for each in scene.free("entries", "/proc")["done"] if each.isdigit()]) > len(seen)


@pytest.mark.req("AIP-security-1", "AIP-security-2")
def test_without_egress_there_is_no_network(scene: Scene) -> None:
    there = scene.outside
    assert scene.free("tcp", "127.0.0.1", there.port) == {"done": GREETING}
    assert scene.free("udp", "127.0.0.1", there.udp_port) == {"done": GREETING}
    assert scene.free("dns", "127.0.0.1", there.udp_port, "api.example.com") == {"done": 7}
    there.heard.clear()
    for what, port in (("tcp", there.port), ("udp", there.udp_port)):
        assert scene.caged(what, "127.0.0.1", port)["errno"] == errno.ECONNREFUSED
        assert scene.caged(what, "169.254.169.254", 80)["errno"] == errno.ENETUNREACH
        assert scene.caged(what, "192.0.2.1", 53)["errno"] == errno.ENETUNREACH
    assert scene.caged("dns", "127.0.0.1", there.udp_port, "api.example.com")["errno"] == errno.ECONNREFUSED
    assert "failed" in scene.caged("look_up", "api.example.com")
    assert there.heard == []
    assert "HTTPS_PROXY" not in scene.caged("environment")["done"]


def test_the_endpoints_of_the_node_are_not_reached_from_inside(scene: Scene) -> None:
    assert scene.free("entries", str(scene.node.data / "run"))["done"]
    assert scene.caged("entries", str(scene.node.data / "run"))["errno"] == errno.ENOENT
    assert "Connection refused" in scene.caged("tcp", scene.node.host, scene.node.port)["failed"]


@pytest.mark.req("AIP-security-14")
def test_the_environment_holds_only_what_is_declared(scene: Scene) -> None:
    known = {"PATH", "HOME", "TMPDIR", "LANG", "TZ", "PWD"}
    inside = scene.caged("environment")["done"]
    assert set(inside) - known == set()
    home = scene.node.data / "homes" / "_servers" / "caged"
    assert (inside["HOME"], inside["TMPDIR"]) == (str(home), str(home / "tmp"))
    assert home.stat().st_mode & 0o777 == 0o700
    assert scene.caged("write", f"{home}/kept", "for later") == {"done": f"{home}/kept"}
    assert (home / "kept").read_text() == "for later"


def test_listings_say_who_is_in_a_sandbox(scene: Scene) -> None:
    assert [scene.node.link(one)["sandbox"] for one in ("free", "caged")] == [False, True]
    assert "in a sandbox" in scene.node.cli("status", "caged").stdout
    assert "in no sandbox" in scene.node.cli("status", "free").stdout


@pytest.mark.req("AIP-security-5")
def test_a_server_that_could_write_the_program_of_another_is_not_started(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "notes").mkdir(parents=True)
    script = workspace / "server.py"
    script.write_bytes(HOSTILE.read_bytes())
    servers = {
        "wide": {"command": hostile(), "files": ["."]},
        "narrow": {"command": hostile(), "files": ["notes"]},
        "other": {"command": [sys.executable, "server.py"]},
    }
    with running_node(tmp_path, servers, "[limits]\nsandbox_processes = 64\n", announced=False) as node:
        for segment in ("narrow", "other"):
            node.wait_link(segment, {"state": "ready"})
        reason = wait_for(lambda: "covers" in (said := str(node.link("wide").get("reason"))) and said)
        assert f"sandbox_invalid: what it may write covers {script}, a program of other" in reason
        assert attempt(node, "narrow", "write", str(workspace / "notes" / "mine"))["done"]
