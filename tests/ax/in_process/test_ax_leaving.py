"""What a subserver that left leaves behind: nothing that only the garbage collector would find.

A node lets the collector look rarely, and a subserver's list may have megabytes.
"""

import asyncio
import gc
import json
import uuid
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.support.local_node import running

from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax.connection import SubserverConnection
from interlock.ax.parts import AxParts
from interlock.ax.protocol.capability import AuthScope
from interlock.net.message_pipe import CUT, NORMAL

PATIENCE_S = 10.0
ANSWERS = {
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}},
    "tools/list": {"tools": [{"name": "read", "inputSchema": {}, "annotations": {"readOnlyHint": True}}]},
}


class Leaf:
    """A subserver and the pipe to it in one."""

    def __init__(self, connection: SubserverConnection) -> None:
        self.connection = connection
        self.session = ""
        self.listened = asyncio.Event()

    def say(self, **members: Any) -> None:
        message = json.dumps({"jsonrpc": "2.0", **members}).encode()
        asyncio.get_running_loop().call_soon(self.connection.on_message, message)

    def send(self, data: bytes) -> bool:
        message = json.loads(data)
        if message.get("id") == "register":
            self.session = message["result"]["session_id"]
        elif message.get("method") in ANSWERS:
            hints = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"}
            self.say(id=message["id"], result={**ANSWERS[message["method"]], **hints})
        elif message.get("method") == "subscriptions/listen":
            self.listened.set()
        return True

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        asyncio.get_running_loop().call_soon(self.connection.on_closed, code, reason)

    def abort(self) -> None:
        self.connection.on_closed(CUT, "cut the connection")

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@pytest.mark.parametrize("how", ["deregistered", "cut off"])
async def test_a_subserver_that_left_is_not_kept_in_memory(tmp_path: Path, how: str) -> None:
    async with running(tmp_path, "[degraded]\nenabled = false\n") as (node, _):
        gc.collect()
        gc.disable()
        try:
            guest = RegistrantIdentity(principal="subserver:leaf", scope=AuthScope.ADMIN)
            registrar = node.get(AxParts).registrar
            leaf = Leaf(SubserverConnection(registrar, guest, transport="websocket", heartbeat_min_ms=100))
            leaf.connection.begin(leaf)
            params = {"subserver_id": str(uuid.uuid4()), "segment": "leaf", "parent_id": None}
            leaf.say(id="register", method="mcpax/register", params=params)
            await asyncio.wait_for(leaf.listened.wait(), PATIENCE_S)
            assert "leaf" in [items.link.segment for items in node.calls.catalog.namespace.link_items if items.tools]
            keeper = node.calls.keepers["leaf"]
            left = {"leaf": leaf, "connection": leaf.connection, "keeper": keeper, "link": keeper.link}
            left = {name: weakref.ref(one) for name, one in left.items()}
            del keeper
            if how == "deregistered":
                leaf.say(id="leave", method="mcpax/deregister", params={"session_id": leaf.session})
            else:
                leaf.abort()
            del leaf
            async with asyncio.timeout(PATIENCE_S):
                while any(one() is not None for one in left.values()):  # noqa: ASYNC110  (the node's own state)
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()
