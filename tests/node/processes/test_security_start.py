"""Where a node listens, whom it takes for local, and what it refuses to start with."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import RunningNode, running_node
from tests.support.raw_client import ask, ask_in_every_way, assert_discreet, assert_unharmed, call, hello, request


def interlock(*words: str, config: Path, data: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "interlock", *words, "--config", str(config), "--data", str(data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def written(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "interlock.toml"
    config.write_text(text)
    return config


def listening(pid: int) -> set[tuple[str, int]]:
    """The TCP addresses a process listens on."""
    inodes = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                packed = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
                found.add((socket.inet_ntop(family, packed), int(port, 16)))
    return found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("start"), {"good": {"command": raw("all")}}) as started:
        yield started
        assert_unharmed(started)


def test_a_node_listens_on_loopback_by_default(tmp_path: Path, node: RunningNode) -> None:
    shown = interlock("check", "--effective", "--json", config=written(tmp_path / "w", ""), data=tmp_path / "data")
    assert shown.returncode == 0, shown.stderr
    assert "127.0.0.1:7411" in shown.stdout and "127.0.0.1:7412" in shown.stdout
    assert "0.0.0.0" not in shown.stdout
    operator = int(node.operator_url.rsplit(":", 1)[1])
    # The operator door has both loopback addresses where there are two: browsers take localhost for either.
    assert listening(node.process.pid) - {("::1", operator)} == {("127.0.0.1", node.port), ("127.0.0.1", operator)}


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:7411", "example.com:7411"])
def test_a_bind_beyond_loopback_without_authentication_refuses_to_start(tmp_path: Path, listen: str) -> None:
    text = f'[node]\nlisten = "{listen}"\noperator_listen = "127.0.0.1:0"\n[auth]\nanonymous = "any"\n'
    refused = interlock("serve", config=written(tmp_path / "w", text), data=tmp_path / "data")
    assert refused.returncode in (1, 2)
    assert "anonymous" in refused.stderr and "never" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "data" / "run" / "admin.sock").exists()


def test_the_same_is_refused_when_the_environment_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_AUTH__ANONYMOUS", "any")
    monkeypatch.setenv("INTERLOCK_NODE__LISTEN", "0.0.0.0:0")
    refused = interlock("serve", config=written(tmp_path / "w", ""), data=tmp_path / "data")
    assert refused.returncode in (1, 2)
    assert "any" in refused.stderr


def test_one_address_for_both_endpoints_is_refused(tmp_path: Path) -> None:
    text = '[node]\nlisten = "127.0.0.1:7411"\noperator_listen = "127.0.0.1:7411"\n'
    refused = interlock("serve", config=written(tmp_path / "w", text), data=tmp_path / "data")
    assert refused.returncode in (1, 2)
    assert "operator_listen" in refused.stderr


def own_address() -> str | None:
    """An address of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def test_beyond_loopback_nobody_comes_in_without_a_token(tmp_path: Path) -> None:
    address = own_address()
    if address is None or address.startswith("127."):
        pytest.skip("this machine has no address beyond loopback")
    extra = '[node]\nlisten = "0.0.0.0:0"\noperator_listen = "127.0.0.1:0"\n'
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}, extra) as node:
        token = node.admin("/admin/tokens", "POST", {"name": "far", "for": "client"})["token"]
        near = node.host
        node.host = address
        assert ask(node, call("good__echo", host=address)).status == 401
        assert ask(node, hello(host=address)).status == 401
        assert ask(node, call("good__echo", host=address, authorization=f"Bearer {token}")).status == 200
        node.host = near
        assert_unharmed(node)


FORWARDED: dict[str, str] = {
    "x-forwarded-for": "203.0.113.9",
    "forwarded": "for=203.0.113.9;proto=https",
    "x-real-ip": "203.0.113.9",
    "x-forwarded-host": "mcp.example",
    "x-forwarded-proto": "https",
    "via": "1.1 proxy",
}


@pytest.mark.parametrize("header", FORWARDED)
def test_a_request_that_a_proxy_passed_on_is_not_local(node: RunningNode, header: str) -> None:
    """Even with an empty or a loopback value: the proxy's word on who is behind it is not believed."""
    for value in (FORWARDED[header], "127.0.0.1", ""):
        extra: dict[str, Any] = {header.replace("-", "_"): value}
        stream = request("GET", "/sse", {header: value})
        for data in (call("good__echo", **extra), hello(**extra), stream):
            answer = ask_in_every_way(node, data)
            assert (answer.status, answer.json["error"]) == (401, "unauthorised"), value
    token = node.admin("/admin/tokens", "POST", {"name": "proxied", "for": "client"})["token"]
    extra = {header.replace("-", "_"): FORWARDED[header], "authorization": f"Bearer {token}"}
    assert "result" in ask(node, call("good__echo", **extra)).json


def test_local_clients_need_a_token_where_anonymous_is_never(tmp_path: Path) -> None:
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}, '[auth]\nanonymous = "never"\n') as node:
        assert ask(node, call("good__echo")).status == 401
        assert ask(node, hello()).status == 401
        token = node.admin("/admin/tokens", "POST", {"name": "me", "for": "client"})["token"]
        assert ask(node, call("good__echo", authorization=f"Bearer {token}")).status == 200


def test_wrong_configurations_are_refused_in_words(tmp_path: Path) -> None:
    wrong = {
        "not TOML": "[node\n",
        "an unknown key": "[node]\nlisten_on = 1\n",
        "two ways to one server": '[servers.x]\ncommand = "true"\nurl = "http://127.0.0.1:9/mcp"\n',
    }
    for name, text in wrong.items():
        ports = '\n[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n' if "[node" not in text else ""
        refused = interlock("serve", config=written(tmp_path / "w", text + ports), data=tmp_path / "data")
        assert refused.returncode in (1, 2), (name, refused.stderr)
        assert "Traceback" not in refused.stderr and refused.stderr.strip(), name


def test_a_server_that_cannot_be_started_as_written_fails_alone_and_says_why(tmp_path: Path) -> None:
    servers: dict[str, dict[str, Any]] = {
        "good": {"command": raw("all")},
        "reserved": {"command": raw("echo"), "env": {"INTERLOCK_TOKEN": "x"}},
        "nowhere": {"command": raw("echo"), "cwd": str(tmp_path / "no such folder")},
        "folder": {"command": [str(tmp_path)]},
    }
    with running_node(tmp_path / "n", servers) as node:
        for segment, word in (("reserved", "INTERLOCK_TOKEN"), ("nowhere", "folder"), ("folder", "permission")):
            link = node.wait_link(segment, {"state": "failed"})
            assert word.lower() in link["reason"].lower(), link["reason"]
        assert_unharmed(node)


def test_answers_to_bad_operator_requests_reveal_nothing(node: RunningNode) -> None:
    for path in (
        "/admin/links/nobody",
        "/admin/tools/nothing",
        "/admin/audit?after=x",
        "/admin/links/good/logs?lines=-1",
        "/x",
    ):
        answer = node.admin(path)
        assert set(answer) == {"error", "message", "details"}
        assert_discreet(json.dumps(answer).encode())
    for body in ({}, {"name": "", "for": "client"}, {"name": "x", "for": "root"}, {"name": "../x", "for": "client"}):
        assert "error" in node.admin("/admin/tokens", "POST", body)
