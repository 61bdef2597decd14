"""Does `serve` run a real node, say how to connect to it, and do what it says really work?"""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.program import Inline, Interlock, Running
from tests.preloaded import settings
from tests.support import intervals

SERVER = Path(__file__).resolve().parents[2] / "servers" / "raw.py"
LIST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/list",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}


def write_config(interlock: Interlock, more: str = "") -> None:
    command = json.dumps([sys.executable, str(SERVER), "echo"])
    node = 'listen = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"'
    text = f"{more}\n[node]\n{node}\n[servers.demo]\ncommand = {command}\n"
    (interlock.folder / "interlock.toml").write_text(text)


def until(running: Running, last: str) -> list[str]:
    lines: list[str] = []
    while not lines or last not in lines[-1]:
        lines.append(running.next_line())
    return lines


@pytest.fixture
def served(interlock: Interlock) -> Iterator[tuple[Interlock, Running, list[str]]]:
    """A node, and everything it printed until it was ready."""
    write_config(interlock)
    with interlock.start("serve", COLUMNS="80") as running:
        yield interlock, running, until(running, "Ctrl-C stops the node")


def block(lines: list[str], title: str) -> str:
    """The text to copy under a title."""
    start = next(number for number, line in enumerate(lines) if line.startswith(title)) + 1
    end = lines.index("", start)
    return "\n".join(line.removeprefix("  ") for line in lines[start:end])


def test_a_node_reports_its_state_and_how_to_connect(served: tuple[Interlock, Running, list[str]]) -> None:
    interlock, running, lines = served
    assert any(re.match(r"default  http://127\.0\.0\.1:\d+/mcp  up ", line) for line in lines)
    assert any(re.match(r"└─ ● demo +ready +\d+ tools? +stdio +modern 2026-07-28", line) for line in lines)
    url = next(word for line in lines for word in line.split() if word.startswith("http://"))
    assert block(lines, "Inspector") == (
        f"npx @modelcontextprotocol/inspector --cli {url} \\\n  --transport http --method tools/list"
    )
    assert block(lines, "Claude Code") == f"claude mcp add --transport http interlock {url}"
    entry = json.loads(block(lines, "Claude Desktop"))["mcpServers"]["interlock"]
    assert entry["command"] == sys.executable
    assert entry["args"][:4] == ["-m", "interlock", "serve", "--stdio"]
    assert entry["args"][4:] == [
        *("--config", str(interlock.folder / "interlock.toml")),
        *("--data", str(interlock.data)),
    ]
    done = running.interrupt()
    assert (done.code, done.out) == (0, "")
    assert not (interlock.data / "run" / "admin.sock").exists()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_line_for_curl_lists_the_tools(served: tuple[Interlock, Running, list[str]]) -> None:
    _, _, lines = served
    done = subprocess.run(["sh", "-c", block(lines, "curl")], capture_output=True, text=True, timeout=20, check=True)
    assert "demo__echo" in [tool["name"] for tool in json.loads(done.stdout)["result"]["tools"]]


def test_the_verbs_work_on_the_node_they_were_made_for(served: tuple[Interlock, Running, list[str]]) -> None:
    interlock, _, _ = served
    assert [link["state"] for link in interlock("links", "list", "--json").json["links"]] == ["ready"]
    assert re.search(r"demo\.echo +read_only", interlock("tools", "list").out)
    assert "demo → echo" in interlock("tools", "show", "demo.echo").out
    assert interlock("tools", "routes", "--json").json["demo.echo"]["downstream_name"] == "echo"
    called = interlock("tools", "call", "demo.echo", "--arg", "n=5")
    assert (called.code, json.loads(called.out)) == (0, {"n": 5})
    record = json.loads(interlock("audit", "tail", "-n", "1", "--json").lines[0])
    assert (record["tool"], record["outcome"], record["who"]) == ("demo.echo", "ok", "local")
    assert interlock("audit", "verify").code == 0
    token = interlock("access", "token", "--for", "operator", "--name", "me").out.strip()
    status = interlock("status", "--json").json
    remote = interlock("status", "--json", "--url", status["node"]["operator_url"], INTERLOCK_TOKEN=token)
    assert remote.json["node"]["pid"] == status["node"]["pid"]
    wrong_endpoint = interlock("tools", "call", "demo.echo", "--url", status["node"]["url"], "--token", token)
    assert wrong_endpoint.code == 1
    assert interlock("links", "restart", "demo").code == 0
    assert interlock("links", "restart", "nobody").code == 1


