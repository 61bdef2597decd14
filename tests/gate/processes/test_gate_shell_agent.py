"""An agent with a shell: the node's own user, every verb, the socket, the login link, the configuration file.

It has everything that the person has except a passphrase, a passkey, and the terminal the node runs on.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import preloaded
from tests.approvals.processes.test_gate_passkeys import Making
from tests.gate.held_calls import (
    ADA,
    MALLORY,
    ActuatorLog,
    Client,
    actuator_table,
    anchor,
    proof,
    sign_configuration,
    signed_enrolment,
)
from tests.operator.processes.test_login import Page, link
from tests.servers.authenticator import Authenticator
from tests.support import intervals
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from typer.main import get_command

from interlock.cli.app import VERBS, load_app
from interlock.operator.openapi import OPERATIONS

PASSPHRASE, GUESS = "correct horse", "hunter2!"
SAFETY = '[gate]\nmode = "gated"\n[safety]\nmode = "enforcing"\npreapproved = true\nagents.coder = {}\n'
QUICK = {intervals.SCRYPT_N: 2**12}
WAITS_FOR_A_BROWSER = ("access", "passkey")  # tried below, with one


class Home:
    """The one home of the person and of the agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        self.env = {**kept, "HOME": str(folder), **preloaded.settings(QUICK)}

    def run(self, *words: str, passphrase: str = PASSPHRASE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "interlock", *words],
            env={**self.env, "INTERLOCK_PASSPHRASE": passphrase},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )


