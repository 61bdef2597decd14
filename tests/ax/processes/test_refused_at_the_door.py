"""Who is turned away at /ax is on record, and whoever is not of this machine needs a token (MCP-AX 10.1)."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.node_process import RunningNode, running_node
from tests.support.raw_client import ask, request

from interlock.ax.endpoint import AxEndpoint
from interlock.ax.protocol.registration.codec import MESSAGE_BYTES_MAX
from interlock.config.plan import AuthPlan, AxPlan

BEAT = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "mcpax/heartbeat", "params": {"session_id": "x"}}).encode()
JSON = {"content-type": "application/json"}
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "sec-websocket-protocol": "mcpax.v1",
}


def test_a_stranger_is_refused_whatever_anonymous_says_and_every_refusal_is_recorded(tmp_path: Path) -> None:
    extra = '[auth]\nanonymous = "any"\n[[access]]\nwho = ["local"]\nscope = "write"\nsecure_by = "a tunnel"\n'
    with running_node(tmp_path, {}, extra=extra) as node:
        elsewhere = "203.0.113.9"
        assert ask(node, request("POST", "/ax", JSON, BEAT)).status == 200
        for status, data in (
            (401, request("POST", "/ax", {**JSON, "x-forwarded-for": elsewhere}, BEAT)),
            (401, request("GET", "/ax", {**UPGRADE, "x-forwarded-for": elsewhere})),
            (401, request("GET", "/ax", {**UPGRADE, "authorization": "Bearer ils_s3cret"})),
            (403, request("GET", "/ax", {**UPGRADE, "origin": "https://evil.example"})),
            (421, request("POST", "/ax", {**JSON, "host": "evil.example"}, BEAT)),
            (413, request("POST", "/ax", JSON, b" " * (MESSAGE_BYTES_MAX + 1))),
        ):
            assert ask(node, data).status == status
        records = [one for one in node.admin("/admin/audit?limit=100")["records"] if one["verdict"] == "refused"]
        found = {(one["who"], one["via"], one["reason"]) for one in records}
        reasons = ("unauthorised", "bad_origin", "bad_host", "body_too_large")
        assert found == {("peer:127.0.0.1", "ax", reason) for reason in reasons}
        assert "s3cret" not in json.dumps(records)
        assert "evil" not in json.dumps(records)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ({"cookie": "a" * 8_190}, 431),
        ({"cookie": "a" * 50_000}, 431),
        ({f"x-{number}": "a" for number in range(150)}, 431),
        ({"x-odd": "a\x01b"}, 400),
        ({"sec-websocket-version": "12"}, 400),
        ({"sec-websocket-key": "short"}, 400),
    ],
    ids=["long", "very long", "many", "control", "version", "key"],
)
def test_a_handshake_that_cannot_be_read_is_answered_and_not_left_open(
    node: RunningNode, head: dict[str, str], status: int
) -> None:
    assert ask(node, request("GET", "/ax", UPGRADE | head)).status == status
    path = "/ax?" + "a" * 9_000
    assert ask(node, request("GET", path, UPGRADE)).status == 431


class _Broken:
    def answer(self, *_: Any) -> Any:
        raise ZeroDivisionError("in the registrar")


class _Plan:
    class node:
        trusted_proxies = ()

    auth = AuthPlan()
    ax = AxPlan()
    access = ()


async def test_an_unexpected_error_is_answered_with_a_reference_that_the_log_repeats(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.ax.endpoint.HeadInspector", lambda plan: _Lenient())
    door = AxEndpoint(cast(Any, _Plan()), cast(Any, None), cast(Any, _Broken()), cast(Any, None))
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": BEAT}

    async def send(message: Any) -> None:
        said.append(message)

    scope = {"type": "http", "method": "POST", "headers": [], "query_string": b"", "client": ("127.0.0.1", 1)}
    async with asyncio.timeout(10):
        await door(scope, receive, send)
    answer = json.loads(said[1]["body"])
    assert (answer["id"], answer["error"]["code"], answer["error"]["message"]) == (7, -32603, "internal error")
    assert "ZeroDivision" not in json.dumps(answer)
    assert any(answer["error"]["data"]["ref"] in record.getMessage() for record in caplog.records)


class _Lenient:
    def stranger(self, head: object) -> None:
        return None
