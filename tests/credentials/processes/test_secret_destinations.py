"""Stored secrets go nowhere that no person confirmed: not to a device or a server that somebody wrote into a file."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gate.held_calls import ANCHORED, sign_configuration
from tests.servers.start import raw, serving
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.oauth_consent import find_leaks, wait_for_refusal

VALUE = "marker-secret-1"
DEVICE = """profile = "json"
[link]
transport = "mqtt_json"
host = "127.0.0.1"
tcp_port = {port}
username = "ada"
password = "${{secrets.BROKER}}"
[[tool]]
id = 1
name = "read"
mutable = false
reversible = true
"""


class Listener:
    """A broker that answers nothing, and keeps what it is sent."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.received = b""
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self.socket.accept()
                self.connections += 1
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(0.3)
                    self.received += connection.recv(4096)


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.socket.close()


def describe(folder: Path, port: int, segment: str = "pump") -> None:
    file = folder / "workspace" / ".devices" / f"{segment}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(DEVICE.format(port=port))


def set_secret(node: RunningNode, *words: str, name: str = "broker") -> Any:
    return node.cli("secrets", "set", name, *words, input=VALUE)


def reason_of(node: RunningNode, segment: str) -> str:
    return node.link(segment).get("reason") or ""


def reveals(node: RunningNode) -> list[tuple[str, str]]:
    records = [json.loads(line) for line in node.cli("audit", "export").stdout.splitlines()]
    return [(each["slug"], each["tool"]) for each in records if each["method"] == "secret.reveal"]


@pytest.mark.req("AX-11.N-3")
def test_a_new_device_file_gets_no_stored_secret_until_the_secret_is_set_for_it(
    tmp_path: Path, listener: Listener
) -> None:
    with running_node(tmp_path, {}) as node:
        set_secret(node)
        describe(tmp_path, listener.port)
        wait_for(lambda: "interlock secrets set broker --for pump" in reason_of(node, "pump"))
        assert any(f"broker 127.0.0.1:{listener.port}" in line for line in node.admin("/admin/status")["loosened"])
        assert (listener.connections, reveals(node)) == (0, [])

        assert json.loads(set_secret(node, "--for", "other", "--json").stdout)["error"] == "bad_destination"
        assert set_secret(node, "--for", "pump").returncode == 0
        wait_for(lambda: VALUE.encode() in listener.received)
        assert node.admin("/admin/status")["loosened"] == []
        assert "set for pump" in node.cli("secrets", "list").stdout
        wait_for(lambda: reveals(node) == [("broker", "pump")])
        assert VALUE not in node.cli("audit", "export").stdout

        # Another broker under the same name is another destination, and so is the same one for another value.
        def withheld() -> list[str]:
            return [line for line in node.admin("/admin/status")["loosened"] if line.startswith("secrets: ")]

        describe(tmp_path, listener.port + 1)
        assert f"127.0.0.1:{listener.port + 1}" in wait_for(withheld)[0]
        describe(tmp_path, listener.port)
        wait_for(lambda: not withheld())
        set_secret(node)
        (line,) = wait_for(withheld)
        assert line.startswith("secrets: the secret broker for pump, mqtt_json at the broker 127.0.0.1")


@pytest.mark.req("AX-11.N-1", "AX-11.N-3")
def test_a_new_device_file_is_opened_once_an_approver_has_signed_its_description(
    tmp_path: Path, listener: Listener
) -> None:
    with running_node(tmp_path, {}, ANCHORED) as node:
        set_secret(node)
        describe(tmp_path, listener.port)
        place = f"mqtt_json at the broker 127.0.0.1:{listener.port} without TLS; gets the secret broker"
        (first, *_) = wait_for(lambda: node.admin("/admin/status")["loosened"])
        assert first == f"devices.pump: a new device, {place}"
        assert place in " ".join(node.cli("status").stdout.split())
        (asked,) = wait_for(lambda: node.admin("/approvals?kind=configuration")["approvals"])
        shown = node.cli("approvals", "show", asked["id"]).stdout
        assert place in " ".join(shown.split())
        assert "devices.pump.tools: read" in shown
        assert "pump" not in {link["segment"] for link in node.admin("/admin/links")["links"]}
        assert listener.connections == 0

        sign_configuration(node)
        wait_for(lambda: VALUE.encode() in listener.received)
        assert node.admin("/admin/status")["loosened"] == []

        # A changed description waits like a new one, and the signed one stays open.
        before = listener.connections
        describe(tmp_path, 1)
        lines = wait_for(lambda: node.admin("/admin/status")["loosened"])
        assert f"devices.pump.link.tcp_port: {listener.port} -> 1" in lines
        wait_for(lambda: listener.connections > before)


