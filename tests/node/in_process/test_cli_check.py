"""Does `check` find what a configuration needs and this machine or its servers do not have?"""

import os
from pathlib import Path

import pytest
from tests.cli.program import Finished, Inline, Interlock


@pytest.fixture
def check(inline: Inline, interlock: Interlock) -> "Check":
    return Check(inline, interlock.folder / "project")


class Check:
    """A configuration in a folder beside the data folder, checked."""

    def __init__(self, inline: Inline, folder: Path) -> None:
        self.inline, self.folder = inline, folder
        folder.mkdir()

    def __call__(self, text: str, *options: str, **env: str) -> Finished:
        (self.folder / "interlock.toml").write_text(text)
        return self.inline("check", str(self.folder / "interlock.toml"), *options, **env)

    def warnings(self, text: str, **env: str) -> list[tuple[int, str, str]]:
        done = self(text, "--json", **env)
        assert (done.code, done.json["ok"], done.json["problems"]) == (0, True, [])
        return [(one["line"], one["key"], one["message"]) for one in done.json["warnings"]]


def test_a_program_that_is_not_on_the_path_is_warned_of(check: Check) -> None:
    text = '[servers.a]\ncommand = "interlock-nonesuch --flag"\n'
    ((line, key, message),) = check.warnings(text)
    assert (line, key) == (2, "servers.a.command")
    assert message == "no program 'interlock-nonesuch' on the PATH of the server"
    done = check(text)
    assert done.code == 0
    assert "interlock.toml:2: warning: no program 'interlock-nonesuch'" in done.out
    assert "  hint: install it or give its full path\n" in done.out
    assert "interlock.toml: usable, 1 warning, 1 server, " in done.out
    assert check(text, "--strict").code == 1


