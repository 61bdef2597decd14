"""No credential crosses a hop: what a client brings stays at the door, what a server is given stays on its link."""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw, serving
from tests.support.node_process import RunningNode, running_node
from tests.support.raw_client import ask, assert_unharmed, call, legacy, legacy_session, modern

MARK = "marker7f3a"
CREDENTIAL_KEYS = (
    "authorization",
    "com.example/Authorization",
    "com.example/access-token",
    "accessToken",
    "com.example/session-id",
    "Mcp-Session-Id",
    "com.example/cookie",
    "Set-Cookie",
    "com.example/clientSecret",
    "com.example/PASSWORD",
    "com.example/api-key",
    "api_key",
    "apikey",
    "baggage",
    "x-mcpax-route",
    "X-MCPAX-cursor",
)
PLANTED: dict[str, str | None] = {
    "cookie": f"session={MARK}-cookie; token={MARK}-cookie2",
    "proxy_authorization": f"Basic {MARK}-proxy",
    "x_api_key": f"{MARK}-api-key",
    "x_auth_token": f"{MARK}-x-auth",
    "x_custom": f"{MARK}-custom",
    "referer": f"http://localhost/{MARK}-referer",
    "user_agent": f"{MARK}-agent",
    "traceparent": f"00-{MARK}-01",
    "last_event_id": f"{MARK}-event",
}
META = {key: f"{MARK}-meta-{number}" for number, key in enumerate(CREDENTIAL_KEYS)} | {"com.example/kept": "passes"}
META["baggage"] = f"release=7,session={MARK}-baggage"
NODE_ENVIRONMENT = {
    "INTERLOCK_TOKEN": f"{MARK}-interlock",
    "INTERLOCK_URL": f"http://127.0.0.1:9/{MARK}",
    "INTERLOCK_MCP__NAMES": "auto",
    "AWS_SECRET_ACCESS_KEY": f"{MARK}-aws",
    "HTTP_PROXY_PASSWORD": f"{MARK}-proxy",
    "GITHUB_TOKEN": f"{MARK}-github",
}
LINKS = ("new_stdio", "old_stdio", "new_http", "old_http")


def recorder(link: str) -> list[str]:
    return raw("echo,recorder,resources,prompts,completions", "--era", "modern" if link.startswith("new") else "legacy")


@contextlib.contextmanager
def recorders() -> Iterator[dict[str, dict[str, Any]]]:
    with contextlib.ExitStack() as running:
        tables: dict[str, dict[str, Any]] = {}
        for link in LINKS:
            if link.endswith("http"):
                tables[link] = {"url": running.enter_context(serving(recorder(link)))}
            else:
                tables[link] = {"command": recorder(link)}
        tables["old_http"]["headers"] = {"X-Own": "own-secret-of-old-http"}
        tables["new_stdio"]["env"] = {"OWN_KEY": "own-secret-of-new-stdio"}
        yield tables


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with recorders() as tables:
        tables["good"] = {"command": raw("all")}
        folder = tmp_path_factory.mktemp("hops")
        with running_node(folder, tables, env=NODE_ENVIRONMENT) as started:
            yield started
            assert_unharmed(started)


