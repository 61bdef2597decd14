"""What a node of a tree refuses to start with, and that the message says what to do (MCP-AX 10.4)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ax.tree import ax_url, parent, parents, wait_parent
from tests.support.client_certificates import Issuer
from tests.support.node_process import running_node, wait_for, write_config

KEY = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="


def started(folder: Path, extra: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    config = write_config(folder / "n", {}, extra)
    command = [sys.executable, "-m", "interlock", "serve", "--config", str(config), "--data", str(folder / "data")]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, env={**os.environ, **(env or {})}
    )


@pytest.mark.req("AX-10.4-1")
@pytest.mark.parametrize("host", ["hub.example.com", "192.0.2.1:7411", "[2001:db8::1]:7411", "127.0.0.1.example.com"])
def test_a_plaintext_link_beyond_this_machine_refuses_to_start(tmp_path: Path, host: str) -> None:
    ended = started(tmp_path, f'[[ax.parents]]\nurl = "ws://{host}/ax"\nsegment = "edge"\n')
    assert ended.returncode in (1, 2)
    assert "without TLS" in ended.stderr and "wss://" in ended.stderr and "secure_by" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data" / "run" / "admin.sock").exists()


@pytest.mark.parametrize("key", ["ca_file", "tls_cert", "tls_key"])
def test_files_of_a_link_that_cannot_be_used_stop_the_start_and_are_named(tmp_path: Path, key: str) -> None:
    issuer = Issuer(tmp_path)
    one, other = issuer.issue("x", ["x.example"]), issuer.issue("y", ["y.example"])
    parent = '[[ax.parents]]\nurl = "wss://hub.example.com/ax"\nsegment = "edge"\n'
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for path in (tmp_path / "none.pem", nonsense, other.key if key == "tls_key" else tmp_path):
        files = {"ca_file": issuer.pem, "tls_cert": one.pem, "tls_key": one.key, key: path}
        ended = started(tmp_path, parent + "".join(f'{name} = "{file}"\n' for name, file in files.items()))
        assert ended.returncode == 1, path
        assert str(path) in ended.stderr and "Traceback" not in ended.stderr, ended.stderr


def test_files_of_a_link_that_cannot_be_used_leave_the_link_as_it_is_when_the_configuration_changes(
    tmp_path: Path,
) -> None:
    with running_node(tmp_path / "root", {}) as root:
        above = parents((ax_url(root), "edge"), authority=None)
        with running_node(tmp_path / "edge", {}, above) as node:
            wait_parent(node, {"state": "registered"})
            written = node.config.read_text()
            key = node.data / "node.key"
            key.write_text("nonsense")
            key.chmod(0o600)
            for worse, says in (
                (above + '[[ax.parents]]\nurl = "wss://hub/ax"\nsegment = "e"\nca_file = "none.pem"\n', "none.pem"),
                (above + 'authority = "dns:edge.example"\n', "node.key"),
            ):
                node.config.write_text(written.replace(above, worse))
                trouble = wait_for(lambda: node.admin("/admin/status")["configuration"]["problem"])
                assert says in trouble
                assert parent(node)["state"] == "registered"
                node.config.write_text(written)
                wait_for(lambda: node.admin("/admin/status")["configuration"]["problem"] is None)


@pytest.mark.parametrize("lone", ["tls_cert", "tls_key"])
def test_a_certificate_needs_its_key(tmp_path: Path, lone: str) -> None:
    ended = started(tmp_path, f'[[ax.parents]]\nurl = "wss://hub/ax"\nsegment = "e"\n{lone} = "x.pem"\n')
    assert ended.returncode in (1, 2) and "needs" in ended.stderr


def test_certificates_for_a_link_without_tls_are_a_mistake(tmp_path: Path) -> None:
    ended = started(tmp_path, '[[ax.parents]]\nurl = "ws://127.0.0.1:9/ax"\nsegment = "e"\nca_file = "ca.pem"\n')
    assert ended.returncode in (1, 2) and "wss://" in ended.stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [('client_ca = "ca.pem"', "trusted_proxies"), ('tls_cert = "c"\ntls_key = "k"\ncrl = "c.pem"', "client_ca")],
)
def test_a_ca_that_nobody_could_use_is_a_mistake(tmp_path: Path, line: str, says: str) -> None:
    listens = 'listen = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"'
    ended = started(tmp_path, f"[node]\n{listens}\n{line}\n")
    assert ended.returncode in (1, 2) and says in ended.stderr