def test_the_path_looked_along_is_that_of_the_server(check: Check, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "interlock-nonesuch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = f'[servers.a]\ncommand = "interlock-nonesuch"\nenv = {{ PATH = "{program.parent}" }}\n'
    assert check.warnings(text) == []
    assert check.warnings('[servers.a]\ncommand = "interlock-nonesuch"\n', PATH=str(program.parent)) == []


def test_a_program_named_by_a_path_must_be_there_and_executable(check: Check) -> None:
    text = '[servers.a]\ncommand = ["./server"]\n'
    ((_, key, message),) = check.warnings(text)
    assert (key, message) == ("servers.a.command", f"there is no program {check.folder / 'server'}")
    (check.folder / "server").write_text("#!/bin/sh\n")
    (check.folder / "server").chmod(0o644)
    assert [message for *_, message in check.warnings(text)] == [f"{check.folder / 'server'} is not executable"]
    (check.folder / "server").chmod(0o755)
    assert check.warnings(text) == []


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "server.py"],
        ["python3", "-u", "-W", "error", "server.py", "other.py"],
        ["python3.11", "server.py"],
        ["sh", "server.sh"],
    ],
)
def test_a_script_that_is_not_there_is_warned_of(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    programs(tmp_path, monkeypatch, "python3", "python3.11", "sh")
    text = f"[servers.a]\ncommand = {command}\n"
    script = next(word for word in command if word.startswith("server."))
    assert check.warnings(text) == [
        (2, "servers.a.command", f"there is no script {check.folder / script}"),
    ]
    (check.folder / script).touch()
    assert check.warnings(text) == []


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "-m", "server.py"],
        ["python3", "-c", "import server.py"],
        ["node", "-e", "x.js"],
        ["deno", "run", "https://h/server.ts"],
        ["mytool", "out.py"],
        ["python3"],
    ],
)
def test_only_scripts_are_looked_for(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    programs(tmp_path, monkeypatch, "python3", "node", "deno", "mytool")
    assert check.warnings(f"[servers.a]\ncommand = {command}\n") == []


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A PATH with these programs and no others."""
    (folder / "bin").mkdir()
    for name in names:
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))


def test_folders_that_are_not_there_are_warned_of_once(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, "a", "b")
    text = 'workspace = "gone"\n[servers.a]\ncommand = "a"\ncwd = "nowhere"\n[servers.b]\ncommand = "b"\n'
    assert check.warnings(text) == [
        (1, "workspace", f"there is no folder {check.folder / 'gone'}"),
        (4, "servers.a.cwd", f"there is no folder {check.folder / 'nowhere'}"),
    ]


def test_a_script_is_looked_for_in_the_folder_of_its_server(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, "python3")
    (check.folder / "sub").mkdir()
    (check.folder / "sub" / "server.py").touch()
    assert check.warnings('[servers.a]\ncommand = "python3 server.py"\ncwd = "sub"\n') == []


def test_npm_servers_need_node_and_docker_servers_docker(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch)
    text = '[servers.a]\nnpm = "server"\n[servers.b]\ndocker = "image"\n[servers.c]\npypi = "server"\n'
    assert check.warnings(text) == [
        (2, "servers.a.npm", "node and npm are not on the PATH"),
        (4, "servers.b.docker", "no program 'docker' on the PATH of the server"),
    ]


def test_certificates_that_are_not_there_are_warned_of(check: Check) -> None:
    found = check.warnings('[node]\ntls_cert = "c.pem"\ntls_key = "k.pem"\n')
    assert [(line, key) for line, key, _ in found] == [(2, "node.tls_cert"), (3, "node.tls_key")]


def test_keys_and_certificates_of_anchors_and_links_that_are_not_there_are_warned_of(check: Check) -> None:
    found = check.warnings(
        '[[anchor]]\nname = "a"\nkey = "a.pem"\napproves = ["*"]\n'
        '[[anchor]]\nname = "b"\njwks = "b.json"\napproves = ["*"]\n'
        '[[ax.parents]]\nurl = "wss://hub/ax"\nsegment = "e"\nca_file = "ca.pem"\n'
    )
    assert [(line, key) for line, key, _ in found] == [
        (3, "anchor[0].key"),
        (7, "anchor[1].jwks"),
        (12, "ax.parents[0].ca_file"),
    ]


def test_a_name_that_is_the_nodes_own_in_env_is_warned_of(check: Check) -> None:
    ((line, key, message),) = check.warnings('[servers.a]\ncommand = "sh"\nenv = { INTERLOCK_X = "1" }\n')
    assert (line, key) == (3, "servers.a.env.INTERLOCK_X")
    assert "INTERLOCK_X" in message


def test_an_effective_configuration_is_still_json_beside_warnings(check: Check) -> None:
    done = check('[servers.a]\ncommand = "interlock-nonesuch"\n', "--effective")
    assert done.code == 0
    assert done.json["servers"]["a"]["command"] == ["interlock-nonesuch"]
    assert "warning: " in done.err


def test_a_configuration_that_is_in_order_says_so(check: Check) -> None:
    done = check('[servers.a]\nurl = "http://127.0.0.1:1/mcp"\n', "--strict")
    assert (done.code, done.err) == (0, "")
    assert ": in order, 1 server, " in done.out


@pytest.mark.parametrize("word", ["\\u001b[2J", "a" * 5000, "日本", ".."])
def test_an_odd_program_is_warned_of_harmlessly(check: Check, word: str) -> None:
    done = check(f'[servers.a]\ncommand = ["{word}"]\n')
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "warning" in done.out


def test_a_secret_from_the_environment_is_not_repeated(check: Check) -> None:
    text = '[servers.a]\ncommand = ["${env:TOKEN_OF_A}"]\n[servers.b]\ncommand = ["sh", "${env:TOKEN_OF_A}.sh"]\n'
    done = check(text, TOKEN_OF_A="s3cret")
    assert done.out.count("warning: ") == 2
    assert "s3cret" not in done.out + done.err


def test_check_starts_no_server(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch, "witness")
    (tmp_path / "bin" / "witness").write_text(f"#!/bin/sh\n: > {tmp_path / 'started'}\n")
    assert check.warnings('[servers.a]\ncommand = "witness"\n') == []
    assert not os.path.lexists(tmp_path / "started")


@pytest.mark.req("AQL-8.6.1-2")
def test_a_required_principal_that_matches_nobody_is_warned_of(check: Check) -> None:
    made = check.inline("access", "token", "--for", "client", "--name", "laptop")
    assert made.code == 0, made.err
    everybody = '["client:*", "client:lap*", "client:laptop", "local", "*"]'
    assert check.warnings(f"[safety]\nrequire = {everybody}\n") == []
    issuers = '[auth]\nissuers = [{ name = "corp", url = "https://login.example.com" }]\n'
    may_come = '["client:corp/*", "client:corp/alice@x", "client:c*"]'
    assert check.warnings(f"{issuers}[safety]\nrequire = {may_come}\n") == []
    text = '[safety]\nrequire = ["laptop", "clients:*", "client:other", "client:corp/*", "room:x"]\n'
    found = check.warnings(text)
    assert [(line, key) for line, key, _ in found] == [(2, "safety.require")] * 5
    for (_, _, message), name in zip(
        found, ("laptop", "clients:*", "client:other", "client:corp/*", "room:x"), strict=True
    ):
        assert message == f"'require' in [safety] names '{name}', which matches no client"
    assert "hint: client:* is every client" in check(text).out
