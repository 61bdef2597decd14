"""Who may come in, by which door, and how far: tokens, the two doors, [[access]]."""

import asyncio
import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import Answer, RunningNode, Wire, running_node, wait_for
from tests.support.raw_client import (
    RawConnection,
    ask,
    ask_in_every_way,
    assert_unharmed,
    call,
    hello,
    legacy,
    legacy_session,
    message,
    modern,
    request,
)

from interlock.core.store_backends import build_store
from interlock.store.tokens import TokenTable

RULES = """
[auth]
anonymous = "never"

[[access]]
who = ["client:reader"]
scope = "read"

[[access]]
who = ["client:narrow-*"]
tools = ["good.echo", "good.ex*"]

[[access]]
who = ["client:dotted"]
names = "qualified"

[[tool]]
match = "good.touch"
hide = true

[[tool]]
match = "good.fail"
auth_scope = "admin"
"""
GUESSES = [
    "",
    "x",
    "ilc_",
    "ilc_" + "a" * 43,
    "ilo_" + "a" * 43,
    "ilc_" + "a" * 5000,
    "\xe9\xff",
    "ilc_%00",
    "undefined",
    "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("tokens"), {"good": {"command": raw("all")}}, RULES) as started:
        yield started
        token = issue(started, "last")
        assert "result" in ask(started, call("good__echo", authorization=f"Bearer {token}")).json
        log = (started.data.parent / "stderr.txt").read_text()
        assert "Traceback" not in log and "internal error" not in log, log


def issue(node: RunningNode, name: str, door: str = "client", **rest: Any) -> str:
    made = node.admin("/admin/tokens", "POST", {"name": name, "for": door, **rest})
    return made["token"]


def bearer(token: str) -> str:
    return f"Bearer {token}"


def tools(node: RunningNode, token: str, path: str = "/mcp") -> set[str]:
    listed = ask(node, modern("tools/list", path=path, authorization=bearer(token))).json["result"]
    assert listed["cacheScope"] == "private"
    return {tool["name"] for tool in listed["tools"]}


def at_operator_door(node: RunningNode, path: str, token: str | None, verb: str = "GET", body: Any = None) -> Answer:
    host, port = node.operator_url.removeprefix("http://").rsplit(":", 1)
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=10)) as connection:
        headers = {"content-type": "application/json"} | ({} if token is None else {"authorization": bearer(token)})
        connection.request(verb, path, body=None if body is None else json.dumps(body), headers=headers)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


# Tokens


def test_without_a_valid_token_every_path_of_the_public_endpoint_is_closed(node: RunningNode) -> None:
    wrong: list[str | None] = [None, *(bearer(guess) for guess in GUESSES), "Basic eDp5", "Bearer", issue(node, "bare")]
    for value in wrong:
        asked = (
            call("good__echo", authorization=value),
            hello(authorization=value),
            request("GET", "/sse", {"authorization": value}),
            request("POST", "/messages?session=x", {"authorization": value, "content-type": "application/json"}, b"{}"),
            modern("tools/list", path="/mcp/only/good", authorization=value),
            request("DELETE", "/mcp", {"authorization": value, "mcp-session-id": "x"}),
        )
        for data in asked:
            answer = ask(node, data)
            assert (answer.status, answer.json["error"]) == (401, "unauthorised"), (value, data)
            assert answer.headers["www-authenticate"].startswith("Bearer")
    assert ask(node, request("GET", "/healthz")).status == 200


def test_a_token_in_the_query_or_a_cookie_opens_nothing(node: RunningNode) -> None:
    token = issue(node, "misplaced")
    for data in (
        modern("tools/list", path=f"/mcp?token={token}"),
        modern("tools/list", path=f"/mcp?access_token={token}"),
        modern("tools/list", cookie=f"authorization=Bearer {token}"),
        modern("tools/list", proxy_authorization=bearer(token)),
        modern("tools/list", meta={"authorization": bearer(token)}),
    ):
        assert ask(node, data).status == 401


def test_a_token_is_accepted_at_the_public_endpoint_until_it_is_revoked(node: RunningNode) -> None:
    made = node.cli("access", "token", "--for", "client", "--name", "brief")
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    data = call("good__echo", {"a": 1}, authorization=bearer(token))
    assert ask_in_every_way(node, data).json["result"]["structuredContent"] == {"a": 1}
    session = legacy_session(node, authorization=bearer(token))
    assert ask(node, legacy(session, "ping", authorization=bearer(token))).status == 200
    listed = json.loads(node.cli("access", "list", "--json").stdout)["tokens"]
    assert "brief" in {one["name"] for one in listed}
    assert token not in json.dumps(listed)
    with RawConnection(node) as kept:
        assert kept.send(data).answer().status == 200
        assert node.cli("access", "revoke", "brief").returncode == 0
        assert kept.send(data).answer().status == 401
    assert ask_in_every_way(node, data).status == 401
    assert ask(node, legacy(session, "ping", authorization=bearer(token))).status == 401
    assert node.cli("access", "revoke", "brief").returncode == 1
    again = issue(node, "brief")
    assert ask(node, data).status == 401
    assert ask(node, call("good__echo", authorization=bearer(again))).status == 200


