"""The boot sequence of MCP-AX B.3, recorded at both ends of a gateway: its parent, and the line of its device."""

import contextlib
import functools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.tree import ACCESS, parents
from tests.devices.serial_lines import THERMOMETER, Line
from tests.support.node_process import running_node, wait_for
from websockets.sync.server import ServerConnection, serve

from interlock.devices.protocol.cbor_codec import encoded, read_untrusted

TOOLS = THERMOMETER.replace("never_announced", "other")
QUICK = "heartbeat_ms = 150\ntimeout_ms = 300"
ON_BEHALF = '[devices]\nmode = "on_behalf"\n'
SESSION, TOKEN = "session-1", "ils_of_edge"
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


class Witness:
    """Takes the registration of a gateway, then lists its tools and calls some; it keeps all that is said."""

    def __init__(self, *calls: str) -> None:
        self.calls = calls
        self.may_call = threading.Event()
        self.credential: str | None = None
        self.texts: list[str] = []
        self.answers: dict[int, Any] = {}

    def meet(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.credential = connection.request.headers["authorization"]
        self.texts.append(str(connection.recv()))
        register = json.loads(self.texts[0])
        granted = {
            "status": "registered",
            "assigned_segment": register["params"]["segment"],
            "session_id": SESSION,
            "heartbeat_deadline_ms": 900,
            "budget": {},
        }
        connection.send(json.dumps({"jsonrpc": "2.0", "id": register["id"], "result": granted}))
        self.may_call.wait(10)
        asked: list[tuple[str, dict[str, Any]]] = [("tools/list", {})]
        asked += [("tools/call", {"name": name, "arguments": {}}) for name in self.calls]
        for id, (method, params) in enumerate(asked):
            connection.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
        with contextlib.suppress(Exception):
            for text in connection:
                self.texts.append(str(text))
                message = json.loads(text)
                if "method" not in message:
                    self.answers[message["id"]] = message.get("result")
                elif "id" in message:
                    connection.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}))


@contextlib.contextmanager
def recorded(parent: Parent | Witness) -> Iterator[str]:
    with serve(parent.meet, "127.0.0.1", 0, subprotocols=["mcpax.v1"]) as server:  # type: ignore[list-item]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.socket.getsockname()[1]
        try:
            yield f"ws://127.0.0.1:{port}/ax"
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
    parent = Parent()
    with recorded(parent) as url:
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


@pytest.mark.req("AX-1.1-5")
def test_a_line_never_holds_what_its_gateway_keeps_for_the_device(tmp_path: Path) -> None:
    lines = [Line(tmp_path / "workspace", f"board_{one}", f'profile = "{one}"\n{TOOLS}', QUICK) for one in "ab"]
    spoken: dict[str, set[str]] = {line.segment: set() for line in lines}

    def reply(line: Line, message: bytes) -> list[bytes]:
        """Tool 7 fails."""
        is_frame = line.segment == "board_a"
        members = {1: message[1] if message[0] == 1 else "h", 2: message[2]} if is_frame else read_untrusted(message)
        spoken[line.segment].add({"r": "boot", "h": "beat", 1: "call", 7: "error"}[members[1]])
        if members[1] != 7:
            return line.answers(message)
        failed = bytes((2, 7, members[2], 9)) if is_frame else encoded({2: members[2], 5: 9})
        return [line.framing.encode(failed)]

    for line in lines:
        line.reply = functools.partial(reply, line)
    names = [f"{line.segment}.{tool}" for line in lines for tool in ("temperature", "other")]
    above = Witness(*names)
    with recorded(above) as url:
        extra = parents((url, "edge")) + f'secret = "{TOKEN}"\n' + ACCESS
        with running_node(tmp_path, {}, extra) as node:
            lines[1].boot()
            for line in lines:
                node.wait_link(line.segment, {"state": "ready"})
            above.may_call.set()
            wait_for(lambda: len(above.answers) == 1 + len(names))
            wait_for(lambda: any("mcpax/heartbeat" in text for text in above.texts))
            assert node.stop() == 0
    for line in lines:
        line.unplug()
    assert spoken == {"board_a": {"beat", "call", "error"}, "board_b": {"boot", "beat", "call", "error"}}
    assert [above.answers[1 + number].get("isError", False) for number in range(4)] == [False, True, False, True]

    above_all = "\n".join(above.texts)  # each was JSON
    assert above.credential == f"Bearer {TOKEN}"
    assert SESSION in above_all
    assert {tool["name"] for tool in above.answers[0]["tools"]} == set(names)
    assert all(tool["inputSchema"]["type"] == "object" for tool in above.answers[0]["tools"])
    for line in lines:
        for carried in (bytes(line.read), bytes(line.written)):
            assert carried
            assert not re.search(rb'[{\[]\s*"\w|"\s*[:,}\]]|jsonrpc|mcp', carried), "JSON"
            assert not re.search(rb"session|ils_|[Bb]earer", carried)
            assert not re.search(rb"[Ss]chema|properties|object|integer|type", carried)
            assert not re.search(rb"edge|board|[a-z0-9_]{2}\.[a-z_]{2}", carried)
