"""Heartbeats on the wire of a node: what counts as their answer, and that they cost no call."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.devices.serial_lines import Line, call, content, listed
from tests.support.node_process import RunningNode, running_node, wait_for

from interlock.devices.protocol.cbor_codec import encoded, read_untrusted
from interlock.devices.protocol.frame_codec import CALL

TOOL = """
[[tool]]
id = 1
name = "read"
mutable = false
reversible = true
response = [{ name = "n", type = "u8" }]
"""
PROFILE_A, PROFILE_B = f'profile = "a"\n{TOOL}', f'profile = "b"\n{TOOL}'
INTERVAL_S = 0.2
QUICK = f"heartbeat_ms = {INTERVAL_S * 1000:.0f}\ntimeout_ms = 150"
WATCHED_S = 12 * INTERVAL_S
REGISTRATION = encoded({1: "r", 3: [{0: 1, 1: [], 2: 5}]})


class Place:
    def __init__(self, node: RunningNode, workspace: Path) -> None:
        self.node = node
        self.workspace = workspace


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("heartbeats")
    with running_node(folder, {}) as node:
        yield Place(node, folder / "workspace")


def assert_served(place: Place, segment: str) -> None:
    """Call the tool all the time, for longer than a silent device is present."""
    place.node.wait_link(segment, {"state": "ready"}, 10.0)
    begun, outcomes = time.monotonic(), []
    while time.monotonic() - begun < WATCHED_S:
        outcomes.append(call(place.node, f"{segment}.read"))
        time.sleep(INTERVAL_S / 8)  # the line is at rest for a moment, so that heartbeats are sent
    assert [outcome for outcome in outcomes if "structuredContent" not in outcome] == []
    assert place.node.link(segment)["device"]["unplugged"] == 0


@pytest.mark.req("AX-8.N-7")
@pytest.mark.parametrize("kind", [0x02, 0x04], ids=["response", "heartbeat"])
@pytest.mark.parametrize("status", [0, 1])
def test_a_stub_that_answers_a_heartbeat_with_its_status_byte_is_served(place: Place, kind: int, status: int) -> None:
    line = Line(place.workspace, f"status_{kind}_{status}", PROFILE_A, QUICK)

    def reply(message: bytes) -> list[bytes]:
        if message[0] == CALL:
            return line.answers(message)
        return [line.framing.encode(bytes((kind, message[1], message[2], status)))]

    try:
        line.reply = reply
        place.node.wait_link(line.segment, {"state": "ready"}, 10.0)
        heartbeats = len(line.heard)
        wait_for(lambda: len(line.heard) >= heartbeats + 8)
        link = place.node.link(line.segment)
        assert (link["state"], link["device"]["unplugged"]) == ("ready", 0)
        assert not link["device"]["discarded"]
        assert "n" in content(place.node, f"{line.segment}.read")
    finally:
        line.unplug()
        line.file.unlink()


@pytest.mark.req("AX-8.N-9")
def test_a_stub_that_leaves_every_second_heartbeat_unanswered_loses_no_call(place: Place) -> None:
    line = Line(place.workspace, "forgetful", PROFILE_A, QUICK)
    heartbeats: list[bytes] = []

    def reply(message: bytes) -> list[bytes]:
        if message[0] == CALL:
            return line.answers(message)
        heartbeats.append(message)
        return line.answers(message) if len(heartbeats) % 2 else []

    try:
        line.reply = reply
        assert_served(place, "forgetful")
        assert len(heartbeats) > 1
        assert len(line.calls()) == place.node.link("forgetful")["calls"]  # none was sent twice
    finally:
        line.unplug()
        line.file.unlink()


@pytest.mark.req("AX-8.N-9")
def test_a_stub_that_answers_heartbeats_with_its_registration_loses_no_call(place: Place) -> None:
    line = Line(place.workspace, "repeating", PROFILE_B, QUICK)
    heartbeats: list[bytes] = []

    def reply(message: bytes) -> list[bytes]:
        members = read_untrusted(message)
        if members[1] == 1:
            return [line.framing.encode(encoded({2: members[2], 4: {0: 7}}))]
        if members[1] == "h":
            heartbeats.append(message)
            time.sleep(0.05)  # so that a call meets it
        return [line.framing.encode(REGISTRATION)]

    try:
        line.reply = reply
        assert_served(place, "repeating")
        assert len(heartbeats) > 2
    finally:
        line.unplug()
        line.file.unlink()


@pytest.mark.req("AX-8.N-8")
@pytest.mark.parametrize("profile", ["a", "b"])
def test_a_stub_that_answers_calls_alone_is_served_if_it_is_assumed_to_be_present(place: Place, profile: str) -> None:
    description = PROFILE_A if profile == "a" else PROFILE_B
    line = Line(place.workspace, f"assumed_{profile}", description, f'presence = "assume"\n{QUICK}')
    method_of = (lambda message: message[0]) if profile == "a" else (lambda message: read_untrusted(message)[1])

    def reply(message: bytes) -> list[bytes]:
        if method_of(message) != 1:
            return []
        if profile == "a":
            return line.answers(message)
        return [line.framing.encode(encoded({2: read_untrusted(message)[2], 4: {0: 7}}))]

    try:
        line.reply = reply
        place.node.wait_link(line.segment, {"state": "ready"}, 10.0)
        assert f"{line.segment}.read" in listed(place.node, line.segment)
        assert_served(place, line.segment)
        assert {method_of(message) for message in line.heard} == {1}
        if profile == "b":
            line.say(encoded({1: "r", 3: [{0: 1, 1: [], 2: 5}, {0: 9, 1: [], 2: 5, 3: "extra"}]}))
            wait_for(lambda: f"{line.segment}.extra" in listed(place.node, line.segment))
    finally:
        line.unplug()
        line.file.unlink()
