"""Which credential opens /ax, and who may stay (MCP-AX 1.1, 10.1, 10.4)."""

import asyncio
import json
import socket
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.ax.bare_subserver import BareSubserver, Refused, address, bare_subserver, connect, tool
from tests.ax.blocking_client import call, ready
from tests.support.node_process import RunningNode, Wire, running_node

ACCESS = """
[auth]
anonymous = "never"
[[access]]
who = ["subserver:trusted"]
scope = "write"
authority = "dns:edge01.example.com"
[[access]]
who = ["subserver:tunnel"]
secure_by = "WireGuard"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("doors"), {}, extra=ACCESS) as started:
        yield started


def _token(node: RunningNode, door: str, name: str) -> str:
    made = node.cli("access", "token", "--for", door, "--name", name)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


async def _status(node: RunningNode, token: str | None) -> tuple[int, dict[str, Any]]:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await connect(node, token=token)
    return refused.value.response.status_code, json.loads(refused.value.response.body)


@pytest.mark.req("AX-10.1-3")
async def test_each_endpoint_accepts_only_its_own_tokens(node: RunningNode) -> None:
    client, subserver = _token(node, "client", "laptop"), _token(node, "subserver", "gate")
    operator = _token(node, "operator", "me")
    assert subserver.startswith("ils_")
    for wrong in (None, client, operator, "ils_" + "0" * 43, "nonsense", "eyJhbGciOiJub25lIn0.eyJhdWQiOiJ4In0."):
        code, body = await _status(node, wrong)
        assert (code, body["error"]) == (401, "unauthorised")
    async with bare_subserver(node, "gate", token=subserver, tools=[tool("read")]):
        await ready(node, "gate", tools=1)
        with Wire(node, token=subserver) as wire:
            assert wire.modern("tools/list").status == 401
        assert "result" in await call(node, "gate__read", token=client)


async def test_a_revoked_token_ends_its_link_and_no_other(node: RunningNode) -> None:
    staying, leaving = _token(node, "subserver", "staying"), _token(node, "subserver", "leaving")
    async with (
        bare_subserver(node, "staying", token=staying) as kept,
        bare_subserver(node, "leaving", token=leaving) as ended,
    ):
        revoked = await asyncio.to_thread(node.cli, "access", "revoke", "leaving")
        assert revoked.returncode == 0
        assert (await ended.closed())[0] == 4401
        assert (await kept.beat())["status"] == "ok"
        assert (await _status(node, leaving))[0] == 401


@pytest.mark.req("AX-4.2-7", "AX-4.2-6")
async def test_mutable_tools_need_a_proved_authority(node: RunningNode) -> None:
    tools = [tool("read"), tool("write", annotations={"readOnlyHint": False})]
    unproved = _token(node, "subserver", "unproved")
    async with bare_subserver(node, "doubted", token=unproved, tools=tools, authority="dns:edge01.example.com") as leaf:
        refused = await leaf.hear("notifications/mcpax/tools_refused")
        assert [(one["name"], one["reason"]) for one in refused["params"]["tools"]] == [
            ("write", "authority_unverified")
        ]
        client = _token(node, "client", "caller")
        assert (await call(node, "doubted__write", token=client))["error"]["code"] == -32601
        assert "result" in await call(node, "doubted__read", token=client)
        link = await asyncio.to_thread(node.link, "doubted")
        assert (link["registration"]["verified"], [one["name"] for one in link["withheld"]]) == (False, ["write"])
        shown = await asyncio.to_thread(node.cli, "status", "doubted")
        assert "dns:edge01.example.com (unverified)" in shown.stdout
        leaf.tools = [tool("read", annotations={"readOnlyHint": False}), tools[1]]
        await leaf.notify("notifications/tools/list_changed")
        await ready(node, "doubted", tools=0)
        assert (await call(node, "doubted__read", token=client))["error"]["code"] == -32601
    proved = _token(node, "subserver", "trusted")
    async with bare_subserver(node, "believed", token=proved, tools=tools, authority="dns:Edge01.example.com.") as leaf:
        await ready(node, "believed", tools=2)
        assert leaf.session["auth_scope"] == "write"
        shown = await asyncio.to_thread(node.cli, "status", "believed")
        assert "dns:edge01.example.com (verified)" in shown.stdout
        owner = await asyncio.to_thread(node.cli, "tools", "show", "believed.write")
        assert "subserver:trusted" in owner.stdout


async def test_a_web_page_of_another_site_does_not_come_in(node: RunningNode) -> None:
    token = _token(node, "subserver", "browser")
    headers = {"authorization": f"Bearer {token}", "origin": "https://evil.example"}
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(
            address(node), subprotocols=[websockets.Subprotocol("mcpax.v1")], additional_headers=headers
        )
    assert refused.value.response.status_code == 403


def _own_address() -> str | None:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found = str(probe.getsockname()[0])
        return None if found.startswith("127.") else found


@pytest.mark.req("AX-10.4-1")
async def test_beyond_this_machine_plain_text_is_refused_unless_something_else_secures_it(tmp_path: Path) -> None:
    own = _own_address()
    if own is None:
        pytest.skip("this machine has no address beside loopback")
    listens = f'[node]\nlisten = "{own}:0"\noperator_listen = "127.0.0.1:0"\n'
    with running_node(tmp_path, {}, extra=ACCESS.replace("[auth]", f"{listens}[auth]")) as node:
        for name, subtree in (("plain", None), ("plain", [str(uuid.uuid4())])):
            leaf = BareSubserver(await connect(node, token=_token(node, "subserver", name)), "far")
            if subtree is not None:
                leaf.register_params["x-mcpax-subtree-ids"] = subtree
            with pytest.raises(Refused) as refused:
                await leaf.register()
            assert (refused.value.error["code"], refused.value.error["message"]) == (32119, "link_insecure")
            assert (await leaf.closed())[0] == 4403
            await leaf.stop()
        secured = _token(node, "subserver", "tunnel")
        async with bare_subserver(node, "far", token=secured, **{"x-mcpax-subtree-ids": [str(uuid.uuid4())]}):
            link = await asyncio.to_thread(node.link, "far")
            assert (link["kind"], link["registration"]["secure_by"]) == ("aggregator", "WireGuard")


@pytest.mark.req("AX-13.4-1")
def test_the_identity_is_kept_and_never_replaced(tmp_path: Path) -> None:
    with running_node(tmp_path / "one", {}) as first:
        one = first.status_at_start["node"]["aggregator_id"]
    with running_node(tmp_path / "one", {}) as again:
        assert again.status_at_start["node"]["aggregator_id"] == one
    with running_node(tmp_path / "two", {}) as other:
        assert other.status_at_start["node"]["aggregator_id"] != one
    file = tmp_path / "one" / "data" / "identity.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for damaged in (b"", b"{}", b"nonsense", b'{"aggregator_id":"not-a-uuid"}', b"\xff\xfe"):
        file.write_bytes(damaged)
        refused = again.cli("serve", "--json")
        assert refused.returncode == 1
        assert "does not hold this node's identity" in refused.stdout + refused.stderr
        assert file.read_bytes() == damaged


async def test_an_unproved_registrant_may_read_and_no_more(node: RunningNode) -> None:
    token = _token(node, "subserver", "modest")
    async with bare_subserver(node, "modest", token=token, auth_scope="admin") as leaf:
        assert leaf.session["auth_scope"] == "read"
    assert "modest.read" not in await listed_as(node)


async def listed_as(node: RunningNode) -> dict[str, Any]:
    token = _token(node, "client", "lister")

    def ask() -> dict[str, Any]:
        with Wire(node, token=token) as wire:
            return {one["name"]: one for one in wire.modern("tools/list").message["result"]["tools"]}

    return await asyncio.to_thread(ask)
