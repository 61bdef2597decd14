"""What is on the line between a node and its devices, byte for byte, and what of it counts."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cobs import cobs
from tests.devices.serial_lines import Line, call, content, listed
from tests.gate.held_calls import Client
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.peers import HttpPeer

from interlock.devices.protocol.cbor_codec import encoded, read_untrusted

ECHO = """
[[tool]]
id = 1
name = "echo"
mutable = false
reversible = true
request = [{ name = "n", type = "u32" }]
response = [{ name = "n", type = "u32" }]
"""
NARROW = """
[[tool]]
id = 1
name = "read"
mutable = false
reversible = true
output_schema = { type = "object", properties = { celsius = { type = "integer", maximum = 50 } } }
"""
EVENT = """
[[event]]
id = 9
name = "pressed"
response = [{ name = "button", type = "u8" }]
"""
QUICK = "heartbeat_ms = 1000\ntimeout_ms = 150"
NATIVE = """
import json, sys
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 4294967295}},
          "additionalProperties": False, "required": ["n"]}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "native", "version": "1"}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": "echo", "inputSchema": SCHEMA, "outputSchema": SCHEMA}]}
    elif asked["method"] == "tools/call":
        said = asked["params"]["arguments"]
        text = json.dumps(said, separators=(",", ":"))
        result = {"content": [{"type": "text", "text": text}], "structuredContent": said}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


class Place:
    def __init__(self, node: RunningNode, lines: dict[str, Line]) -> None:
        self.node = node
        self.lines = lines

    def discarded(self, segment: str) -> dict[str, int]:
        found: dict[str, int] = self.node.link(segment)["device"]["discarded"]
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder: Path = tmp_path_factory.mktemp("device_wire")
    workspace = folder / "workspace"
    lines = {
        "frames": Line(workspace, "frames", f'profile = "a"\n{ECHO}{EVENT}', QUICK),
        "cobs": Line(workspace, "cobs", f'profile = "b"\n{ECHO}', QUICK),
        "checked": Line(workspace, "checked", f'profile = "b"\n{ECHO}', f'crc = "crc16"\n{QUICK}'),
        "values": Line(workspace, "values", 'profile = "b"\n', f"allow_values = true\n{QUICK}"),
    }
    lines["still_a"] = Line(workspace, "still_a", f'profile = "a"\n{ECHO}', 'presence = "assume"')
    lines["still_b"] = Line(workspace, "still_b", f'profile = "b"\n{ECHO}', "heartbeat_ms = 60000")
    lines["narrow"] = Line(workspace, "narrow", f'profile = "b"\n{NARROW}', QUICK)
    lines["values"].reply = lambda message: [lines["values"].framing.encode(one) for one in speak_values(message)]
    native = workspace / "native.py"
    native.write_text(NATIVE)
    with running_node(folder, {"native": {"command": [sys.executable, str(native)]}}) as node:
        for segment in (*lines, "native"):
            node.wait_link(segment, {"state": "ready"})
        yield Place(node, lines)
    for line in lines.values():
        line.unplug()


def speak_values(message: bytes) -> list[bytes]:
    """A device whose tool returns a number."""
    members = read_untrusted(message)
    if members.get(1) == "r":
        return [encoded({1: "r", 3: [{0: 4, 1: [], 2: 0}]})]
    return [encoded({2: members[2], 4: {} if members.get(1) == "h" else 17})]


@pytest.mark.req("AX-B.4-1")
def test_a_tool_gives_the_same_behind_both_profiles_and_a_native_server(place: Place) -> None:
    for n in (0, 255, 65536, 4294967295):
        results = [call(place.node, f"{segment}.echo", {"n": n}) for segment in ("frames", "cobs", "checked", "native")]
        assert results[0]["structuredContent"] == {"n": n}
        assert results[1:] == results[:1] * 3


