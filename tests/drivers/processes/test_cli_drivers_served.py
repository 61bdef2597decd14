"""Does a running node take drivers up from files: nothing before trust, one at a time, without disturbing another?"""

import contextlib
import http.server
import json
import os
import shutil
import signal
import sys
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.program import Inline, Interlock, Running
from tests.drivers.driver_files import contract, driver, text

SERVER = Path(__file__).resolve().parents[2] / "servers" / "driven.py"
SECONDS = 60.0  # of a busy machine
pytestmark = pytest.mark.timeout(180)
ARGUMENTS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Served:
    """A node in a folder with drivers, whose servers write down that they were started and what they were told."""

    def __init__(self, interlock: Interlock, inline: Inline, running: Running | None) -> None:
        self.folder, self.inline, self.running = interlock.folder, inline, running

    def write(self, id: str, **changed: Any) -> Path:
        folder = self.folder / ".drivers" / id
        (folder / "tools" / "fs-read").mkdir(parents=True, exist_ok=True)
        tools = self.folder / "tools.json"
        tools.write_text(
            json.dumps([{"name": "read_file", "inputSchema": ARGUMENTS, "outputSchema": {"type": "object"}}])
        )
        args = [str(SERVER), "--log", str(self.log(id)), "--tools", str(tools)]
        server = {"kind": "binary", "path": sys.executable, "args": args}
        said = {"id": f"demo.{id.removesuffix('-mcp')}", "inputs": ARGUMENTS, **changed.pop("contract", {})}
        (folder / "tools/fs-read/TOOL.md").write_text(text(contract(**said)))
        (folder / "DRIVER.md").write_text(text(driver(id, **{"server": server, **changed})))
        return folder

    def log(self, id: str) -> Path:
        return self.folder / f"{id}.log"

    def starts(self, id: str) -> list[int]:
        written = self.log(id).read_text().splitlines() if self.log(id).exists() else []
        return [line["pid"] for line in map(json.loads, written) if "argv" in line]

    def calls(self, id: str) -> int:
        written = [json.loads(line) for line in self.log(id).read_text().splitlines()]
        return sum(line.get("got", {}).get("method") == "tools/call" for line in written)

    def states(self) -> dict[str, str]:
        listed = self.inline("drivers", "list", "--json").json["drivers"]
        return {one["id"]: one["state"] for one in listed}

    def tools(self) -> list[str]:
        return [one["name"] for one in self.inline("tools", "list", "--json").json["tools"]]

    def trust(self, id: str) -> None:
        done = self.inline("drivers", "trust", id, "--yes", "--json", INTERLOCK_PASSPHRASE="correct horse")
        assert done.code == 0, done.out
        until(lambda: self.states()[id] == "ready")


