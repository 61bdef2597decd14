"""The boot sequence of MCP-AX B.3, recorded at both ends of a gateway: its parent, and the line of its device."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interaction.ax.tree import ACCESS, parents
from tests.interaction.devices.lines import Line
from tests.interaction.harness import running_node, wait_for
from websockets.sync.server import ServerConnection, serve

TOOLS = """
[[tool]]
id = 1
name = "temperature"
mutable = false
reversible = true
response = [{ name = "celsius", type = "i16" }]
[[tool]]
id = 7
name = "other"
mutable = false
reversible = true
"""
QUICK = "heartbeat_ms = 150\ntimeout_ms = 300"
ON_BEHALF = '[devices]\nmode = "on_behalf"\n'
EARLY = {"jsonrpc": "2.0", "id": 98, "method": "tools/call", "params": {"name": "temperature", "arguments": {}}}


class Parent:
    """Takes registrations; of the device's it records what comes, and calls its tool before and after."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.answers: dict[int, Any] = {}
        self.registered: dict[str, Any] = {}

    def meet(self, connection: ServerConnection) -> None:
        register = json.loads(connection.recv())
        is_device = register["params"]["segment"] == "board"
        if is_device:
            self.registered = register["params"]
            self.events.append("register")
            connection.send(json.dumps(EARLY))
            self.answers[98] = json.loads(connection.recv())
            self.events.append("registered")
        granted = {
            "status": "registered",
            "assigned_segment": register["params"]["segment"],
            "session_id": "session-1",
            "heartbeat_deadline_ms": 2000,
            "budget": {},
        }
        connection.send(json.dumps({"jsonrpc": "2.0", "id": register["id"], "result": granted}))
        beats = 0
        with contextlib.suppress(Exception):
            for text in connection:
                message = json.loads(text)
                if message.get("method") == "mcpax/heartbeat":
                    connection.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}))
                    beats += is_device
                    if is_device and beats == 1:
                        self.events.append("heartbeat")
                        for id, method in ((99, "tools/list"), (100, "tools/call")):
                            params = EARLY["params"] if method == "tools/call" else {}
                            connection.send(
                                json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
                            )
                elif is_device and "id" in message and "method" not in message:
                    self.answers[message["id"]] = message


@contextlib.contextmanager
def recorded() -> Iterator[tuple[Parent, str]]:
    parent = Parent()
    with serve(parent.meet, "127.0.0.1", 0, subprotocols=["mcpax.v1"]) as server:  # type: ignore[list-item]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.socket.getsockname()[1]
        try:
            yield parent, f"ws://127.0.0.1:{port}/ax"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    "profile",
    [pytest.param("a", marks=pytest.mark.req("AX-B.3-2")), pytest.param("b", marks=pytest.mark.req("AX-B.3-4"))],
)
def test_a_device_is_found_mapped_registered_beaten_for_and_only_then_called(profile: str, tmp_path: Path) -> None:
    tools = TOOLS.replace("id = 7", "id = 8")
    line = Line(tmp_path / "workspace", "board", f'profile = "{profile}"\n{tools}', QUICK)
    if profile == "b":  # it announces 1 and 3; 8 is described alone
        line.device._description = line.device._description.__class__(
            profile="b",
            link=line.device._description.link,
            tools=(line.device._description.tools[0], type(line.device._description.tools[0])(id=3, name="three")),
        )
    with recorded() as (parent, url):
        answer = line.answers

        def reply(message: bytes) -> list[bytes]:
            is_call = message[0] == 1 if profile == "a" else message[:2] == b"\xa3\x01" and message[2] < 0x60
            if is_call:
                parent.events.append("call")
            elif "presence" not in parent.events:
                parent.events.append("presence")
            return answer(message)

        line.reply = reply
        with running_node(tmp_path, {}, parents((url, "edge")) + ACCESS + ON_BEHALF) as node:
            wait_for(lambda: 100 in parent.answers)
            missing = node.link("board")["device"]["missing"]
        line.unplug()
    assert parent.events == ["presence", "register", "registered", "heartbeat", "call"]
    assert parent.registered["transport_class"] == "uart_cbor"
    assert "error" in parent.answers[98]  # not before the registration is answered
    assert "celsius" in parent.answers[100]["result"]["structuredContent"]
    names = {tool["name"] for tool in parent.answers[99]["result"]["tools"]}
    assert names == ({"temperature", "other"} if profile == "a" else {"temperature", "three"})
    assert missing == ([] if profile == "a" else ["other"])