def test_a_second_node_on_one_folder_is_refused(served: tuple[Interlock, Running, list[str]]) -> None:
    interlock, _, _ = served
    done = interlock("serve")
    assert (done.code, done.out) == (1, "")
    assert "already running" in done.err


def test_sigterm_ends_a_node_well(served: tuple[Interlock, Running, list[str]]) -> None:
    _, running, _ = served
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(20) == 0


def test_a_node_that_wants_tokens_says_so_in_every_line(interlock: Interlock) -> None:
    write_config(interlock, '[auth]\nanonymous = "never"')
    with interlock.start("serve", COLUMNS="80") as running:
        lines = until(running, "Ctrl-C stops the node")
        assert "interlock access token --for client" in block(lines, "A token first")
        for title in ("Inspector", "Claude Code", "curl"):
            assert "Authorization: Bearer $INTERLOCK_TOKEN" in block(lines, title)
        assert "node@22" in block(lines, "Inspector")  # the release for Node.js 20 knows no --header
        assert running.interrupt().code == 0


def test_json_is_one_line_with_the_status(interlock: Interlock) -> None:
    write_config(interlock)
    with interlock.start("serve", "--json") as running:
        assert json.loads(running.next_line())["links"][0]["state"] == "ready"
        done = running.interrupt()
    assert (done.code, done.out) == (0, "")


def test_on_stdio_nothing_but_mcp_is_on_stdout(interlock: Interlock) -> None:
    write_config(interlock)
    process = subprocess.Popen(
        [sys.executable, "-m", "interlock", "serve", "--stdio"],
        cwd=interlock.folder,
        env=interlock.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        announced = ""
        while not announced.startswith("interlock: "):
            announced = process.stderr.readline()
            assert announced, "the node ended"
        assert re.fullmatch(r"interlock: \d+ tools? from 1 of 1 server\n", announced)
        out, _ = process.communicate(json.dumps(LIST) + "\n", timeout=20)
    assert process.returncode == 0
    (answer,) = out.splitlines()
    assert "demo__echo" in [tool["name"] for tool in json.loads(answer)["result"]["tools"]]


def test_an_address_that_is_taken_is_refused_with_what_to_change(interlock: Interlock) -> None:
    sooner = settings({intervals.HOLDER_ANSWER_S: 0.1})  # what holds the address never answers
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listens = {
            "INTERLOCK_NODE__LISTEN": f"127.0.0.1:{taken.getsockname()[1]}",
            "INTERLOCK_NODE__OPERATOR_LISTEN": "127.0.0.1:0",
        }
        done = interlock("serve", **listens, **sooner)
    assert (done.code, done.out) == (1, "")
    assert listens["INTERLOCK_NODE__LISTEN"] in done.err
    assert "another program listens on" in done.err
    assert re.search(r"INTERLOCK_NODE__LISTEN=\S+ INTERLOCK_NODE__OPERATOR_LISTEN=\S+ interlock serve$", done.err)


def test_only_an_existing_segment_can_be_served_alone(inline: Inline, interlock: Interlock) -> None:
    write_config(interlock)
    done = inline("serve", "--only", "dmo")
    assert (done.code, done.out) == (2, "")
    assert "did you mean demo?" in done.err


def test_serve_runs_here_and_nowhere_else(inline: Inline) -> None:
    assert inline("serve", "--url", "http://127.0.0.1:7412").code == 2