def until(check: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@contextlib.contextmanager
def running_node(interlock: Interlock, inline: Inline, anchors: str = "") -> Iterator[Served]:
    off = ", ".join(f'{id} = "off"' for id in ("first-mcp", "second-mcp"))
    (interlock.folder / "interlock.toml").write_text(
        f'{anchors}[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n[drivers]\nsandbox = {{ {off} }}\n'
    )
    with interlock.start("serve", COLUMNS="80") as running:
        while "Ctrl-C stops the node" not in running.next_line():
            pass
        yield Served(interlock, inline, running)


@pytest.fixture
def served(interlock: Interlock, inline: Inline) -> Iterator[Served]:
    with running_node(interlock, inline) as made:
        yield made


@pytest.fixture
def signed_for(interlock: Interlock, inline: Inline) -> Iterator[Served]:
    """With somebody whose signature counts for drivers."""
    anchor = inline("access", "key", "ada", "--approves", "drivers.*", INTERLOCK_PASSPHRASE="correct horse").out
    with running_node(interlock, inline, anchor) as made:
        yield made


@pytest.mark.req("AIP-security-13")
def test_a_file_dropped_into_a_running_node_starts_nothing_until_it_is_trusted(served: Served) -> None:
    served.write("first-mcp", health_check={"method": "ping"}, version_check={"cmd": "x", "parse": "(x)", "range": "*"})
    until(lambda: "first-mcp" in served.states())
    assert served.states() == {"first-mcp": "untrusted"}
    assert served.starts("first-mcp") == []
    assert served.tools() == []
    served.write("first-mcp")
    served.trust("first-mcp")
    assert served.tools() == ["demo.first"]
    called = served.inline("tools", "call", "demo.first", "--arg", "text=hello", "--json")
    assert (called.code, '"hello"' in called.out) == (0, True)
    assert len(served.starts("first-mcp")) == 1
    folder = served.write("first-mcp", description="Another.")
    until(lambda: served.tools() == [])
    assert served.states() == {"first-mcp": "untrusted"}
    (folder / "driver.py").write_text("")
    assert len(served.starts("first-mcp")) == 1


@pytest.mark.req("AIP-security-13")
@pytest.mark.parametrize("is_put_back", [False, True])
def test_a_program_that_changed_since_it_was_trusted_is_not_started_when_the_server_ends(
    served: Served, is_put_back: bool
) -> None:
    folder = served.write("first-mcp")
    program, evil = folder / "server.py", served.folder / "evil"
    good = SERVER.read_text()
    program.write_text(good)
    data = driver("first-mcp")
    tools = served.folder / "tools.json"
    args = [str(program), "--log", str(served.log("first-mcp")), "--tools", str(tools)]
    data["server"] = {"kind": "binary", "path": sys.executable, "args": args}
    (folder / "DRIVER.md").write_text(text(data))
    until(lambda: served.states() == {"first-mcp": "untrusted"})
    served.trust("first-mcp")
    (pid,) = served.starts("first-mcp")
    program.write_text(f"from pathlib import Path\nPath({str(evil)!r}).touch()\n{good}")
    os.kill(pid, signal.SIGKILL)
    if is_put_back:
        time.sleep(0.6)  # when a changed program would have been started
        program.write_text(good)
        until(lambda: served.states() == {"first-mcp": "ready"} and len(served.starts("first-mcp")) == 2)
    else:
        until(lambda: served.states() == {"first-mcp": "untrusted"})
    assert not evil.exists()


def test_a_change_to_one_driver_leaves_the_process_of_another_alone(served: Served) -> None:
    served.write("first-mcp")
    served.write("second-mcp")
    until(lambda: len(served.states()) == 2)
    served.trust("first-mcp")
    served.trust("second-mcp")
    assert served.tools() == ["demo.first", "demo.second"]
    served.write("first-mcp", version="1.1.0")
    until(lambda: served.tools() == ["demo.second"])
    served.trust("first-mcp")
    until(lambda: served.tools() == ["demo.first", "demo.second"])
    assert len(served.starts("first-mcp")) == 2
    assert len(served.starts("second-mcp")) == 1
    assert served.inline("drivers", "remove", "first-mcp", "--yes").code == 0
    until(lambda: served.tools() == ["demo.second"])
    assert served.inline("tools", "call", "demo.second", "--arg", "text=x").code == 0
    assert len(served.starts("second-mcp")) == 1


def test_check_upstream_shows_the_state_of_trusted_drivers(interlock: Interlock, inline: Inline) -> None:
    config = interlock.folder / "interlock.toml"
    config.write_text('[drivers]\nsandbox = { first-mcp = "off", second-mcp = "off" }\n')
    here = Served(interlock, inline, None)
    here.write("first-mcp")
    here.write("second-mcp")
    assert inline("drivers", "trust", "first-mcp", "--yes").code == 0
    done = inline("check", "--upstream", "--json")
    (waiting,) = [one["message"] for one in done.json["warnings"] if "is untrusted" in one["message"]]
    assert waiting.startswith("second is untrusted")
    assert len(here.starts("first-mcp")) == 1
    assert here.starts("second-mcp") == []


@pytest.mark.req("AIP-identity-4")
def test_history_is_forgotten_only_when_that_is_asked_for(served: Served) -> None:
    served.write("first-mcp")
    until(lambda: served.states())
    served.trust("first-mcp")
    assert served.inline("drivers", "remove", "first-mcp", "--yes").code == 0
    served.write("first-mcp", protocol_version="2025-06-18")
    assert served.states() == {"first-mcp": "rejected"}
    shown = served.inline("drivers", "show", "first-mcp", "--json").json
    assert "major_bump_required" in [one["code"] for one in shown["problems"]]
    assert served.inline("drivers", "remove", "first-mcp", "--yes", "--forget").code == 0
    served.write("first-mcp", protocol_version="2025-06-18")
    assert served.states() == {"first-mcp": "untrusted"}


@pytest.mark.req("AIP-30.load-1")
def test_a_node_with_nine_broken_drivers_serves_the_tenth_and_lists_nine_reasons(served: Served) -> None:
    broken: dict[str, Any] = {
        "a-mcp": b"no frontmatter",
        "b-mcp": b"---\nname: [\n---\n",
        "c-mcp": b"---\n\xff\n---\n",
        "d-mcp": driver("d-mcp", transport="ws"),
        "e-mcp": driver("e-mcp", server={"kind": "binary", "path": "../../../../bin/sh"}),
        "f-mcp": driver("f-mcp", auth={"ref": "./SECRETS.md"}),
        "g-mcp": driver("g-mcp", implements=[]),
        "h-mcp": driver("h-mcp", server={"kind": "binary", "path": "x", "env": {"GITHUB_TOKEN": "ghp_abcdefgh1234"}}),
        "z-mcp": driver("z-mcp", kind="cli"),
    }
    for id, data in broken.items():
        folder = served.folder / ".drivers" / id
        folder.mkdir(parents=True)
        (folder / "DRIVER.md").write_bytes(data if isinstance(data, bytes) else text(data).encode())
    served.write("first-mcp")
    until(lambda: len(served.states()) == 10)
    served.trust("first-mcp")
    assert served.tools() == ["demo.first"]
    assert served.inline("tools", "call", "demo.first", "--arg", "text=x").code == 0
    listed = served.inline("drivers", "list", "--json").json["drivers"]
    reasons = {one["id"]: one["reason"] for one in listed if one["state"] != "ready"}
    assert reasons.keys() == broken.keys()
    assert all(reasons.values())


@pytest.mark.req("AIP-14.rules-3")
def test_the_examples_of_contracts_are_run_through_the_driver_and_compared(served: Served) -> None:
    examples = [
        {"name": "any output", "input": {"text": "hi"}},
        {"name": "another output", "input": {"text": "hi"}, "output": {"text": "ho"}},
        {"name": "no such input", "input": {"words": "hi"}},
    ]
    served.write("first-mcp", contract={"examples": examples})
    mutating = {"examples": examples[:1], "mutates": ["external:demo"], "approval": "policy:gate", "risk_level": 1}
    served.write("second-mcp", contract=mutating)
    until(lambda: len(served.states()) == 2)
    refused = served.inline("drivers", "test", "first-mcp", "--json")
    assert (refused.code, refused.json["error"]) == (1, "not_running")
    served.trust("first-mcp")
    served.trust("second-mcp")
    done = served.inline("drivers", "test", "first-mcp", "--json")
    assert done.code == 1
    told = {one["example"]: (one["outcome"], one["difference"], one["driver"]) for one in done.json["examples"]}
    assert told["any output"] == ("passed", [], "first-mcp@1")
    assert told["another output"][0] == "failed"
    assert '/text: wanted "ho", got "hi"' in told["another output"][1]
    assert (told["no such input"][0], "input_invalid" in told["no such input"][1][0]) == ("failed", True)
    drawn = served.inline("drivers", "test", "first-mcp").out
    assert "another output" in drawn
    assert "by first\n" in drawn
    assert "1 of 3 examples passed" in drawn
    skipped = served.inline("drivers", "test", "second-mcp", "--json")
    assert (skipped.code, [one["outcome"] for one in skipped.json["examples"]]) == (0, ["skipped"])
    assert served.calls("second-mcp") == 0
    run = served.inline("drivers", "test", "second-mcp", "--allow-mutation", "--json")
    assert (run.code, [one["outcome"] for one in run.json["examples"]]) == (0, ["passed"])
    assert served.calls("second-mcp") == 1


@pytest.mark.req("AIP-security-12", "AIP-30.implements-1", "AIP-30.identity-1")
def test_a_contract_is_shown_with_who_serves_it_and_why(served: Served) -> None:
    same = {"id": "demo.read"}
    served.write("first-mcp", contract=same, cost_override={"cost_units_per_call": 5})
    served.write("second-mcp", contract=same, policy_tags=["third-party-api"])
    until(lambda: len(served.states()) == 2)
    shown = served.inline("drivers", "show", "demo.read", "--json").json  # nobody serves it yet
    assert (shown["ranked"], shown["error"]) == ([], "no_route")
    assert [(one["driver"], one["code"]) for one in shown["rejected"]] == [
        ("first-mcp@1", "untrusted"),
        ("second-mcp@1", "untrusted"),
    ]
    assert "no driver" in served.inline("drivers", "show", "demo.read").out
    served.trust("first-mcp")
    assert ("second-mcp@1", "untrusted") in [
        (one["driver"], one["code"]) for one in served.inline("drivers", "show", "demo.read", "--json").json["rejected"]
    ]
    served.trust("second-mcp")
    shown = served.inline("drivers", "show", "demo.read", "--json").json
    assert [one["driver"] for one in shown["ranked"]] == ["second-mcp@1", "first-mcp@1"]
    assert shown["decided_by"] == "cost"
    called = json.loads(served.inline("tools", "call", "demo.read", "--arg", "text=x", "--json").out)
    assert (served.calls("first-mcp"), served.calls("second-mcp")) == (0, 1), called
    entry = {**driver()["implements"][0], "cost_override": {"cost_units_per_call": 0.5}}
    served.write("second-mcp", contract=same, cost_override={"cost_units_per_call": 50}, implements=[entry])
    until(lambda: served.inline("drivers", "show", "demo.read", "--json").json["decided_by"] == "only")
    assert served.inline("tools", "call", "demo.read", "--arg", "text=x").code == 0
    assert (served.calls("first-mcp"), served.calls("second-mcp")) == (1, 1)
    served.trust("second-mcp")
    shown = served.inline("drivers", "show", "demo.read", "--json").json
    assert [(one["driver"], one["cost_units"]) for one in shown["ranked"]] == [
        ("second-mcp@1", 0.5),
        ("first-mcp@1", 5),
    ]
    assert served.inline("tools", "call", "demo.read", "--arg", "text=x").code == 0
    assert (served.calls("first-mcp"), served.calls("second-mcp")) == (1, 2)
    served.write("second-mcp", contract=same, policy_tags=["third-party-api"])
    served.trust("second-mcp")
    assert "no examples" in served.inline("drivers", "test", "first-mcp").err
    config = served.folder / "interlock.toml"
    config.write_text(config.read_text() + 'policy = { deny = ["third-party-api"] }\n')
    until(lambda: served.inline("drivers", "show", "demo.read", "--json").json["decided_by"] == "only")
    drawn = served.inline("drivers", "show", "demo.read").out
    assert "served by    first\n" in drawn
    assert "second in phase 3" in drawn
    assert "[policy_violation]" in drawn


@contextlib.contextmanager
def answering(status: int, **headers: str) -> Iterator[tuple[int, list[str]]]:
    """A web server with one answer; its port, and what it was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            for name, value in {"content-length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.req("AIP-security-4")
def test_a_remote_driver_is_not_led_to_a_host_that_it_does_not_list(served: Served) -> None:
    network = {"egress": ["127.0.0.1"]}
    with (
        answering(500) as (elsewhere, strayed),
        answering(307, location=f"http://localhost:{elsewhere}/mcp") as (port, asked),
    ):
        server = {"kind": "remote", "url": f"http://127.0.0.1:{port}/mcp"}
        served.write("first-mcp", server=server, transport="http", network=network)
        until(lambda: served.states())
        assert served.inline("drivers", "trust", "first-mcp", "--yes").code == 0
        until(lambda: asked and served.states()["first-mcp"] == "unavailable")
        assert strayed == []
    outside = {"kind": "remote", "url": "https://mcp.example.com/mcp"}
    served.write("first-mcp", server=outside, transport="http", network=network)
    shown = served.inline("drivers", "show", "first-mcp", "--json").json
    assert (shown["state"], [one["code"] for one in shown["problems"]][:1]) == ("rejected", ["egress_denied"])


def waiting(served: Served) -> list[dict[str, Any]]:
    listed = served.inline("approvals", "--kind", "definition", "--json").json["approvals"]
    return [one for one in listed if one["source"] == "drivers"]


def test_an_untrusted_driver_waits_in_the_inbox_and_a_signature_over_its_files_trusts_it(signed_for: Served) -> None:
    signed_for.write("first-mcp", policy_tags=["pii-safe"])
    until(lambda: waiting(signed_for))
    (asked,) = waiting(signed_for)
    assert (asked["tool"], asked["requires"], asked["left_s"]) == ("drivers.first-mcp@1", "proof", None)
    shown = signed_for.inline("approvals", "show", asked["id"]).out
    for word in (
        "installed and started",
        "this driver has not been accepted yet",
        str(SERVER),
        "pii-safe",
        "DRIVER.md",
    ):
        assert word in shown
    assert signed_for.starts("first-mcp") == []
    nobody = signed_for.inline("approve", asked["id"], "--yes", "--proof", "nonsense")
    assert (nobody.code, signed_for.states()) == (1, {"first-mcp": "untrusted"})
    done = signed_for.inline("approve", asked["id"], "--yes", "--key", "ada", INTERLOCK_PASSPHRASE="correct horse")
    assert done.code == 0, done.err
    until(lambda: signed_for.states() == {"first-mcp": "ready"})
    assert signed_for.inline("drivers", "show", "first-mcp", "--json").json["accepted"]["by"]
    assert waiting(signed_for) == []
    signed_for.write("first-mcp", policy_tags=["pii-safe", "hipaa"])
    until(lambda: waiting(signed_for))
    (again,) = waiting(signed_for)
    changed = signed_for.inline("approvals", "show", again["id"]).out
    assert '+     "hipaa"' in changed
    assert "changed since they were accepted" in changed
    assert signed_for.inline("deny", again["id"]).code == 0
    assert signed_for.states() == {"first-mcp": "untrusted"}
    assert waiting(signed_for) == []


def test_the_server_of_a_driver_has_one_name_wherever_a_person_looks(signed_for: Served) -> None:
    """Its id and version are a column or a detail; the name is the segment of its tools."""
    signed_for.write("first-mcp")
    until(lambda: waiting(signed_for))
    (asked,) = waiting(signed_for)
    assert (asked["name"], asked["tool"]) == ("first", "drivers.first-mcp@1")
    row = next(line for line in signed_for.inline("approvals").lines if line.startswith(asked["id"][:8]))
    assert row.split()[1:3] == ["definition", "first"]
    head, *rest = signed_for.inline("approvals", "show", asked["id"]).lines
    assert head == "first  pending"
    assert "  signed as    drivers.first-mcp@1" in rest
    page = _page(asked["url"], signed_for.inline("access", "token", "--for", "operator", "--name", "me", "--json"))
    assert "<h1>Trust first?</h1>" in page
    assert "If you agree, its server is installed and started" in page
    assert "<tr><th>Server<td>first</tr><tr><th>Signed as<td>drivers.first-mcp@1</tr>" in page
    done = signed_for.inline("approve", asked["id"], "--yes", "--key", "ada", INTERLOCK_PASSPHRASE="correct horse")
    assert done.lines[-1] == "done: first is trusted", done.err
    until(lambda: signed_for.states() == {"first-mcp": "ready"})
    signed_for.write("first-mcp", description="Another.")
    until(lambda: waiting(signed_for))
    assert signed_for.inline("deny", waiting(signed_for)[0]["id"]).out.startswith("denied: first, asked by node")
    told = signed_for.inline("audit", "tail", "-n", "100").out
    assert " first" in told
    looked = [told, signed_for.inline("status").out, signed_for.inline("links", "list").out]
    looked += [signed_for.inline(*words).out for words in (("drivers", "list"), ("doctor",), ("approvals",))]
    for out in looked:
        assert "first" in out or out is looked[-1]
        assert "first-mcp@1" not in out


def _page(url: str, issued: Any) -> str:
    """As a browser without a session gets it: any name, and an operator's token as the password."""
    word = b64encode(f"me:{issued.json['token']}".encode()).decode()
    request = urllib.request.Request(url, headers={"authorization": f"Basic {word}", "accept": "text/html"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def test_a_running_node_does_not_call_a_driver_untrusted_that_is_just_being_added(served: Served) -> None:
    """Who writes the folder is about to trust it; where nobody does, status and the inbox say so."""
    served.write("first-mcp")
    until(lambda: served.states())
    assert "drivers trust first" in served.inline("status").out
    served.trust("first-mcp")
    assert served.running is not None
    assert "not trusted" not in served.running.interrupt().err


def test_a_running_node_says_that_a_trusted_driver_stops_because_it_changed(served: Served) -> None:
    served.write("first-mcp")
    until(lambda: served.states())
    served.trust("first-mcp")
    served.write("first-mcp", description="Another.")
    until(lambda: served.states() == {"first-mcp": "untrusted"})
    assert served.running is not None
    assert "driver first is not trusted yet: interlock drivers trust first" in served.running.interrupt().err


@pytest.mark.req("AIP-tools-15")
def test_a_driver_whose_segment_a_server_has_is_never_ready_and_every_verb_says_the_way_out(served: Served) -> None:
    served.write("first-mcp")
    until(lambda: served.states())
    served.trust("first-mcp")
    assert served.tools() == ["demo.first"]
    configuration = served.folder / "interlock.toml"
    words = json.dumps([sys.executable, str(SERVER), "--log", str(served.log("other"))])
    alone = configuration.read_text()
    configuration.write_text(f"{alone}[servers.demo]\ncommand = {words}\n")
    until(lambda: served.states() == {"first-mcp": "rejected"})
    until(lambda: "demo.first" not in served.tools())
    why = "listed under demo, which is [servers.demo]; rename one of the two"
    (listed,) = served.inline("drivers", "list", "--json").json["drivers"]
    assert why in listed["reason"]
    until(lambda: [link["segment"] for link in served.inline("status", "--json").json["links"]] == ["demo"])
    status = served.inline("status", "--json").json
    assert [(each["id"], why in each["reason"]) for each in status["idle_drivers"]] == [("first-mcp", True)]
    assert why in " ".join(served.inline("status").out.split())
    assert served.running is not None
    for verb in ("check", "doctor"):
        assert why in served.inline(verb).out + served.inline(verb).err
    configuration.write_text(alone)
    until(lambda: served.states() == {"first-mcp": "ready"})
    assert served.tools() == ["demo.first"]
    configuration.write_text(f"{alone}[servers.demo]\ncommand = {words}\n")
    served.running.interrupt()
    stopped = served.inline("doctor")  # which reads the files itself when no node runs
    assert (stopped.code, why in stopped.out) == (1, True)


def test_where_somebody_may_approve_no_driver_is_trusted_without_their_signature(signed_for: Served) -> None:
    signed_for.write("first-mcp")
    until(lambda: "first-mcp" in signed_for.states())
    until(lambda: signed_for.inline("approvals", "--json").json["approvals"])
    for passphrase in ("", "a guess"):
        words = ("drivers", "trust", "first-mcp", "--yes", "--json")
        assert signed_for.inline(*words, INTERLOCK_PASSPHRASE=passphrase).code == 1
    assert signed_for.states() == {"first-mcp": "untrusted"}
    signed_for.trust("first-mcp")


@pytest.mark.req("AIP-author-1", "AIP-prompts-2", "AIP-resources-4")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="NO BUBBLEWRAP HERE")
def test_a_driver_shows_what_a_configured_server_shows_and_says_what_is_left_out(served: Served) -> None:
    choosy = SERVER.with_name("choosy.py")
    words = json.dumps([sys.executable, str(choosy)])
    configuration = served.folder / "interlock.toml"
    configuration.write_text(f"{configuration.read_text()}[servers.same]\ncommand = {words}\n")
    added = served.inline("add", "--as", "first-mcp", "--yes", "--json", "--", sys.executable, str(choosy))
    assert added.code == 0, added.err
    asks, left_out = added.json["reviews"]
    assert asks.startswith("It may ask clients (elicitation and sampling), or it would not list asking.")
    assert left_out.startswith("Left out: rooted, tasked. The server lists these only for clients with roots or tasks")
    assert left_out in (served.folder / ".drivers/first-mcp/DRIVER.md").read_text()
    until(lambda: {"first.plain", "same.plain"} <= {*served.tools()})
    locals_ = {one: {name for name in served.tools() if name.startswith(one)} for one in ("first", "same")}
    assert locals_["first"] == {"first.plain", "first.asking"}
    assert locals_["same"] == {f"same.{name}" for name in ("plain", "asking", "rooted", "tasked")}
    until(lambda: served.inline("status", "--json").json["catalog"]["prompts"] == 4)
    catalog = served.inline("status", "--json").json["catalog"]
    assert (catalog["prompts"], catalog["resources"], catalog["templates"]) == (4, 6, 2)
    called = served.inline("tools", "call", "first.asking", "--json")
    assert (called.code, "done" in called.out) == (0, True)
    again = served.inline("add", "--as", "first-mcp", "--yes", "--json", "--", sys.executable, str(choosy))
    assert (again.code, again.json["files"]) == (0, []), again.out
    only = served.inline(
        "add", "--as", "second-mcp", "--tools", "plain", "--yes", "--json", "--", sys.executable, str(choosy)
    )
    assert only.code == 0, only.err
    text_of_only = (served.folder / ".drivers/second-mcp/DRIVER.md").read_text()
    assert "prompts:" not in text_of_only
    assert "client_capabilities" not in text_of_only


@pytest.mark.req("AIP-import-8")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="NO BUBBLEWRAP HERE")
@pytest.mark.parametrize("is_running", [True, False])
def test_an_import_with_yes_asks_for_no_passphrase_and_lists_what_is_left(signed_for: Served, is_running: bool) -> None:
    until(lambda: signed_for.inline("access", "approvers", "--json").json)
    tools = signed_for.folder / "tools.json"
    tools.write_text(json.dumps([{"name": "read_file", "inputSchema": ARGUMENTS}]))
    servers: dict[str, Any] = {
        name: {
            "command": sys.executable,
            "args": [str(SERVER), "--log", str(signed_for.log(name)), "--tools", str(tools)],
        }
        for name in ("first", "second", "locked")
    }
    servers["locked"]["env"] = {"API_TOKEN": "${input:token}"}
    servers["away"] = {"command": "/nowhere/at-all"}
    file = signed_for.folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    assert signed_for.running is not None
    if not is_running:
        signed_for.running.interrupt()
    words = ("import", "--file", str(file), "--as", "cursor", "--yes")
    done = signed_for.inline(*words, "--json")
    assert done.code == 0, done.err
    assert {each["id"]: each["state"] for each in done.json["connected"]} == {
        "first-mcp": "ready",
        "second-mcp": "ready",
        "locked-mcp": "failed",
        "away-mcp": "failed",
    }
    commands = [each["command"] for each in done.json["left"]]
    assert commands[0] == "interlock secrets set locked-mcp/token"
    assert sorted(commands) == [
        "interlock add away",
        "interlock add locked",
        "interlock drivers trust first",
        "interlock drivers trust second",
        "interlock secrets set locked-mcp/token",
        "interlock tools classify",
    ]
    again = signed_for.inline(*words)
    assert again.code == 0
    left = again.err.partition("left to do:")[2]
    assert all(command in left for command in commands if "classify" not in command)
    if is_running:
        signed_for.trust("second-mcp")
        listed = signed_for.inline(*words, "--json").json["left"]
        assert "interlock drivers trust second" not in [each["command"] for each in listed]


def test_a_waiting_trust_request_is_void_once_the_folder_changed(signed_for: Served) -> None:
    signed_for.write("first-mcp")
    until(lambda: waiting(signed_for))
    (first,) = waiting(signed_for)
    signed_for.write("first-mcp", description="Another.")
    done = signed_for.inline("approve", first["id"], "--yes", "--key", "ada", INTERLOCK_PASSPHRASE="correct horse")
    assert done.code == 1
    until(lambda: [one["id"] for one in waiting(signed_for)] not in ([], [first["id"]]))
    assert signed_for.states() == {"first-mcp": "untrusted"}
    signed_for.trust("first-mcp")
    assert waiting(signed_for) == []
    signed_for.write("second-mcp")
    until(lambda: waiting(signed_for))
    signed_for.inline("drivers", "remove", "second-mcp", "--yes")
    assert waiting(signed_for) == []


def test_settings_of_drivers_are_taken_up_while_the_node_runs(served: Served) -> None:
    served.write("first-mcp")
    until(lambda: served.states() == {"first-mcp": "untrusted"})
    config = served.folder / "interlock.toml"
    config.write_text(config.read_text() + "trust_workspace = true\n")
    until(lambda: served.states() == {"first-mcp": "ready"})
    assert served.tools() == ["demo.first"]


def test_the_operator_endpoint_refuses_what_it_cannot_read(served: Served) -> None:
    from dataclasses import replace

    from interlock.cli.client.operator import OperatorClient
    from interlock.drivers.api import ALLOW_HOST, LIST_DRIVERS, REMOVE_DRIVER, TRUST_DRIVER
    from interlock.operator.operation import TextParameter
    from interlock.wire.refusal import Refused

    served.write("first-mcp")
    node = OperatorClient.of_data(served.folder / "data")
    for operation, name, body in (
        (TRUST_DRIVER, "first-mcp", {"digest": "short"}),
        (TRUST_DRIVER, "first-mcp", {"digest": "0" * 64, "more": 1}),
        (TRUST_DRIVER, "first-mcp", {"digest": "0" * 64}),
        (ALLOW_HOST, "first-mcp", {"host": ""}),
        (ALLOW_HOST, "first-mcp", {"host": "x.com/y"}),
        (ALLOW_HOST, "nobody", {"host": "x.com"}),
        (TRUST_DRIVER, "..", {"digest": "0" * 64}),
    ):
        with pytest.raises(Refused):
            node.call(operation, name=name, body=body)
    surplus = replace(LIST_DRIVERS, query=(TextParameter(name="surplus", description="It is not declared."),))
    with pytest.raises(Refused):
        node.call(surplus, surplus="1")
    any_forget = replace(REMOVE_DRIVER, query=(TextParameter(name="forget", description="Any text."),))
    with pytest.raises(Refused, match="forget must be one of true, false, not"):
        node.call(any_forget, name="first-mcp", forget="maybe")
    assert served.states() == {"first-mcp": "untrusted"}


def test_a_driver_is_called_by_one_name_from_trust_to_record(served: Served) -> None:
    served.write("first-mcp", contract={"id": "first.read"})
    until(lambda: "first-mcp" in served.states())
    assert "driver first waits for you: interlock drivers trust first" in served.inline("status").out
    found = served.inline("doctor", "--json").json["findings"]
    assert "interlock drivers trust first" in {one["command"] for one in found}
    trusted = served.inline("drivers", "trust", "first", "--yes").out
    assert "first is trusted" in trusted
    until(lambda: served.states()["first-mcp"] == "ready")
    assert served.inline("tools", "call", "first.read", "--arg", "text=hello").code == 0
    status, links = served.inline("status").out, served.inline("links", "list").out
    assert "waits for you" not in status
    record = served.inline("audit", "tail").out.splitlines()
    asked = [line for line in record if " approvals/" in line]  # what a person signs names the version
    for told in (
        status,
        links,
        *(line for line in record if line not in asked),
        served.inline("links", "logs", "first").out,
        served.inline("links", "restart", "first").out,
        served.inline("tools", "show", "first.read").out,
    ):
        assert "first-mcp" not in told
    assert " first " in status
    assert links.splitlines()[1].startswith("first ")
    assert any("drivers/trust first " in line for line in record)
    for detailed in (served.inline("status", "first").out, served.inline("drivers", "show", "first").out):
        assert detailed.splitlines()[0].startswith("first ")
        assert "\n  driver       first-mcp" in detailed
    heads, row = served.inline("drivers", "list").out.splitlines()
    assert heads.split()[0] == "NAME"
    assert (row.split()[0], "first-mcp 1.0.0" in row) == ("first", True)
    link = served.inline("links", "list", "--json").json["links"][0]
    assert (link["segment"], link["driver"]) == ("first", "first-mcp@1")
    for older in ("first-mcp", "first-mcp@1"):  # as scripts may have them
        assert served.inline("status", older, "--json").json["segment"] == "first"
    missed = served.inline("status", "frist").err
    assert "did you mean first?" in missed


@pytest.mark.req("AIP-import-11")
def test_allowing_a_host_keeps_the_tools_listed_while_the_server_restarts(served: Served) -> None:
    served.write("first-mcp")
    served.trust("first-mcp")
    assert served.inline("drivers", "allow", "first-mcp", "api.example.com").code == 0

    def is_started_anew() -> bool:
        assert served.tools() == ["demo.first"]
        return len(served.starts("first-mcp")) == 2

    until(is_started_anew)
    until(lambda: served.states()["first-mcp"] == "ready")
    called = served.inline("tools", "call", "demo.first", "--arg", "text=hello", "--json")
    assert (called.code, '"hello"' in called.out) == (0, True)
