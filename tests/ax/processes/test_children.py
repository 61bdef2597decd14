"""Subservers that the node starts, and subservers that it dials back (MCP-AX 3.1)."""

import asyncio
import http.client
import json
import re
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, Refused, connect
from tests.ax.blocking_client import call, listed, ready
from tests.servers.start import raw
from tests.support.node_process import RunningNode, running_node

LEAF = Path(__file__).parents[1] / "leaf.py"


def _children(*entries: tuple[str, ...]) -> str:
    return "".join(
        f"[[ax.children]]\nsegment = {json.dumps(entry[0])}\n"
        f"command = {json.dumps([sys.executable, str(LEAF), *entry])}\n"
        for entry in entries
    )


@pytest.mark.req("AX-3.1-3")
async def test_a_child_registers_over_its_stdio_and_is_proved_by_the_operator(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, extra=_children(("kid",))) as node:
        link = await ready(node, "kid", tools=1)
        assert (link["kind"], link["transport"], link["registration"]["principal"]) == ("leaf", "stdio", "child:kid")
        assert link["registration"]["verified"] is True
        assert link["pid"]
        assert "kid.write" in await listed(node)
        answer = await call(node, "kid__write")
        assert json.loads(answer["result"]["content"][0]["text"]) == ["kid", "write"]
        logs = await asyncio.to_thread(node.cli, "links", "logs", "kid")
        assert "a child says something on stderr" in logs.stdout
        rival = BareSubserver(await connect(node), "kid")
        with pytest.raises(Refused) as refused:
            await rival.register()
        assert refused.value.error["message"] == "namespace_conflict"
        await rival.stop()


async def test_a_leaf_of_the_library_is_a_child_as_it_is(tmp_path: Path) -> None:
    leaf = ["library_leaf.py", "lib", "", str(tmp_path / "state")]
    path = str(LEAF.with_name(leaf[0]))
    program = f"import runpy, sys; sys.path[:0], sys.argv = {sys.path!r}, {leaf!r}; runpy.run_path({path!r})"
    command = [sys.executable, "-c", program]
    extra = f'[[ax.children]]\nsegment = "lib"\ncommand = {json.dumps(command)}\n'
    with running_node(tmp_path / "node", {}, extra=extra) as node:
        link = await ready(node, "lib", tools=2)
        assert link["transport"] == "stdio"
        assert (await call(node, "lib__echo", {"number": 7}))["result"]["content"][0]["text"] == "7"


async def test_a_child_that_dies_in_a_call_is_started_again_and_the_call_is_not_repeated(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, extra=_children(("kid",))) as node:
        first = (await ready(node, "kid", tools=1))["pid"]
        error = (await call(node, "kid__write", {"die": True}))["error"]
        assert (error["message"], error["data"]["outcome"]) == ("tool_degraded", "unknown")
        again = await ready(node, "kid", tools=1)
        assert again["pid"] != first
        assert "result" in await call(node, "kid__write")


async def test_a_child_that_served_calls_is_started_again_soon_however_often_it_dies(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, extra=_children(("kid",))) as node:
        for _ in range(4):
            await ready(node, "kid", tools=1)
            assert "result" in await call(node, "kid__write")
            await call(node, "kid__write", {"die": True})
        await ready(node, "kid", tools=1)
    pauses = re.findall(
        r"child kid: exited with code 3; next attempt in (\S+) s", (tmp_path / "stderr.txt").read_text()
    )
    assert len(pauses) == 4
    assert max(map(float, pauses)) < 1


async def test_a_child_gets_the_segment_of_the_configuration_only(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, extra=_children(("kid", "elsewhere"))) as node:

        def refused() -> bool:
            records = node.admin("/admin/audit?limit=50")["records"]
            return any(one["tool"] == "elsewhere" and one["verdict"] == "refused" for one in records)

        from tests.support.node_process import wait_for

        await asyncio.to_thread(wait_for, refused)
        assert not any(name.startswith("elsewhere") for name in await listed(node))
        shown = await asyncio.to_thread(node.cli, "status")
        assert "kid" in shown.stdout


def _post(node: RunningNode, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return _post_body(node, json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))