@pytest.mark.req("AX-2-2")
def test_a_native_server_and_a_device_are_served_side_by_side_and_distinguished_by_their_transport(
    place: Place,
) -> None:
    for segment, transport in (("native", "native"), ("frames", "uart_cbor"), ("cobs", "uart_cbor")):
        said = listed(place.node, segment)[f"{segment}.echo"]["_meta"]["x-mcpax-capability"]
        assert said["transport"] == transport
        assert content(place.node, f"{segment}.echo", {"n": 3}) == {"n": 3}


@pytest.mark.req("AX-2-4")
@pytest.mark.parametrize("segment", ["still_a", "still_b"])
def test_an_unknown_tool_is_answered_without_a_byte_on_the_line(place: Place, segment: str) -> None:
    line, uri, name = place.lines[segment], f"mcpax://{segment}/file:///x", f"{segment}.echo"
    completed = {"argument": {"name": "n", "value": "1"}}
    line.read.clear()
    line.heard.clear()
    for era in ("modern", "legacy"):
        with Client(place.node, era) as client:
            for method, member in (
                ("resources/list", "resources"),
                ("resources/templates/list", "resourceTemplates"),
                ("prompts/list", "prompts"),
            ):
                assert client.ask(method, {})["result"][member] == []
            for method, params, code in (
                ("resources/read", {"uri": uri}, -32601),
                ("resources/subscribe", {"uri": uri}, -32601),
                ("prompts/get", {"name": name}, -32602),
                ("completion/complete", {"ref": {"type": "ref/prompt", "name": name}, **completed}, -32602),
                ("completion/complete", {"ref": {"type": "ref/resource", "uri": uri}, **completed}, -32602),
            ):
                assert client.ask(method, params)["error"]["code"] == code, method
            level = client.ask("logging/setLevel", {"level": "debug"})  # 2026-07-28 has none
            assert level.get("result") == {} if era == "legacy" else level["error"]["code"] == -32601
    assert content(place.node, name, {"n": 5}) == {"n": 5}
    (called,) = line.heard  # what came before it on the line would have been heard before it
    assert line.read == line.framing.encode(called)


@pytest.mark.req("AX-8.1-2")
def test_a_line_of_cbor_is_cobs_with_one_item_and_anything_else_is_dropped(place: Place) -> None:
    line, node = place.lines["cobs"], place.node
    line.read.clear()
    assert content(node, "cobs.echo", {"n": 7}) == {"n": 7}
    frames = bytes(line.read).split(b"\0")
    assert frames.pop() == b""
    assert all(isinstance(read_untrusted(cobs.decode(frame)), dict) for frame in frames)
    good = encoded({2: 250, 4: {0: 1}})
    wrong = {
        "a wrong code byte": b"\x09\x01\x02\0",
        "nothing": b"\0\0",
        "more than 256 bytes": cobs.encode(encoded({2: 250, 4: {0: "x" * 300}})) + b"\0",
        "trailing bytes": cobs.encode(good + b"\0\0") + b"\0",
    }
    for data in wrong.values():
        before = sum(place.discarded("cobs").values())
        line.write(data)
        wait_for(lambda before=before: sum(place.discarded("cobs").values()) > before)
        assert content(node, "cobs.echo", {"n": 8}) == {"n": 8}
    checked = place.lines["checked"]
    before = sum(place.discarded("checked").values())
    checked.write(cobs.encode(good + b"\x12\x34") + b"\0")
    wait_for(lambda: sum(place.discarded("checked").values()) > before)
    assert node.link("cobs")["device"]["unplugged"] == node.link("checked")["device"]["unplugged"] == 0

    spoiled = iter((True, False, True))
    line.reply = lambda message: [b"\x09\x01\0"] if next(spoiled, False) else line.answers(message)
    assert content(node, "cobs.echo", {"n": 9}) == {"n": 9}  # a read is asked for again
    line.reply = line.answers