class Place:
    def __init__(self, node: RunningNode, home: Home) -> None:
        self.node, self.home = node, home
        self.heard = ""  # everything that the agent was ever told
        self.waiting: dict[str, str] = {}  # kind -> id of what only the person may decide

    def shell(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The agent runs a command."""
        where = ("--config", str(self.node.config), "--data", str(self.node.data))
        done = self.home.run(*words, *where, passphrase=GUESS)
        self.heard += done.stdout + done.stderr
        return done

    def person(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.home.run(*words, "--config", str(self.node.config), "--data", str(self.node.data))

    def believed(self) -> list[str]:
        return [one["name"] for one in self.node.admin("/admin/approvers")["approvers"] if one["approves"]]

    def check(self) -> None:
        """Nothing was approved, nobody was enrolled, and the agent of the safety loop is still blocked."""
        (agent,) = self.node.admin("/admin/agents")["agents"]
        assert agent["is_blocked"]
        self.waiting["verify"] = agent["approval_id"]  # a fresh code may be ordered, and makes a fresh question
        assert self.believed() == ["ada"]
        stood = {kind: self.node.admin(f"/approvals/{id}")["status"] for kind, id in self.waiting.items()}
        assert set(stood.values()) == {"pending"}, stood


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("shell")
    home = Home(folder / "home")
    printed = home.run("access", "key", "ada").stdout
    diary = ActuatorLog(folder / "diary.jsonl")
    with running_node(folder, {"plant": actuator_table(diary)}, printed + SAFETY, env=home.env, settings=QUICK) as node:
        node.wait_link("plant", {"state": "ready"})
        here = Place(node, home)
        token = json.loads(here.person("access", "token", "--for", "client", "--name", "laptop", "--json").stdout)
        with Client(node, token=token["token"]) as client:
            here.waiting["call"] = client.held("plant.fire", {"n": 1})["confirmation_id"]
            here.waiting["definition"] = client.held("plant.silent", {})["confirmation_id"]
        _do(node, token["token"], "execute_agent", element_name="coder")
        _do(node, token["token"], "record_execution_step", element_name="coder", nextActionHint="drop_table users")
        here.check()
        yield here


def _do(node: RunningNode, token: str, operation: str, **params: Any) -> None:
    family = "create" if operation == "record_execution_step" else "execute"
    with Wire(node, "/mcp/aql", token) as wire:
        arguments = {"operation": operation, "params": params}
        wire.modern("tools/call", {"name": f"mcp_aql_{family}", "arguments": arguments})


def verbs() -> list[tuple[tuple[str, ...], Any]]:
    """Every command of the program, found by walking it: a new verb is tried without anybody naming it here."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        below = getattr(command, "commands", {})
        if not below or command.invoke_without_command:
            yield path, command
        for name, one in below.items():
            yield from walk(one, (*path, name))

    return [found for name in VERBS for found in walk(get_command(load_app(name)), (name,))]


def attempts(path: tuple[str, ...], command: Any, subject: str) -> Iterator[list[str]]:
    """A verb with what it needs and a yes to everything it would ask, about one thing that waits."""
    needed: list[str] = []
    for one in command.params:
        if one.required:
            choices = list(getattr(one.type, "choices", ()))
            value = str(choices[-1]) if choices else "1" if "INT" in type(one.type).__name__.upper() else subject
            needed += [value] if one.param_type_name == "argument" else [one.opts[0], value]
    yes = ["--yes"] if any("--yes" in one.opts for one in command.params) else []
    yield [*path, *needed, *yes]
    if any("--json" in one.opts for one in command.params):
        yield [*path, *needed, *yes, "--json"]


@pytest.mark.req("AQL-X-1")
@pytest.mark.timeout(180)
def test_no_verb_enrols_approves_or_shows_a_code(place: Place) -> None:
    for path, command in verbs():
        if path == WAITS_FOR_A_BROWSER or path == ("deny",):  # to say no is anybody's on the machine
            continue
        for words in attempts(path, command, place.waiting["call"]):
            place.shell(*words)
    for id in place.waiting.values():
        for words in (
            ("approve", id, "--yes"),
            ("approve", id, "--yes", "--class", "read_only"),
            ("approve", id, "--yes", "--key", "ada"),
            ("approve", id, "--yes", "--proof", "eyJhbGciOiJub25lIn0.e30."),
            ("approve", id, "--yes", "--code", "AAAA-AAAA"),
            ("approvals", "show", id, "--code"),
            ("approvals", "show", id, "--json"),
            ("agents", "unblock", "coder"),
            ("agents", "unblock", "coder", "--code"),
            ("access", "token", "--for", "operator", "--name", "eve", "--scope", "admin", "--json"),
        ):
            place.shell(*words)
    place.check()


@pytest.mark.req("AQL-X-1")
def test_a_token_minted_on_the_machine_decides_nothing(place: Place) -> None:
    made = place.shell("access", "token", "--for", "operator", "--name", "eve", "--scope", "admin", "--json")
    page = Page(place.node)
    held = {"authorization": f"Bearer {json.loads(made.stdout)['token']}"}
    assert page.send("GET", "/session", **held)[1]["roles"] == ["admin", "viewer"]
    for id in place.waiting.values():
        assert page.send("POST", f"/approvals/{id}", {"decision": "approve"}, **held)[0] in (400, 403)
        assert page.send("POST", f"/approvals/{id}/code", {"proof": "x"}, **held)[0] in (400, 403)
    place.check()


def test_a_key_or_passkey_of_the_agents_own_waits_for_the_person(place: Place) -> None:
    """However it comes: by command, by the page's own requests, by the configuration file."""
    node, page = place.node, Page(place.node)
    assert page.log_in(link(node))[0] == 200
    printed = place.shell("access", "key", "eve").stdout
    making, made = Making(node, *WAITS_FOR_A_BROWSER, "mallory"), Authenticator()
    making.enrol(made)
    printed += making.ended()[1] + anchor("intruder", MALLORY, "*")
    with node.config.open("a") as file:
        file.write(printed)
    status, asked = page.send("POST", "/admin/approvers", {"name": "page", "passphrase": GUESS})
    assert (status, asked["kind"], asked["status"]) == (201, "enrolment", "pending")

    def waiting() -> dict[str, str]:
        found = node.admin("/approvals?kind=enrolment")["approvals"]
        return {one["tool"].partition(".")[2]: one["id"] for one in found}

    names = {"eve", "mallory", "intruder", "page"}
    wait_for(lambda: names <= waiting().keys())
    place.check()
    for name, id in waiting().items():
        assert place.shell("approve", id, "--yes", "--key", name).returncode != 0
        answers = [
            page.send("POST", f"/approvals/{id}/proof", {"key": name, "passphrase": GUESS}),
            page.send("POST", f"/approvals/{id}", {"decision": "approve", "code": "AAAAAAAA"}),
            page.send("POST", f"/approvals/{id}", {"decision": "approve"}),
            page.send(
                "POST", f"/approvals/{id}", {"decision": "approve", "proof": signed_enrolment(node, id, MALLORY)}
            ),
        ]
        assert {status for status, _ in answers} == {403}, answers
    shown = node.admin("/admin/status")["approvers"]
    assert {one["name"] for one in shown if one["wants"]} == names - {"page"}
    assert "approver intruder is configured and not enrolled" in place.shell("status").stdout
    demand = node.admin(f"/approvals/{place.waiting['call']}")
    claims = {
        "confirmation_id": demand["id"],
        "call_digest": demand["digest"],
        "aggregator_id": demand["aggregator_id"],
    }
    refused = node.admin(f"/approvals/{demand['id']}", "POST", {"decision": "approve", "proof": proof(claims, MALLORY)})
    assert refused["error"] == "proof_invalid"
    place.check()


def test_no_endpoint_enrols_approves_or_shows_a_code_to_the_login_links_session(place: Place) -> None:
    page = Page(place.node)
    assert page.log_in(link(place.node))[0] == 200
    kept = {"DELETE /session", "DELETE /admin/keys/{ref}", "GET /approvals/events"}  # log out, take away, never end
    for endpoint in OPERATIONS:
        if f"{endpoint.method} {endpoint.path}" in kept or endpoint.is_stream:
            continue
        for id in place.waiting.values():
            path = "/".join(id if part.startswith("{") else part for part in endpoint.path.split("/"))
            for body in _bodies(endpoint):
                if "deny" not in json.dumps(body):
                    place.heard += json.dumps(page.send(endpoint.method, path, body)[1])
    place.check()


def test_the_cookie_of_the_session_alone_opens_two_pages_without_a_code_and_decides_nothing(place: Place) -> None:
    """Browsers send it to every port of a host, so that another program there has it."""
    page, html = Page(place.node), {"accept": "text/html"}
    assert page.log_in(link(place.node))[0] == 200
    page.key = ""
    for path in ("/approvers", *(f"/approvals/{id}" for id in place.waiting.values())):
        status, shown = page.send("GET", path, **html)
        assert status == 200, path
        place.heard += shown
        assert page.send("GET", path)[0] in (401, 403, 404)  # as data
    form = {**html, "content_type": "application/x-www-form-urlencoded"}
    for id in place.waiting.values():
        assert page.send("GET", f"/approvals/{id[:8]}", **html)[0] in (401, 403)  # it finds no id by itself
        for sent in (b"decision=approve", b"decision=deny", b"decision=approve&class=read_only&code=AAAAAAAA"):
            assert page.send("POST", f"/approvals/{id}", sent, **form)[0] in (401, 403)
    place.check()


def _bodies(endpoint: Any) -> list[Any]:
    if endpoint.method != "POST":
        return [None]
    return [
        {},
        {"decision": "approve"},
        {"decision": "approve", "class": "read_only", "proof": "x.y.z"},
        {"decision": "approve", "code": "AAAAAAAA"},
        {"proof": "x.y.z"},
        {"passphrase": GUESS},
        {"passphrase": GUESS, "class": "reveal"},
        {"principal": "client:laptop", "name": "coder"},
    ]


def test_the_person_still_decides_and_what_they_are_shown_the_agent_never_saw(place: Place) -> None:
    id = place.node.admin("/admin/agents")["agents"][0]["approval_id"]
    shown = place.person("approvals", "show", id, "--code", "--key", "ada", "--json")
    assert shown.returncode == 0, shown.stderr
    code = json.loads(shown.stdout)["code"]
    heard = place.heard + (place.node.data.parent / "stderr.txt").read_text()
    assert code not in heard
    assert code.replace("-", "") not in heard
    approved = place.person("approve", place.waiting["call"], "--yes", "--key", "ada", "--json")
    assert json.loads(approved.stdout)["status"] == "approved", approved.stderr
    for text in (PASSPHRASE, GUESS):
        on_disk = b"".join(path.read_bytes() for path in place.node.data.rglob("*") if path.is_file())
        assert text.encode() not in on_disk + heard.encode()


@pytest.mark.req("AX-11.N-1")
def test_what_loosens_the_guard_waits_until_an_approver_signs_and_no_code_goes_to_a_new_channel(tmp_path: Path) -> None:
    leak = tmp_path / "leak"
    extra = anchor("ada", ADA, "*") + SAFETY
    servers = {"plant": actuator_table(ActuatorLog(tmp_path / "diary.jsonl"))}

    def mode(node: RunningNode) -> str:
        return str(node.admin("/admin/config")["gate"]["mode"])

    with running_node(tmp_path, servers, extra) as node:
        node.wait_link("plant", {"state": "ready"})
        token = json.loads(node.cli("access", "token", "--for", "client", "--name", "laptop", "--json").stdout)["token"]
        _do(node, token, "execute_agent", element_name="coder")
        _do(node, token, "record_execution_step", element_name="coder", nextActionHint="drop_table users")
        assert node.admin("/admin/status")["loosened"] == []
        strict = node.config.read_text()
        changed = strict.replace('mode = "gated"', 'mode = "open"')
        channel = f'[approvals]\nchannels = ["cli", "command"]\ncommand = "tee -a {leak}"\n'
        loose = channel + changed.replace(anchor("ada", ADA, "*"), "")
        node.config.write_text(loose)
        lines = [
            'gate.mode: "gated" -> "open"',
            'approvals.channels: ["cli"] -> ["cli","command"]',
            f"approvals.command: tee -a {leak}",
        ]
        wait_for(lambda: node.admin("/admin/status")["loosened"] == lines)
        assert mode(node) == "gated"
        with Client(node, token=token) as client:
            refused = client.ask("tools/call", {"name": "plant.fire", "arguments": {"n": 1}})
            assert refused["error"]["data"]["reason"] == "agent_blocked"

    # The same file at a start, without the approver in it: what was signed still counts.
    with running_node(tmp_path, servers, loose.split("[servers")[0]) as node:
        assert node.admin("/admin/status")["loosened"] == lines
        assert mode(node) == "gated"
        node.config.write_text(channel + changed)

        def told_code() -> bool:
            node.admin("/admin/agents/challenge", "POST", {"principal": "client:laptop", "name": "coder"})
            line = wait_for(lambda: leak.read_text().strip() if leak.exists() else "")
            return json.loads(line.splitlines()[-1]).get("code") is not None

        wait_for(lambda: [each["name"] for each in node.admin("/admin/approvers")["approvers"]] == ["ada"])
        node.admin("/admin/agents/challenge", "POST", {"principal": "client:laptop", "name": "coder"})
        assert not leak.exists()
        (asked,) = wait_for(lambda: node.admin("/approvals?kind=configuration")["approvals"])
        assert node.admin(f"/approvals/{asked['id']}", "POST", {"decision": "approve"})["error"] == "proof_required"
        sign_configuration(node)
        wait_for(lambda: mode(node) == "open")
        assert node.admin("/admin/status")["loosened"] == []
        assert told_code()
        node.config.write_text(changed.replace('mode = "open"', 'mode = "gated"'))
        wait_for(lambda: mode(node) == "gated")
        # What was tightened once has to be signed again.
        node.config.write_text(changed)
        wait_for(lambda: node.admin("/admin/status")["loosened"] == lines[:1])
        assert mode(node) == "gated"
        recorded = [one for one in node.admin("/admin/audit?limit=1000")["records"] if one["method"] == "config/loosen"]
        assert [(one["outcome"], one["lines"]) for one in recorded][-1] == ("waits", lines[:1])


# A node on which no one may approve yet


def test_on_a_fresh_node_the_first_approver_takes_what_its_terminal_shows(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    node_at = {"folder": tmp_path / "node", "servers": {}, "env": home.env, "settings": QUICK}
    printed = home.run("access", "key", "eve", passphrase=GUESS).stdout
    for started in range(2):  # and starting the node again with an approver in its file changes nothing
        with contextlib.ExitStack() as stack:
            node = stack.enter_context(running_node(**node_at, extra=printed if started else ""))  # type: ignore[arg-type]
            if not started:
                with node.config.open("a") as file:
                    file.write(printed)
            (one,) = wait_for(lambda: node.admin("/approvals?kind=enrolment")["approvals"])  # noqa: B023
            words = ("approve", one["id"], "--yes", "--config", str(node.config), "--data", str(node.data))
            assert home.run(*words, passphrase=GUESS).returncode == 1
            for _ in range(6):  # and after five wrong codes none is right
                assert home.run(*words, "--code", "AAAA-AAAA").returncode == 1
            made = node.admin("/admin/approvers")
            assert (made["needs_first"], made["keys"]) == (True, [])