def _post_body(node: RunningNode, body: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(node.host, node.port, timeout=10)
    connection.request("POST", "/ax", body=body, headers={"content-type": "application/json"})
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def _register(segment: str, endpoint: str | None) -> dict[str, Any]:
    return {
        "subserver_id": str(uuid.uuid4()),
        "segment": segment,
        "parent_id": None,
        **({"endpoint": endpoint} if endpoint is not None else {}),
    }


# MCP-AX 6.1, as printed
PRINTED = """{
"jsonrpc": "2.0",
"method": "mcpax/register",
"id": 1,
"params": {
"subserver_id": "550e8400-e29b-41d4-a716-446655440000",
"segment": "stm32h7",
"authority": "dns:edge01.factory.example.com",
"capabilities": {
"tools": true,
"resources": false,
"notifications": true
},
"heartbeat_interval_ms": 5000,
"transport_class": "uart_cbor",
"version": "2026-05-01"
}
}"""


@pytest.mark.req("AX-6.1-1")
async def test_the_printed_registration_works_by_post_where_the_endpoint_is_configured(tmp_path: Path) -> None:
    with running_node(tmp_path / "far", {"origin": {"command": raw("all")}}) as far:
        endpoints = f'[ax.endpoints]\nstm32h7 = "http://127.0.0.1:{far.port}/mcp"\n'
        with running_node(tmp_path / "near", {}, extra=endpoints) as node:
            answer = await asyncio.to_thread(_post_body, node, PRINTED)
            assert (answer["id"], answer["result"]["status"]) == (1, "registered")
            link = await asyncio.to_thread(node.wait_link, "stm32h7", {"state": "ready"})
            assert (link["transport"], link["kind"]) == ("http", "leaf")
            # Its authority is claimed and not proved, so that only tools that read are listed.
            listed_names = await listed(node)
            assert any(name.startswith("stm32h7.") for name in listed_names), listed_names
            unconfigured = await asyncio.to_thread(_post_body, node, PRINTED.replace("stm32h7", "stm32f4"))
            assert unconfigured["error"]["code"] == -32602
            assert unconfigured["error"]["data"]["member"] == "endpoint"
            assert "ax.endpoints" in unconfigured["error"]["message"]


@pytest.mark.req("AX-3.1-3")
async def test_a_subserver_is_dialled_back_where_the_operator_allows_it(tmp_path: Path) -> None:
    servers = {"origin": {"command": raw("all")}}
    with running_node(tmp_path / "far", servers) as far:
        allowed = f'[ax]\ndial_back = ["http://127.0.0.1:{far.port}/mcp", "https://*.example.com/*"]\n'
        with running_node(tmp_path / "near", {}, extra=allowed) as node:
            endpoint = f"http://127.0.0.1:{far.port}/mcp"
            answer = await asyncio.to_thread(_post, node, "mcpax/register", _register("remote", endpoint))
            session = answer["result"]["session_id"]
            link = await asyncio.to_thread(node.wait_link, "remote", {"state": "ready"})
            assert (link["transport"], link["kind"]) == ("http", "leaf")
            tools = [name for name in await listed(node) if name.startswith("remote.")]
            assert tools
            assert (await call(node, "remote.origin__echo", {"n": 7}))["result"]["structuredContent"] == {"n": 7}
            beat = await asyncio.to_thread(_post, node, "mcpax/heartbeat", {"session_id": session})
            assert beat["result"] == {"status": "ok", "heartbeat_deadline_ms": 15000}
            for refused in (
                None,
                f"http://127.0.0.1:{far.port}/elsewhere",
                f"http://127.0.0.1:{far.port + 1}/mcp",
                f"http://localhost:{far.port}/mcp",
                "https://evil.test/.example.com/mcp",
                "ftp://127.0.0.1/mcp",
                "http://user:pass@127.0.0.1/mcp",
            ):
                answer = await asyncio.to_thread(_post, node, "mcpax/register", _register("other", refused))
                assert answer["error"]["code"] == -32602, refused
                assert answer["error"]["data"]["member"] == "endpoint"
            gone = await asyncio.to_thread(_post, node, "mcpax/deregister", {"session_id": session})
            assert gone["result"] == {"status": "deregistered"}
            assert not any(name.startswith("remote.") for name in await listed(node))
            unknown = await asyncio.to_thread(_post, node, "mcpax/heartbeat", {"session_id": session})
            assert unknown["error"]["message"] == "session_unknown"
            assert (await asyncio.to_thread(_post, node, "tools/list", {}))["error"]["code"] == -32601