def test_the_streams_of_a_revoked_token_end(node: RunningNode) -> None:
    token = issue(node, "listener")
    session = legacy_session(node, authorization=bearer(token))
    opening = {
        "listen": modern(
            "subscriptions/listen", {"notifications": {"toolsListChanged": True}}, authorization=bearer(token)
        ),
        "legacy": request("GET", "/mcp", {"authorization": bearer(token), "mcp-session-id": session}),
        "sse": request("GET", "/sse", {"authorization": bearer(token)}),
    }
    with contextlib.ExitStack() as open_streams:
        streams = {
            name: open_streams.enter_context(RawConnection(node, 5.0)).send(data) for name, data in opening.items()
        }
        for rude in streams.values():
            assert rude.stream_head().headers["content-type"] == "text/event-stream"
        node.admin("/admin/tokens/listener", "DELETE")
        for name, rude in streams.items():
            try:
                while rude.event() is not None:
                    pass
            except AssertionError:
                raise AssertionError(f"the {name} stream of a revoked token is still open") from None


@pytest.mark.req("AX-1.1-8")
def test_a_token_past_its_day_opens_nothing(tmp_path: Path) -> None:
    """Its time is put into the table as it would stand there a month later."""
    data = tmp_path / "n" / "data"
    data.mkdir(parents=True, mode=0o700)

    async def prepare() -> tuple[str, str]:
        store = build_store("sqlite", data)
        await store.open()
        try:
            table, now = TokenTable(store.kv), time.time()
            old, _ = await table.issue(
                name="old", owner="old", audience="client", scope="write", now=now, expires_at=now - 1
            )
            soon, _ = await table.issue(
                name="soon", owner="soon", audience="client", scope="write", now=now, expires_at=now + 3
            )
            return old, soon
        finally:
            await store.close()

    old, soon = asyncio.run(prepare())
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}) as node:
        assert ask(node, call("good__echo", authorization=bearer(old))).status == 401
        data_soon = call("good__echo", authorization=bearer(soon))
        assert ask(node, data_soon).status == 200
        wait_for(lambda: ask(node, data_soon).status == 401)
        assert_unharmed(node)


def test_tokens_are_kept_as_hashes_only(node: RunningNode) -> None:
    tokens = [issue(node, "hidden"), issue(node, "hidden-operator", "operator")]
    used = ask(node, call("good__echo", authorization=bearer(tokens[0])))
    assert used.status == 200
    assert at_operator_door(node, "/admin/status", tokens[1]).status == 200
    node.admin("/admin/audit")  # written out
    kept = [path for path in node.data.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in kept)
    secrets = [token.encode() for token in tokens] + [token[4:].encode() for token in tokens]
    for path in (*kept, node.data.parent / "stderr.txt"):
        text = path.read_bytes()
        assert not [secret for secret in secrets if secret in text], path.name
        assert path.stat().st_mode & 0o077 == 0 or path.name == "stderr.txt", path.name
    shown = node.cli("access", "list").stdout + json.dumps(node.admin("/admin/config"))
    assert not [secret for secret in tokens if secret in shown]


# The two doors


def test_no_credential_is_accepted_at_both_endpoints(node: RunningNode) -> None:
    client, operator = issue(node, "program"), issue(node, "person", "operator")
    assert ask(node, call("good__echo", authorization=bearer(client))).status == 200
    assert ask(node, call("good__echo", authorization=bearer(operator))).status == 401
    assert at_operator_door(node, "/admin/status", operator).status == 200
    for token in (client, None, *(guess for guess in GUESSES if guess.isascii())):
        for path in ("/admin/status", "/admin/links", "/admin/audit", "/admin/config", "/admin/tokens", "/session"):
            answer = at_operator_door(node, path, token)
            assert (answer.status, answer.json["error"]) == (401, "unauthorised")
        made = at_operator_door(node, "/admin/tokens", token, "POST", {"name": "evil", "for": "operator"})
        assert made.status == 401
    assert "evil" not in {one["name"] for one in node.admin("/admin/tokens")["tokens"]}
    node.admin("/admin/tokens/person", "DELETE")
    assert at_operator_door(node, "/admin/status", operator).status == 401