def say_everything(node: RunningNode, link: str, prefix: str = "") -> str:
    """Call, read, prompt and list through `link` with a marker wherever a credential can be; gives the token used."""
    token = node.admin("/admin/tokens", "POST", {"name": f"{MARK}-{link}-{prefix or 'x'}", "for": "client"})["token"]
    planted = {**PLANTED, "authorization": f"Bearer {token}"}
    path = f"/mcp?token={MARK}-query&session={MARK}-query2"
    tool = f"{prefix}{link}__"
    uri = f"mcpax://{link}/raw://text"
    if prefix:
        uri = f"mcpax://{prefix.removesuffix('.')}/{uri}"
    session = legacy_session(node, **planted)
    asked = [
        ("tools/call", {"name": f"{tool}echo", "arguments": {"a": 1}}),
        ("prompts/get", {"name": f"{tool}greet", "arguments": {"who": "you"}}),
        ("tools/list", {}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": f"{tool}greet"}, "argument": {}}),
        ("resources/read", {"uri": uri}),
    ]
    for method, params in asked:
        for data in (
            modern(method, params, path=path, meta=META, **planted),
            legacy(session, method, {**params, "_meta": META}, path=path, **planted),
        ):
            assert "result" in ask(node, data).message, data
    return token


def seen(node: RunningNode, tool: str) -> Any:
    answer = http_body(node, call(tool))
    return json.loads(answer)["result"]["structuredContent"]


def http_body(node: RunningNode, data: bytes) -> bytes:
    """Without the look for indiscretions: a recorder tells everything, as it should."""
    with socket.create_connection((node.host, node.port), timeout=10) as connection:
        connection.sendall(data.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
        said = b""
        while piece := connection.recv(65536):
            said += piece
    return said.partition(b"\r\n\r\n")[2]


@pytest.mark.req("AX-10.1-1")
@pytest.mark.parametrize("link", LINKS)
def test_nothing_a_client_proves_itself_with_reaches_a_server(node: RunningNode, link: str) -> None:
    token = say_everything(node, link)
    told = seen(node, f"{link}__seen")
    methods = {message["method"] for message in told["messages"]}
    assert {"tools/call", "prompts/get", "resources/read"} <= methods
    text = json.dumps(told["messages"])
    assert "com.example/kept" in text  # a vendor's own key is not ours to drop
    assert token not in text and token[4:] not in text
    assert MARK not in text
    for message in told["messages"]:
        allowed = {"host", "content-type", "content-length", "accept", "mcp-protocol-version", "mcp-session-id"}
        allowed |= {"mcp-method", "mcp-name", "x-own", "connection", "user-agent"}
        assert set(message["headers"]) <= allowed, message["headers"]


@pytest.mark.parametrize("link", ["new_stdio", "old_stdio"])
def test_a_child_gets_its_own_variables_and_none_of_the_nodes(node: RunningNode, link: str) -> None:
    environment = seen(node, f"{link}__seen")["process"]["environment"]
    assert not [name for name in environment if name.startswith("INTERLOCK")]
    assert MARK not in json.dumps(environment)
    assert not {"AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "PYTHONPATH"} & set(environment)
    assert environment.get("OWN_KEY") == ("own-secret-of-new-stdio" if link == "new_stdio" else None)
    assert "PATH" in environment


@pytest.mark.req("AX-10.1-1")
def test_a_secret_of_a_server_stays_on_its_own_link_and_is_shown_to_no_client(node: RunningNode) -> None:
    own = ("own-secret-of-old-http", "own-secret-of-new-stdio")
    for link in LINKS:
        text = json.dumps(seen(node, f"{link}__seen"))
        assert (own[0] in text) is (link == "old_http")
        assert (own[1] in text) is (link == "new_stdio")
    log = (node.data.parent / "stderr.txt").read_text()
    for shown in (log, json.dumps(node.admin("/admin/status")), json.dumps(node.admin("/admin/audit?limit=1000"))):
        assert not [secret for secret in own if secret in shown]


def test_markers_are_in_no_log_record_or_page_of_the_node(node: RunningNode) -> None:
    token = say_everything(node, "new_http")
    node.admin("/admin/audit?limit=1000")
    kept = [path.read_bytes() for path in node.data.rglob("*") if path.is_file()]
    kept.append((node.data.parent / "stderr.txt").read_bytes())
    kept.append(json.dumps(node.admin("/admin/config")).encode())
    names = {f"{MARK}-{link}-x".encode() for link in LINKS}  # the names of our tokens hold the marker too
    for text in kept:
        assert token.encode() not in text
        for name in names:
            text = text.replace(name, b"")
        assert MARK.encode() not in text, text[max(0, text.find(MARK.encode()) - 80) :][:200]


def test_an_error_repeats_nothing_it_was_given_in_confidence(node: RunningNode) -> None:
    planted = {key: value for key, value in PLANTED.items() if key != "traceparent"}
    wrong = [
        call("no_such_tool", meta=META, **planted),
        modern("no/such/method", meta=META, **planted),
        call("new_stdio__refuse", {"code": -32000, "message": "no"}, meta=META, **planted),
        call("good__echo", path=f"/mcp/{MARK}", meta=META, **planted),
        call("good__echo", authorization=f"Bearer {MARK}", meta=META),
        call("good__echo", origin=f"http://{MARK}.example", meta=META),
        call("good__echo", host=f"{MARK}.example", meta=META),
        legacy(f"{MARK}-session", "ping", {"_meta": META}, **planted),
        call("good__echo", mcp_name=MARK, meta=META, **planted),
    ]
    for data in wrong:
        answer = ask(node, data)
        assert MARK.encode() not in answer.body and MARK not in json.dumps(answer.headers), answer.body


def test_no_argument_can_forge_a_header_or_a_message_of_the_next_hop(node: RunningNode) -> None:
    forged = "a\r\nX-Forged: 1\r\n\r\nPOST /mcp HTTP/1.1\r\n"
    ask(node, modern("resources/read", {"uri": "mcpax://new_http/raw://item/" + forged}))
    ask(node, call("new_http__echo", {"a": forged, forged: forged}))
    ask(node, call("old_stdio__echo", {"a": '\n{"jsonrpc":"2.0","method":"notifications/forged"}\n'}))
    ask(node, call("old_stdio__echo\r\nX-Forged: 1"))
    pretty = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}}, indent=2)
    assert "\n" in pretty
    for link in ("new_http", "old_stdio"):
        messages = seen(node, f"{link}__seen")["messages"]
        assert not [message for message in messages if "x-forged" in message["headers"]]
        assert not [message for message in messages if message["method"] == "notifications/forged"]
        assert {message["method"] for message in messages} <= {
            *("initialize", "notifications/initialized", "server/discover", "subscriptions/listen", "tools/list"),
            *("prompts/list", "resources/list", "resources/templates/list", "tools/call", "prompts/get"),
            *("resources/read", "completion/complete", "notifications/cancelled", "logging/setLevel"),
        }


