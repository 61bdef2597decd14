"""Does `interlock doctor` find each thing that is wrong, and does its command mend it?"""

import json
import os
import shlex
import socket
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cli.program import Inline, Interlock
from tests.operator.fake_node import FakeOperations, link

from interlock.node.cli import set_up_checks as checks

KEY = '[[anchor]]\nname = "ada"\nkey = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="\napproves = ["*"]\n'


def listening(public: int = 0, operator: int = 0) -> str:
    return f'[node]\nlisten = "127.0.0.1:{public}"\noperator_listen = "127.0.0.1:{operator}"\n'


class Place:
    """A set-up in which nothing is wrong, until a test spoils it."""

    def __init__(self, interlock: Interlock, inline: Inline) -> None:
        self.interlock, self.inline = interlock, inline
        self.data = interlock.data
        self.data.chmod(0o700)
        self.workspace = interlock.folder / "work"
        self.workspace.mkdir()
        self.write("")

    def write(self, text: str, *, key: str = KEY, node: str = "") -> None:
        whole = f"workspace = 'work'\n{key}{node or listening()}{text}"
        (self.interlock.folder / "interlock.toml").write_text(whole)

    def findings(self, check: str | None = None) -> list[dict[str, Any]]:
        done = self.inline("doctor", "--json")
        found: list[dict[str, Any]] = done.json["findings"]
        assert (done.code, done.json["ok"]) == ((1, False) if found else (0, True)), done.out
        return [one for one in found if check in (None, one["check"])]

    def only(self, check: str) -> dict[str, Any]:
        (one,) = self.findings(check)
        assert one["problem"]
        assert one["remedy"]
        return one

    def mend(self, finding: dict[str, Any], stdin: str = "") -> None:
        """Runs the command as it is written."""
        words = shlex.split(finding["command"])
        if words[0] != "interlock":
            subprocess.run(words, check=True)
            return
        done = self.interlock(*words[1:], stdin=stdin, INTERLOCK_PASSPHRASE="correct horse battery")
        assert done.code == 0, (words, done.out, done.err)

    def write_program(self, name: str, script: str) -> str:
        """Gives the PATH on which it is found first."""
        folder = self.interlock.folder / "programs"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def place(interlock: Interlock, inline: Inline) -> Place:
    return Place(interlock, inline)


def test_nothing_is_wrong_with_a_set_up_in_order(place: Place) -> None:
    assert place.findings() == []
    done = place.inline("doctor")
    assert (done.code, done.out) == (0, f"nothing is wrong ({len(checks.CHECKS)} checks, no node is running)\n")


def test_a_broken_configuration_is_found_and_the_rest_is_looked_at_all_the_same(place: Place) -> None:
    place.write("[servers.x]\nurl_ = 1\n")
    place.data.chmod(0o755)
    found = place.findings()
    assert {one["check"] for one in found} >= {"configuration", "permission"}
    assert any("'url_'" in one["problem"] and one["command"] == "interlock check" for one in found)


def test_a_missing_program_and_a_missing_secret_are_found_as_check_finds_them(place: Place) -> None:
    place.write(
        "[servers.away]\ncommand = 'no-such-program-anywhere'\n"
        "[servers.needy]\nurl = 'https://mcp.example.com'\nheaders.X-Key = '${secrets.CRM_KEY}'\n"
    )
    found = {one["command"]: one["problem"] for one in place.findings("configuration")}
    assert "no-such-program-anywhere" in found[None]
    assert "it needs the secret crm-key, which is not set" in found["interlock secrets set crm-key"]
    checked = place.inline("check")
    assert checked.code == 0
    assert "it needs the secret crm-key, which is not set" in checked.out
    place.mend({"command": "interlock secrets set crm-key"}, stdin="hush\n")
    assert [one["problem"] for one in place.findings("configuration")] == [found[None]]
    assert "crm-key" not in place.inline("check").out