@pytest.mark.req("AX-11.N-3")
def test_a_server_keeps_a_secret_from_before_and_loses_it_with_another_host(tmp_path: Path) -> None:
    with serving(raw("echo", "--token", VALUE)) as url, serving(raw("echo", "--token", VALUE)) as elsewhere:
        table = {"url": url, "headers": {"Authorization": "Bearer ${secrets.CRM}"}}
        with running_node(tmp_path, {"crm": table}) as node:
            set_secret(node, name="crm")
            node.wait_link("crm", {"state": "ready"})
            wait_for(lambda: reveals(node) == [("crm", "crm")])
            written = node.config.read_text()
            # Another server with the same secret waits, and the first one keeps it.
            other = f"[servers.other]\nurl = '{elsewhere}'\nheaders.X-Key = '${{secrets.CRM}}'\n"
            node.config.write_text(written + other)
            wait_for(lambda: "no one has confirmed" in reason_of(node, "other"))
            node.admin("/admin/links/crm/restart", "POST")
            wait_for(lambda: reveals(node) == [("crm", "crm")] * 2)
            node.wait_link("crm", {"state": "ready"})
            node.config.write_text(written.replace(url, elsewhere))
            wait_for_refusal(node, "crm", "no one has confirmed", elsewhere.removesuffix("/mcp"), "--for crm")
            assert node.link("crm")["state"] == "unauthorised"

        # The same at a start; a host may be named instead of the server.
        with running_node(tmp_path, {"crm": {**table, "url": elsewhere}}) as node:
            wait_for_refusal(node, "crm", "no one has confirmed")
            port = elsewhere.partition("//")[2].partition("/")[0].rpartition(":")[2]
            assert set_secret(node, "--for", f"127.0.0.1:{port}", name="crm").returncode == 0
            node.wait_link("crm", {"state": "ready"})
            node.stop()
            assert node.cli("secrets", "set", "crm", "--for", "crm", input=VALUE).returncode == 0
        with running_node(tmp_path, {"crm": {**table, "url": elsewhere}}) as node:
            node.wait_link("crm", {"state": "ready"})
    assert find_leaks(tmp_path) == []


@pytest.mark.req("AX-11.N-3")
def test_a_new_server_gets_a_secret_once_an_approver_has_signed_that(tmp_path: Path) -> None:
    program = "import os,sys; print('it has', len(os.environ['KEY']), file=sys.stderr, flush=True); sys.stdin.read()"
    with running_node(tmp_path, {}, ANCHORED) as node:
        set_secret(node, name="crm")
        command = json.dumps(["python3", "-c", program])
        table = f"[servers.child]\ncommand = {command}\nenv = {{ KEY = '${{secrets.CRM}}' }}\n"
        node.config.write_text(node.config.read_text() + table)
        wait_for(lambda: reason_of(node, "child"))
        wait_for_refusal(node, "child", "no one has confirmed", "the program python3")
        assert node.admin("/admin/links/child/logs")["lines"] == []
        sign_configuration(node)
        logs = wait_for(lambda: node.admin("/admin/links/child/logs")["lines"])
        assert logs[0]["text"] == f"it has {len(VALUE)}"
        wait_for(lambda: ("crm", "child") in reveals(node))
