"""A node in this process in front of the servers a test names, and legacy clients put straight to its desk."""

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from tests.support.node_with_clock import OPEN, SECONDS, AheadClock, ModernRequest

from interlock.config.load import load
from interlock.core.calls.caller import Principal
from interlock.fronts.sessions import ClientSession
from interlock.node.node import Node
from interlock.wire.jsonrpc.codec import Request, Response

UPDATED = "notifications/resources/updated"
LOGGED = "notifications/message"


@contextlib.asynccontextmanager
async def running(folder: Path, configuration: str) -> AsyncIterator[tuple[Node, AheadClock]]:
    """Start a node. When it stops, it does not wait for calls that a test has left under way."""
    config = folder / "interlock.toml"
    config.write_text(f"{OPEN}{configuration}")
    plan = load(config, os.environ, {"data": str(folder / "data")}).plan
    clock = AheadClock()
    node = Node(plan, lambda operations, authenticate: None, clock, listen=False)
    await node.open()
    try:
        await node.readiness.settle(SECONDS)
        yield node, clock
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("interlock.node.node.DRAIN_S", 0.1)
            await node.close()


class LegacyClient:
    """One session, with its stream."""

    def __init__(self, node: Node, **capabilities: Any) -> None:
        self._desk = node.fronts.legacy
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": {"name": "c", "version": "1"},
        }
        request = Request(b"0", "initialize", Raw(json.dumps(hello).encode()))
        opened = self._desk.initialize(request, Principal("local"), "http", None, "auto")
        assert isinstance(opened, ClientSession)
        self.session, self.stream = opened, ModernRequest()
        opened.attach(self.stream)
        self._desk.welcome(opened, request, ModernRequest())

    def ask(self, method: str, params: Any) -> ModernRequest:
        asked = ModernRequest()
        message = Request(str(asked.id).encode(), method, Raw(json.dumps(params).encode()))
        asked.running = self._desk.handle(self.session, message, asked)
        return asked

    def call(self, name: str, arguments: Any = None) -> ModernRequest:
        return self.ask("tools/call", {"name": name, "arguments": arguments or {}})

    def answer(self, request_id: Any, result: Any) -> None:
        """To what it was asked."""
        said = Response(json.dumps(request_id).encode(), Raw(json.dumps(result).encode()), Raw(b""))
        self._desk.handle(self.session, said, ModernRequest())

    def subscribe(self, uri: str) -> ModernRequest:
        return self.ask("resources/subscribe", {"uri": uri})

    def updates(self) -> list[str]:
        return [one["params"]["uri"] for one in self.stream.emitted if one["method"] == UPDATED]