@pytest.mark.req("AX-B.2-3")
def test_payloads_are_maps_and_other_results_are_wrapped_only_where_that_is_allowed(place: Place) -> None:
    line = place.lines["cobs"]
    for wrong in (encoded([1, 2]), encoded(5), encoded("text")):
        before = place.discarded("cobs").get("malformed", 0)
        line.say(wrong)
        wait_for(lambda before=before: place.discarded("cobs").get("malformed", 0) > before)
    before = place.discarded("cobs").get("unexpected", 0)
    line.say(encoded({1: "r", 3: [{0: 4, 1: [], 2: 0}]}))
    wait_for(lambda: place.discarded("cobs").get("unexpected", 0) > before)
    assert set(listed(place.node, "cobs")) == {"cobs.echo"}
    assert content(place.node, "cobs.echo", {"n": 1}) == {"n": 1}
    assert content(place.node, "values.tool_4") == {"value": 17}


def test_a_result_outside_the_configured_schema_is_not_shown(place: Place) -> None:
    line = place.lines["narrow"]

    def hot(message: bytes) -> list[bytes]:
        members = read_untrusted(message)
        if isinstance(members.get(1), int):
            return [line.framing.encode(encoded({2: members[2], 4: {"celsius": value}}))]
        return line.answers(message)

    line.reply = hot
    value = 50
    assert content(place.node, "narrow.read") == {"celsius": 50}
    value = 51
    result = call(place.node, "narrow.read")
    assert result["isError"] is True
    assert result["_meta"]["x-mcpax-device"] == {"fault": "response_invalid", "path": "/celsius"}
    assert "51" not in str(result)


@pytest.mark.req("AX-8.2-2")
def test_the_line_holds_numbers_and_a_reboot_with_others_is_followed(place: Place) -> None:
    line = place.lines["values"]
    assert content(place.node, "values.tool_4") == {"value": 17}
    number = 5

    def renumbered(message: bytes) -> list[bytes]:
        members = read_untrusted(message)
        answers = [encoded({1: "r", 3: [{0: number, 1: [], 2: 0}]})] if members.get(1) == "r" else speak_values(message)
        return [line.framing.encode(one) for one in answers]

    line.reply = renumbered
    line.say(encoded({1: "r", 3: [{0: number, 1: [], 2: 0}]}))
    wait_for(lambda: set(listed(place.node, "values")) == {"values.tool_5"})
    line.heard.clear()
    assert content(place.node, "values.tool_5") == {"value": 17}
    (sent,) = [message for message in map(read_untrusted, line.heard) if isinstance(message.get(1), int)]
    assert sent[1] == 5
    before = place.discarded("values").get("malformed", 0)
    for wrong in ([{0: 5, 1: [], 2: 0}, {0: 5, 1: [], 2: 0}], [{0: 256, 1: [], 2: 0}]):
        line.say(encoded({1: "r", 3: wrong}))
    wait_for(lambda: place.discarded("values").get("malformed", 0) == before + 2)
    assert set(listed(place.node, "values")) == {"values.tool_5"}
    assert not any(word in line.read for word in (b"values", b"tool_"))


@pytest.mark.req("AX-B.1-5")
async def test_each_type_has_its_direction_and_events_reach_clients(place: Place) -> None:
    line, node = place.lines["frames"], place.node
    before = place.discarded("frames").get("unexpected", 0)
    line.say(b"\x03\x00\x00", b"\x01\x01\x05", b"\x07\x01\x05", b"\x02\x08\x00\x01")  # the last: an unknown event
    wait_for(lambda: place.discarded("frames").get("unexpected", 0) == before + 4)
    beats = [message for message in line.heard if message[0] == 4]
    assert beats
    assert all(message[1] == 0 and len(message) == 3 and message[2] > 0 for message in beats)
    async with await HttpPeer.legacy(f"{node.url}/mcp") as peer:
        await peer.listen()
        await peer.request("logging/setLevel", {"level": "info"})
        line.say(b"\x02\x09\x00\x03")
        heard: Any = await peer.hear("notifications/message")
    assert heard["params"]["logger"] == "frames"
    assert heard["params"]["data"] == {"event": "pressed", "button": 3}
