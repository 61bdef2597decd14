"""Do the verbs that ask a running node show what it says, to people and to programs?"""

import contextlib
import http.server
import json
import os
import pty
import re
import select
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from tests.cli.program import PATIENCE_S, Inline, Interlock
from tests.operator.fake_node import FakeOperations, as_json, link, serving, tcp_listener, tool, unix_listener, url_of
from tests.support.certificates import Authority

from interlock.operator.app import operator_app

TOKEN = "ilo_" + "k" * 43


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("status",), lambda ops: ops.node.status()),
        (("status", "git"), lambda ops: ops.links.get("git")),
        (("tools", "list"), lambda ops: ops.tools.list_all()),
        (("tools", "show", "time.convert_time"), lambda ops: ops.tools.get("time.convert_time")),
        (("tool", "show", "time__convert_time"), lambda ops: ops.tools.get("time.convert_time")),
        (("tools", "routes"), lambda ops: ops.tools.routes()),
        (("links", "list"), lambda ops: ops.links.list_all()),
        (("link", "logs", "time"), lambda ops: ops.links.logs("time", 200)),
        (("links", "restart", "time"), lambda ops: {"segment": "time", "state": "connecting", "reason": None}),
        (("access", "list"), lambda ops: {"tokens": ops.token_list}),
        (
            ("secrets", "list"),
            lambda ops: {"secrets": [{"kind": "client", "name": "https://login.example.com/x", "destinations": []}]},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_json_is_what_the_node_answered_and_nothing_else(
    interlock: Interlock, node: FakeOperations, arguments: tuple[str, ...], expected: Any
) -> None:
    done = interlock(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == as_json(expected(node))


DRAWN = [
    ("status",),
    ("status", "git"),
    ("status", "search-with-a-rather-long-segment-name"),
    ("tools", "list"),
    ("tools", "show", "time.get_current_time"),
    ("tools", "routes"),
    ("links", "list"),
    ("audit", "tail"),
    ("access", "list"),
    ("secrets", "list"),
    ("explain", "--all"),
    ("explain", "tool_degraded"),
]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_drawings_fit_the_terminal(inline: Inline, node: FakeOperations, columns: int) -> None:
    for arguments in DRAWN:
        done = inline(*arguments, COLUMNS=str(columns))
        assert (done.code, done.err) == (0, "")
        widest = max(done.lines, key=len)
        assert len(widest) <= columns, (arguments, widest)
        assert all(line == line.rstrip() for line in done.lines), arguments


def test_status_shows_each_server_with_its_state_and_reason(inline: Inline, node: FakeOperations) -> None:
    out = inline("status", COLUMNS="120").out
    assert re.search(r"├─ ● time +ready +2 tools +stdio +modern 2026-07-28 +3\.1 ms", out)
    assert re.search(r"├─ ● memory +ready +9 tools +stdio +legacy 2025-11-25 +42 ms", out)
    assert re.search(r"├─ ✗ git +failed", out)
    assert "mcp-server-git: not found (for " in out
    assert re.search(r"└─ ! notes +unauthorised", out)
    assert "withheld delete all: two tools have this name after normalisation" in out
    assert "145 tools · 1 prompt · 120 calls · 3 failed · 1 in flight · 7 waiting for clients · 2 sessions" in out
    assert "http://127.0.0.1:7411/mcp" in out


def test_at_eighty_columns_the_version_goes_before_the_segments(inline: Inline, node: FakeOperations) -> None:
    out = inline("status", COLUMNS="80").out
    assert re.search(r"time +ready +2 tools +stdio +modern +3\.1 ms", out)
    assert "search-with-a-rather-long-…" in out


def test_a_pipe_gets_whole_names(inline: Inline, node: FakeOperations) -> None:
    assert "search-with-a-rather-long-segment-name" in inline("status").out


def test_status_of_a_node_without_servers_says_what_to_do(inline: Inline, node: FakeOperations) -> None:
    node.link_list = []
    assert "[servers.NAME]" in inline("status").out


def test_status_of_one_segment_names_every_withheld_tool(inline: Inline, node: FakeOperations) -> None:
    node.link_list = [link("busy", withheld=[{"name": f"t{n}", "reason": "odd"} for n in range(9)])]
    whole = inline("status")
    assert whole.out.count("withheld") == 1
    assert "withheld 9 tools (t0, t1, t2, ...): odd" in whole.out
    one = inline("status", "busy")
    assert all(f"t{n}: odd" in one.out for n in range(9))


def test_status_calls_prompts_and_instructions_not_tools(inline: Inline, node: FakeOperations) -> None:
    names = ("read", "prompts/review", "server/instructions")
    node.link_list = [link("busy", changed=[{"name": name, "note": "odd"} for name in names])]
    assert "changed 3 definitions (read, prompts/review, server/instructions): odd" in inline("status").out


def test_watch_writes_a_line_for_each_change_and_ends_well(interlock: Interlock, node: FakeOperations) -> None:
    with interlock.start("status", "--watch", "--json") as watching:
        assert json.loads(watching.next_line())["links"][0]["state"] == "ready"
        node.link_list = [link("time", "degraded", reason="the process ended")]
        assert json.loads(watching.next_line())["links"][0]["state"] == "degraded"
        done = watching.interrupt()
    assert (done.code, done.err) == (0, "")


def test_watch_goes_on_when_the_node_comes_back(interlock: Interlock, operations: FakeOperations) -> None:
    path = interlock.data / "run" / "admin.sock"
    app = operator_app(operations.handlers, authenticate=None)
    with serving(app, unix_listener(path)):
        watching_context = interlock.start("status", "--watch", "--json")
        watching = watching_context.__enter__()
        assert "links" in json.loads(watching.next_line())
    path.unlink()
    try:
        assert json.loads(watching.next_line())["error"] == "not_running"
        with serving(app, unix_listener(path)):
            assert "links" in json.loads(watching.next_line())
            assert watching.interrupt().code == 0
    finally:
        watching_context.__exit__(None, None, None)


def test_tools_are_listed_with_their_class_and_found_by_pattern(inline: Inline, node: FakeOperations) -> None:
    out = inline("tools", "list").out
    assert re.search(r"memory\.create_entities +reversible +Does create_entities\.", out)
    assert re.search(r"time\.convert_time +read_only ", out)
    assert re.search(r"notes\.delete_all +irreversible +unauthorised: ", out)
    assert re.search(r"notes\.odd .* withheld: its input schema is not an object", out)
    globbed = inline("tools", "list", "time.*", "--json").json["tools"]
    assert [tool["name"] for tool in globbed] == ["time.convert_time", "time.get_current_time"]
    assert [tool["name"] for tool in inline("tools", "list", "ENTIT", "--json").json["tools"]] == [
        "memory.create_entities"
    ]
    none = inline("tools", "list", "nothing-like-it")
    assert (none.code, none.out) == (0, "")
    assert "no tool matches" in none.err


@pytest.mark.req("AQL-8.3-4")
def test_tools_are_listed_as_operations_with_how_their_category_was_found(inline: Inline, node: FakeOperations) -> None:
    odd = {"name": "docs__frob", "category": "EXECUTE", "rule": "fallback", "reason": "Nothing is known of it."}
    read = {"name": "docs__list", "category": "READ", "rule": "read_only", "reason": None}
    node.tool_list = [tool("docs.frob", operation=odd), tool("docs.list", operation=read), tool("docs.none")]
    head, *rows = inline("tools", "list", "--operations").lines
    assert head.split() == ["TOOL", "OPERATION", "CATEGORY", "RULE", "REASON"]
    assert [row.split(maxsplit=4) for row in rows] == [
        ["docs.frob", "docs__frob", "EXECUTE", "fallback", "Nothing is known of it."],
        ["docs.list", "docs__list", "READ", "read_only"],
    ]


def test_a_list_has_the_gist_of_a_description_and_show_the_whole(inline: Inline, node: FakeOperations) -> None:
    second = "This is a perfect tool for everything that you can think of."
    node.tool_list = [
        tool("time.long", description=f"{'word ' * 80}end. {second}"),
        tool("time.short", description=f"Says the time. {second}"),
    ]
    listed = inline("tools", "list")
    assert re.search(r"time\.short +read_only +Says the time\.$", listed.out, re.MULTILINE)
    assert second not in listed.out
    assert max(map(len, listed.lines)) < 160  # a pipe has no width, and a paragraph is no list
    assert second in inline("tools", "show", "time.short").out
    assert all(second in one["description"] for one in inline("tools", "list", "--json").json["tools"])


def test_show_explains_arguments_and_rungs(inline: Inline, node: FakeOperations) -> None:
    out = inline("tools", "show", "time__get_current_time").out
    assert re.search(r"timezone\* +string +IANA name", out)
    assert re.search(r"precision +integer +\[default: 0\]", out)
    assert re.search(r"8 +availability +pass +ready", out)
    assert "time → get_current_time" in out


def test_show_lists_the_checks_of_a_call_by_the_named_caller(inline: Inline, node: FakeOperations) -> None:
    assert "checks before a call by local runs" in inline("tools", "show", "time__get_current_time").out
    told = inline("tools", "show", "time__get_current_time", "--as", "client:ci").out
    assert "checks before a call by client:ci runs" in told
    assert re.search(r"10 +gate +hold +it cannot be undone", told)


def test_an_unknown_name_is_refused_with_the_nearest(inline: Inline, node: FakeOperations) -> None:
    for arguments in (("status", "tme"), ("links", "logs", "tme"), ("links", "restart", "tme")):
        done = inline(*arguments)
        assert (done.code, done.out) == (1, "")
        assert done.err == 'error: there is no link "tme"\n hint: did you mean time?\n'
    done = inline("tools", "show", "time.convert", "--json")
    assert (done.code, done.err) == (1, "")
    assert done.json["error"] == "not_found"
    assert "time.convert_time" in done.json["details"]["nearest"]


def test_an_unknown_name_that_is_near_nothing_is_refused_with_what_there_is(
    inline: Inline, node: FakeOperations
) -> None:
    for arguments in (("status", "zzz"), ("links", "logs", "zzz"), ("links", "restart", "zzz")):
        done = inline(*arguments)
        assert (done.code, done.out) == (1, "")
        assert " hint: there are time, memory, search-with-a-rather-long-segment-name, git, notes\n" in done.err
    assert inline("links", "logs", "zzz", "--json").json["details"]["known"][0] == "time"
    assert "interlock tools list shows them" in inline("tools", "show", "zzz").err
    assert "interlock access list shows them" in inline("access", "revoke", "zzz").err
    node.link_list = []
    assert inline("links", "logs", "zzz").err == 'error: there is no link "zzz"\n'


def test_status_of_a_server_that_is_gone_points_to_what_it_wrote(inline: Inline, node: FakeOperations) -> None:
    reason = "the process ended with exit code 1"
    node.link_list = [
        link("git", "failed", reason=reason, stderr_lines=7),
        link("notes", "degraded", reason=reason, stderr_lines=1),
        link("silent", "failed", reason=reason, stderr_lines=0),
        link("time", stderr_lines=3),
    ]
    out = inline("status").out
    assert "interlock links logs git" in out
    assert "interlock links logs notes" in out
    assert "interlock links logs silent" not in out
    assert "interlock links logs time" not in out
    assert "7 lines: interlock links logs git" in inline("status", "git").out


@pytest.mark.parametrize("name", ["../status", "a/b", "a b", "%2e", "ü", "?x=1", "\x1b[2J", "x" * 5000])
def test_an_odd_name_is_refused_and_shown_harmlessly(inline: Inline, node: FakeOperations, name: str) -> None:
    done = inline("tools", "show", "--", name)
    assert done.code == 1
    assert "\x1b" not in done.err
    assert "Traceback" not in done.err


def test_output_of_servers_cannot_control_the_terminal(inline: Inline, node: FakeOperations) -> None:
    done = inline("links", "logs", "time")
    assert done.lines == [
        "10:00:01  server started",
        r"10:00:02  \x1b[2J\x1b[31mred\x1b[0m \x07bell \u202egnihton",
    ]
    node.link_list = [link("evil", "failed", reason="\x1b]0;title\x07 gone\r\nfake line")]
    out = inline("status").out
    assert "\x1b" not in out
    assert "\nfake line" not in out
    assert r"\x1b]0;title\x07 gone fake line" in out


def test_logs_are_limited_and_followed(interlock: Interlock, node: FakeOperations) -> None:
    assert interlock("links", "logs", "time", "-n", "1").lines[0].startswith("10:00:02")
    with interlock.start("links", "logs", "time", "--follow", "--json") as following:
        assert json.loads(following.next_line())["text"] == "server started"
        following.next_line()
        node.log_lines = [*node.log_lines, {"at": "2026-11-15T10:00:03Z", "text": "server started"}]
        assert json.loads(following.next_line()) == {"at": "2026-11-15T10:00:03Z", "text": "server started"}
        done = following.interrupt()
    assert (done.code, done.out, done.err) == (0, "", "")


def test_restart_reaches_the_node(inline: Inline, node: FakeOperations) -> None:
    assert "time restarted, now connecting" in inline("links", "restart", "time").out
    assert node.restarted == ["time"]


def test_a_refusal_of_the_node_exits_1_with_its_message(interlock: Interlock, node: FakeOperations) -> None:
    done = interlock("links", "restart", "git")
    assert (done.code, done.err) == (1, "error: the node is shutting down\n")


def test_the_audit_log_is_tailed_page_and_follow(interlock: Interlock, node: FakeOperations) -> None:
    done = interlock("audit", "tail", "-n", "6", "--json")
    assert [json.loads(line)["seq"] for line in done.lines] == list(range(25, 31))
    drawn = interlock("audit", "tail", "-n", "1").out
    assert re.search(r"10:00:30 +client:laptop +time\.get_current_time +refused \(tool_degraded\) +45 ms", drawn)
    with interlock.start("audit", "tail", "-n", "1", "-f", "--json") as following:
        assert json.loads(following.next_line())["seq"] == 30
        node.records = [*node.records, node.records[-1] | {"seq": 31}]
        assert json.loads(following.next_line())["seq"] == 31
        assert following.interrupt().code == 0


def test_an_empty_audit_log_is_followed_from_its_start(interlock: Interlock, node: FakeOperations) -> None:
    records, node.records = node.records, []
    assert "no records yet" in interlock("audit", "tail").err
    with interlock.start("audit", "tail", "-f", "--json") as following:
        node.records = records[:1]
        assert json.loads(following.next_line())["seq"] == 1
        following.interrupt()


def test_a_token_is_alone_on_stdout(inline: Inline, node: FakeOperations) -> None:
    done = inline("access", "token", "--for", "client", "--name", "ci", "--scope", "read", "--days", "7")
    assert done.out == "ilc_" + "x" * 43 + "\n"
    assert "shown this once" in done.err
    assert (node.token_list[-1]["scope"], node.token_list[-1]["days"]) == ("read", 7)
    assert inline("access", "revoke", "ci").out == "revoked 00000000000000aa\n"
    assert inline("access", "revoke", "ci").code == 1
    refused = inline("access", "token", "--for", "client", "--name", "not a name")
    assert (refused.code, refused.out) == (1, "")
    assert "A token name has 1 to 64 letters" in refused.err


ASKING = [
    ("status",),
    ("status", "--watch"),
    ("tools", "list"),
    ("tools", "show", "a.b"),
    ("tools", "call", "a.b"),
    ("tools", "routes"),
    ("links", "list"),
    ("links", "logs", "a"),
    ("links", "restart", "a"),
    ("audit", "tail"),
]


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_without_a_node_the_command_says_how_to_start_a_node(inline: Inline, arguments: tuple[str, ...]) -> None:
    done = inline(*arguments)
    assert (done.code, done.out) == (4, "")
    hint = "start one with interlock serve, or name its configuration with --config"
    data = Path(os.environ["INTERLOCK_DATA"])
    assert done.err == f"error: no node is running for the data folder {data}\n hint: {hint}\n"


def test_a_socket_that_nobody_listens_on_is_no_node(interlock: Interlock) -> None:
    unix_listener(interlock.data / "run" / "admin.sock").close()
    done = interlock("status", "--json")
    assert (done.code, done.err) == (4, "")
    assert done.json["error"] == "not_running"


@pytest.fixture
def remote(operations: FakeOperations) -> Iterator[str]:
    async def authenticate(request: Request) -> str | None:
        return "operator:me" if request.headers.get("authorization") == f"Bearer {TOKEN}" else None

    listener = tcp_listener()
    with serving(operator_app(operations.handlers, authenticate=authenticate), listener):
        yield url_of(listener)


def test_another_node_is_reached_by_url_and_token(
    interlock: Interlock, remote: str, operations: FakeOperations
) -> None:
    assert interlock("status", "--url", remote, "--json", INTERLOCK_TOKEN=TOKEN).json == as_json(
        operations.node.status()
    )
    environment = {"INTERLOCK_URL": remote, "INTERLOCK_TOKEN": TOKEN}
    assert interlock("links", "list", "--json", **environment).json == as_json(operations.links.list_all())


def test_a_wrong_token_is_refused_with_the_way_to_get_a_token(inline: Inline, remote: str) -> None:
    for env in ({}, {"INTERLOCK_TOKEN": "ilc_" + "k" * 43}):
        done = inline("status", "--url", remote, **env)
        assert (done.code, done.out) == (1, "")
        assert "interlock access token --for operator" in done.err


def test_a_data_folder_named_on_the_command_line_outweighs_a_url_in_the_environment(
    interlock: Interlock, node: FakeOperations
) -> None:
    done = interlock("status", "--data", str(interlock.data), INTERLOCK_URL="http://127.0.0.1:1")
    assert done.code == 0


@pytest.mark.parametrize("url", ["127.0.0.1:7412", "ftp://x", "http://", "http://h:99999", "http://h:x", "http://a b"])
def test_a_url_that_is_none_is_wrong_usage(inline: Inline, url: str) -> None:
    done = inline("status", "--url", url)
    assert (done.code, done.out) == (2, "")
    assert "http://HOST:PORT" in done.err


def test_a_url_where_nobody_listens_is_unreachable(interlock: Interlock) -> None:
    listener = tcp_listener()
    url = url_of(listener)
    listener.close()
    done = interlock("status", "--url", url)
    assert (done.code, done.out) == (4, "")
    assert "does not listen" in done.err


def test_an_untrusted_certificate_is_reported_with_the_way_to_trust_it(interlock: Interlock, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with authority.context().wrap_socket(tcp_listener(), server_side=True) as listener:
        greeting = threading.Thread(target=_greet, args=(listener,))
        greeting.start()
        done = interlock("status", "--url", f"https://127.0.0.1:{listener.getsockname()[1]}")
        greeting.join(PATIENCE_S)
    assert (done.code, done.out) == (4, "")
    assert "has no certificate that this machine trusts" in done.err
    assert "SSL_CERT_FILE" in done.err


def _greet(listener: ssl.SSLSocket) -> None:
    with contextlib.suppress(ssl.SSLError, OSError):
        listener.accept()[0].close()


def test_the_public_endpoint_is_distinguished_from_the_operators(
    inline: Inline, remote: str, canned: "tuple[str, type[Canned]]"
) -> None:
    url, handler = canned
    handler.status, handler.body = 404, b'{"error":"not_found","message":"MCP is at /mcp","details":{}}'
    assert "--url takes the operator URL" in inline("status", "--url", url).err
    done = inline("tools", "call", "a.b", "--url", remote, "--json", INTERLOCK_TOKEN=TOKEN)
    assert (done.code, done.json["error"]) == (1, "wrong_door")
    assert "--url takes the public URL" in done.json["details"]["hint"]


class Canned(http.server.BaseHTTPRequestHandler):
    """Answers everything with the same bytes, as some other program on the port would."""

    status, body = 200, b"<html>hello</html>"

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def canned() -> Iterator[tuple[str, type[Canned]]]:
    handler = type("Handler", (Canned,), {})
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"<html>"), (200, b"[]"), (200, b'{"node": 1}'), (200, b"\xff"), (502, b"<html>"), (404, b""), (500, b"{}")],
)
def test_an_answer_that_is_not_a_nodes_is_refused_in_one_line(
    inline: Inline, canned: tuple[str, type[Canned]], status: int, body: bytes
) -> None:
    url, handler = canned
    handler.status, handler.body = status, body
    done = inline("status", "--url", url)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