def test_an_unset_variable_is_found(place: Place) -> None:
    place.write("[servers.needy]\ncommand = ['true', '${env:NOT_SET_ANYWHERE}']\n")
    assert "NOT_SET_ANYWHERE" in place.only("configuration")["problem"]


def test_a_port_of_another_program_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.node.sockets.PATIENCE_S", 0.05)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        place.write("", node=listening(port))
        assert place.only("address")["problem"] == f"node.listen: 127.0.0.1:{port}: Address already in use"
    assert place.findings() == []


def test_another_interlock_on_the_port_is_recognised_at_both_endpoints(place: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Interlock(tmp_path / "other")
    (other.folder / "interlock.toml").write_text(listening())
    with other.start("serve", "--json") as running:
        node = json.loads(running.next_line())["node"]
        public, operator = (int(node[key].rpartition(":")[2].strip("/")) for key in ("url", "operator_url"))
        place.write("", node=listening(public, operator))
        assert [one["problem"] for one in place.findings("address")] == [
            "node.listen: another Interlock node listens there",
            "node.operator_listen: another Interlock node listens there",
        ]
        refused = place.interlock("serve")
        assert refused.code == 1
        assert f"another Interlock node listens on 127.0.0.1:{public} and 127.0.0.1:{operator}" in refused.err
        beside = refused.err.partition("start this one beside it: ")[2]
        variables = dict(word.split("=", 1) for word in beside.split() if "=" in word)
        assert beside.split()[-2:] == ["interlock", "serve"]
        with place.interlock.start("serve", "--json", **variables) as started:
            node = json.loads(started.next_line())["node"]
        assert [node[key].partition("//")[2].strip("/") for key in ("url", "operator_url")] == list(variables.values())


def test_open_files_are_found_and_closed(place: Place) -> None:
    place.data.chmod(0o755)
    keys = place.interlock.folder / ".config" / "interlock" / "keys"
    keys.mkdir(parents=True)
    for path in (place.data / "secrets.key", keys / "ada.key"):
        path.write_text("x")
        path.chmod(0o644)
    found = place.findings("permission")
    assert [Path(one["command"].split()[-1]).name for one in found] == ["data", "secrets.key", "ada.key"]
    for one in found:
        place.mend(one)
    assert place.findings() == []


def test_an_old_runtime_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("[servers.s]\nnpm = 'some-server'\n")
    monkeypatch.setenv("PATH", place.write_program("node", "echo v18.20.1"))
    assert "v18.20.1 is too old" in place.only("runtime")["problem"]
    place.write_program("node", "echo v22.1.0")
    assert place.findings("runtime") == []


def test_a_container_runtime_that_does_not_answer_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("[servers.s]\ndocker = 'mcp/time'\n")
    monkeypatch.setenv("PATH", place.write_program("docker", "exit 1"))
    assert "its daemon does not answer" in place.only("runtime")["problem"]
    place.write_program("docker", "echo fine")
    assert place.findings("runtime") == []


def test_a_machine_without_sandboxes_is_reported_where_a_driver_needs_a_sandbox(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place.workspace / ".drivers" / "files-mcp"
    folder.mkdir(parents=True)
    (folder / "DRIVER.md").write_text("---\nname: x\n---\n")
    monkeypatch.setattr("interlock.node.cli.set_up_checks.no_sandbox", lambda: "bubblewrap is not installed")
    assert "files-mcp: bubblewrap is not installed" in place.only("sandbox")["problem"]


def test_an_expired_token_is_found_and_replaced(place: Place, node: FakeOperations) -> None:
    node.link_list = []
    node.token_list[0]["expires_at"] = "2020-01-01T00:00:00Z"
    found = place.only("token")
    assert found["problem"] == "the token laptop (client) has expired"
    assert found["command"] == "interlock access token --for client --name laptop"
    place.mend(found)


def test_a_token_is_read_from_the_store_where_no_node_runs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.interlock("access", "token", "--for", "client", "--name", "laptop", "--days", "1").code == 0
    assert place.findings() == []
    late = datetime.fromtimestamp(time.time() + 2 * 86400, UTC)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return late

    monkeypatch.setattr(checks, "datetime", Later)
    assert place.only("token")["problem"] == "the token laptop (client) has expired"


def test_a_clock_that_was_set_back_is_found(place: Place) -> None:
    ahead = time.time() + 3600
    (place.data / "identity.json").touch(mode=0o600)
    os.utime(place.data / "identity.json", (ahead, ahead))
    assert "the clock is behind" in place.only("clock")["problem"]


def test_a_node_without_an_approver_is_reported_and_init_makes_an_approver(place: Place) -> None:
    place.write("", key="")
    found = place.only("approver")
    assert found["command"] == "interlock init"
    place.mend(found)
    assert place.findings("approver") == []


def test_a_client_of_agents_is_reported_until_an_approver_is_enrolled(place: Place) -> None:
    (place.interlock.folder / ".claude.json").write_text("{}")
    found = place.only("approver")
    assert found["problem"] == "Claude Code can start agents on this machine, and no approver is enrolled"
    assert found["command"] == "interlock init"
    place.mend(found)
    assert place.findings("approver") == []


@pytest.mark.parametrize(
    "text",
    [
        '[gate]\nmode = "open"\n',
        '[gate]\nunannotated = "allow"\n',
        '[ax]\nrequire_proof = "never"\n',
        "[drivers]\ntrust_workspace = true\n",
        "[drivers]\nallow_unverified_install = true\n",
        '[drivers]\nsandbox = { x-mcp = "off" }\n',
    ],
)
def test_an_unsafe_setting_is_found(place: Place, text: str) -> None:
    place.write(text)
    section, key = text.splitlines()[0][1:-1], text.splitlines()[1].split()[0]
    assert place.only("unsafe")["problem"].startswith(f"{section}.{key}")


def test_an_unsafe_setting_that_waits_for_a_signature_is_not_called_in_effect(
    place: Place, node: FakeOperations
) -> None:
    place.write('[gate]\nmode = "open"\nunannotated = "allow"\n')
    node.loosened = ['gate.mode: "gated" -> "open"']
    waiting, counting = (one["problem"] for one in place.findings("unsafe"))
    assert waiting.endswith("a signature is missing, so it does not count yet")
    assert "signature" not in counting


def test_a_dead_server_is_found_with_its_last_words_and_started_again(place: Place, node: FakeOperations) -> None:
    node.link_list = [
        link("time"),
        link("memory", "failed", reason="exited with code 1", last_words="no such repository", stderr_lines=3),
    ]
    found = place.only("server")
    assert found["problem"] == "memory is failed: exited with code 1; it wrote: no such repository"
    status = place.inline("status").out
    assert "it wrote: no such repository" in status
    place.mend(found)
    assert node.restarted == ["memory"]


def test_a_server_that_wants_a_person_is_found(place: Place, node: FakeOperations) -> None:
    node.link_list = [link("crm", "unauthorised", reason="it wants a token", consent=True)]
    assert place.only("server")["command"] == "interlock links restart crm --authorize"
    needs = "it needs the secret crm-token: interlock secrets set crm-token"
    node.link_list = [link("crm", "unauthorised", reason=needs)]
    assert place.only("server")["command"] == "interlock secrets set crm-token"
    needs = "it needs the environment variable KEY: set it, then start the node again"
    node.link_list = [link("crm", "failed", reason=needs)]
    found = place.only("server")
    assert (found["command"], "links logs" in found["remedy"]) == (None, False)
    assert "a node is running" in place.inline("doctor").out


@pytest.mark.req("AQL-8.6.1-2")
def test_a_required_principal_that_matches_nobody_is_found(place: Place) -> None:
    place.write('[safety]\nrequire = ["client:*", "coder"]\n')
    finding = place.only("configuration")
    assert finding["problem"].endswith("'require' in [safety] names 'coder', which matches no client")