def test_the_public_endpoint_has_no_operator_paths_and_the_operator_endpoint_no_mcp(node: RunningNode) -> None:
    token, operator = issue(node, "curious"), issue(node, "curious-person", "operator")
    for path in ("/admin/status", "/admin/tokens", "/approvals", "/metrics", "/"):
        assert ask(node, request("GET", path, {"authorization": bearer(token)})).status == 404
    assert at_operator_door(node, "/mcp", operator, "POST", {}).status == 404


def test_a_session_belongs_to_the_principal_that_opened_it(node: RunningNode) -> None:
    mine, other = issue(node, "mine"), issue(node, "other")
    session = legacy_session(node, authorization=bearer(mine))
    for verb in ("POST", "GET", "DELETE"):
        body = message("ping") if verb == "POST" else None
        headers = {"authorization": bearer(other), "mcp-session-id": session, "content-type": "application/json"}
        answer = ask(node, request(verb, "/mcp", headers, body))
        assert (answer.status, answer.json["error"]["code"]) == (404, -32600)
    assert ask(node, legacy(session, "ping", authorization=bearer(mine))).json["result"] == {}
    with RawConnection(node) as stream:
        stream.send(request("GET", "/sse", {"authorization": bearer(mine)})).stream_head()
        endpoint = stream.event()
        kind = {"content-type": "application/json"}
        foreign = request("POST", endpoint, {"authorization": bearer(other), **kind}, message("ping"))
        assert ask(node, foreign).status == 404
        assert (
            ask(node, request("POST", endpoint, {"authorization": bearer(mine), **kind}, message("ping"))).status == 202
        )


# How far


def test_a_hidden_tool_and_a_tool_above_the_callers_scope_are_not_listed(node: RunningNode) -> None:
    writer, admin = issue(node, "writer"), issue(node, "boss", scope="admin")
    assert not {"good__touch", "good__fail"} & tools(node, writer)
    assert "good__fail" in tools(node, admin) and "good__touch" not in tools(node, admin)
    before = node.link("good")["calls"]
    session = legacy_session(node, authorization=bearer(writer))
    for name in ("good__touch", "good.touch", "good__fail", "good.fail"):
        for data in (
            call(name, authorization=bearer(writer)),
            legacy(session, "tools/call", {"name": name}, authorization=bearer(writer)),
        ):
            answer = ask(node, data)
            assert (answer.status, answer.json["error"]["code"]) == (200, -32601), name
            assert answer.json["error"]["data"]["reason"] == "tool_not_found"
    assert node.link("good")["calls"] == before  # nothing was sent on
    assert ask(node, call("good__fail", authorization=bearer(admin))).json["result"]["isError"]


def test_access_rules_narrow_lists_and_calls_alike(node: RunningNode) -> None:
    narrow, reader = issue(node, "narrow-1"), issue(node, "reader", scope="admin")
    assert tools(node, narrow) == {"good__echo", "good__exact"}
    assert tools(node, narrow, "/mcp/only/good") == {"echo", "exact"}
    before = node.link("good")["calls"]
    for path, name in (("/mcp", "good__log"), ("/mcp", "good.log"), ("/mcp/only/good", "log")):
        answer = ask(node, call(name, path=path, authorization=bearer(narrow)))
        assert answer.json["error"]["code"] == -32601
    assert node.link("good")["calls"] == before
    # What a rule grants, a token's own scope can only lower, and the other way round.
    listed = tools(node, reader)
    assert "good__echo" in listed  # it says it only reads
    assert "good__exact" not in listed
    assert ask(node, call("good__exact", authorization=bearer(reader))).json["error"]["code"] == -32601
    token = issue(node, "low", scope="read")
    assert "good__exact" not in tools(node, token)


def test_one_callers_view_never_shows_in_anothers(node: RunningNode) -> None:
    narrow, wide, dotted = issue(node, "narrow-2"), issue(node, "wide"), issue(node, "dotted")
    for _ in range(3):
        assert tools(node, narrow) == {"good__echo", "good__exact"}
        assert len(tools(node, wide)) > 5
        assert {name.partition(".")[0] for name in tools(node, dotted)} == {"good"}
    listed = ask(node, modern("resources/list", authorization=bearer(narrow))).json["result"]["resources"]
    assert listed == []  # it may not use all of that server
    answer = ask(node, modern("resources/read", {"uri": "raw://text"}, authorization=bearer(narrow)))
    assert answer.json["error"]["code"] == -32602


def test_the_rule_for_local_callers_holds_without_a_token(tmp_path: Path) -> None:
    rules = '[[access]]\nwho = ["local"]\nscope = "read"\ntools = ["good.echo"]\n'
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}, rules) as node, Wire(node) as wire:
        assert {tool["name"] for tool in wire.modern("tools/list").json["result"]["tools"]} == {"good__echo"}
        assert wire.modern("tools/call", {"name": "good__exact"}).json["error"]["code"] == -32601
        assert "result" in wire.modern("tools/call", {"name": "good__echo"}).json