def test_an_unexpected_failure_prints_an_id_and_where_the_log_is(
    interlock: Interlock, canned: tuple[str, type[Canned]]
) -> None:
    url, handler = canned
    handler.body = b'"no object"'
    done = interlock("skills", "show", "x", "--url", url)
    assert (done.code, done.out) == (1, "")
    ref = re.search(r"ref ([0-9a-f]{8})", done.err)
    log = re.search(r"the trace is in (\S+);", done.err)
    assert ref is not None
    assert log is not None
    assert "Traceback" not in done.err
    kept = Path(log[1])
    assert kept.parent == interlock.data / "run"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert ref[1] in kept.read_text()
    assert "Traceback" in kept.read_text()
    assert "Traceback" in interlock("skills", "show", "x", "--url", url, "--debug").err


def on_terminal(interlock: Interlock, *arguments: str, **env: str) -> str:
    """What a command writes when its stdout is a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "interlock", *arguments],
        cwd=interlock.folder,
        env=interlock.env | {"TERM": "xterm-256color", "COLUMNS": "80"} | env,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.STDOUT,
    )
    os.close(theirs)
    written = b""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and select.select([ours], [], [], 20)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        written += part
    os.close(ours)
    assert process.wait(20) in (0, 1)
    return written.decode()


def test_colours_are_for_terminals_only_and_not_with_no_color(interlock: Interlock, node: FakeOperations) -> None:
    coloured = re.compile(r"\x1b\[(\d+;)*3[0-7]m")
    assert coloured.search(on_terminal(interlock, "status"))
    assert not coloured.search(on_terminal(interlock, "status", NO_COLOR="1"))
    assert "\x1b" not in on_terminal(interlock, "status", TERM="dumb")
    assert "\x1b" not in interlock("status").out
    assert coloured.search(on_terminal(interlock, "status", "nope"))
    assert "\x1b" not in on_terminal(interlock, "status", "nope", NO_COLOR="1")


def test_a_poor_encoding_costs_characters_and_not_the_answer(interlock: Interlock, node: FakeOperations) -> None:
    done = interlock("status", PYTHONIOENCODING="ascii")
    assert done.code == 0
    assert "|- * time" in done.out
    assert done.out.isascii()


def test_a_reader_that_has_seen_enough_is_no_failure_to_explain(interlock: Interlock, node: FakeOperations) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "interlock", "explain", "--all"],
        env=interlock.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(20) == 141


def test_restarting_a_server_that_wants_somebody_to_agree_shows_the_page(inline: Inline, node: FakeOperations) -> None:
    done = inline("links", "restart", "notes", "--authorize")
    assert (done.code, done.out) == (0, "https://login.example.com/authorize?state=x\n")
    assert "agree to a token for notes, for a b" in done.err
    assert node.restarted == []
    refused = inline("links", "restart", "time", "--authorize")
    assert refused.code == 1 and "without OAuth" in refused.err


def test_a_secret_is_piped_in_and_shown_to_nobody(interlock: Interlock, node: FakeOperations) -> None:
    done = interlock("secrets", "set", "GITHUB_TOKEN", stdin="hush\n")
    assert (done.code, done.out) == (0, "kept github-token\nnotes restarted\n")
    assert node.kept["secret", "github-token"] == "hush"
    assert "hush" not in done.out + done.err
    listed = interlock("secret", "list")
    assert "github-token" in listed.out and "hush" not in listed.out
    assert interlock("secrets", "remove", "github-token").out == "removed secret github-token\n"
    assert interlock("secrets", "remove", "github-token").code == 1
    assert interlock("secrets", "set", "bad", stdin="x").code == 1
    assert interlock("secrets", "set", "key", stdin="").code == 2