@pytest.mark.req("AX-1.1-7")
def test_nothing_crosses_two_aggregators(tmp_path: Path) -> None:
    """A recording leaf behind two nodes, one of each era and pipe, and every place a marker can be planted in."""
    inner_rules = '[auth]\nanonymous = "never"\n'
    with recorders() as tables, contextlib.ExitStack() as running:
        inner = running.enter_context(running_node(tmp_path / "i", tables, inner_rules, NODE_ENVIRONMENT))
        between = inner.admin("/admin/tokens", "POST", {"name": "outer", "for": "client"})["token"]
        link = {"url": f"{inner.url}/mcp", "headers": {"Authorization": f"Bearer {between}"}}
        outer = running.enter_context(running_node(tmp_path / "o", {"inner": link}, env=NODE_ENVIRONMENT))
        outer.wait_link("inner", {"state": "ready"})
        tokens = [say_everything(outer, leaf, "inner.") for leaf in LINKS]
        for leaf in LINKS:
            told = seen(outer, f"inner.{leaf}__seen")
            text = json.dumps(told)
            assert {"tools/call", "prompts/get", "resources/read"} <= {
                message["method"] for message in told["messages"]
            }
            assert "com.example/kept" in text
            assert MARK not in text
            assert between not in text
            assert not [token for token in tokens if token in text]
        error = ask(outer, call("inner.new_http__no_such_tool", meta=META, **PLANTED))
        assert MARK.encode() not in error.body
        for node in (inner, outer):
            log = (node.data.parent / "stderr.txt").read_text()
            kept = b"".join(path.read_bytes() for path in node.data.rglob("*") if path.is_file())
            assert MARK not in log
            assert not [token for token in (*tokens, between) if token in log or token.encode() in kept]
        assert MARK not in json.dumps(inner.admin("/admin/audit?limit=1000"))
