"""Devices that their gateway registers one by one at its parent, and speaks and beats for while they are there."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.blocking_client import hearing, told
from tests.ax.tree import ACCESS, ax_url, parents, wait_parent
from tests.devices.processes.test_profile_a import LOST, TOOLS
from tests.devices.serial_lines import Line, call, content, listed
from tests.support.node_process import KNOWS_AX, RunningNode, running_node, wait_for

QUICK = "heartbeat_ms = 200\ntimeout_ms = 300"
ON_BEHALF = '[devices]\nmode = "on_behalf"\n'


class Tree:
    def __init__(self, cloud: RunningNode, edge: RunningNode, line: Line) -> None:
        self.cloud, self.edge, self.line = cloud, edge, line


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder: Path = tmp_path_factory.mktemp("on_behalf")
    line = Line(folder / "edge" / "workspace", "vent", TOOLS, QUICK)
    with running_node(folder / "cloud", {}, ACCESS) as cloud:
        extra = parents((ax_url(cloud), "edge")) + ACCESS + ON_BEHALF
        with running_node(folder / "edge", {}, extra) as edge:
            wait_parent(edge, {"state": "registered"})
            cloud.wait_link("vent", {"state": "ready"})
            yield Tree(cloud, edge, line)
    line.unplug()


def registration(tree: Tree) -> Any:
    return tree.cloud.link("vent")["registration"]


@pytest.mark.req("AX-B.4-4")
def test_a_device_is_registered_with_the_credential_and_authority_of_its_gateway(tree: Tree) -> None:
    tools = listed(tree.cloud, "vent")
    assert set(tools) == {"vent.read_sensor", "vent.set_led"}
    assert tools["vent.read_sensor"]["_meta"]["x-mcpax-capability"]["transport"] == "uart_cbor"
    assert not listed(tree.cloud, "edge")
    known = registration(tree)
    assert known["authority"] == "dns:all.example"
    assert known["principal"] == tree.cloud.link("edge")["registration"]["principal"]
    assert known["transport_class"] == "uart_cbor"
    assert b"example" not in bytes(tree.line.read)


def test_a_call_of_the_parent_reaches_the_line(tree: Tree) -> None:
    assert "celsius" in content(tree.cloud, "vent.read_sensor")
    result = call(tree.cloud, "vent.set_led", {"level": 101})
    assert result["isError"] is True
    assert "/level" in result["content"][0]["text"]


@pytest.mark.req("AX-13.1-1", "AX-B.4-5")
async def test_each_loss_of_a_device_is_reported_once_by_the_parent_where_it_is_registered(tree: Tree) -> None:
    async with hearing(tree.cloud, KNOWS_AX) as heard:
        for _ in range(3):  # one that is gone has nobody left who would register it
            tree.line.unplug()
            try:
                lost = (await told(heard, LOST))["params"]
                assert (lost["segment"], lost["reason"]) == ("vent", "connection_lost")
            finally:
                tree.line.plug()
            await asyncio.to_thread(tree.cloud.wait_link, "vent", {"state": "ready"}, 10.0)
            assert LOST not in [heard.get_nowait()["method"] for _ in range(heard.qsize())]


@pytest.mark.req("AX-B.4-5")
def test_the_parent_loses_the_device_and_not_its_gateway(tree: Tree) -> None:
    before = tree.edge.link("vent")["device"]["unplugged"]
    tree.line.unplug()
    tree.cloud.wait_link("vent", {"state": "degraded"}, 5.0)
    assert tree.cloud.link("edge")["state"] == "ready"
    assert call(tree.cloud, "vent.read_sensor")["data"]["mcpax_code"] == -32002
    tree.line.plug()
    tree.cloud.wait_link("vent", {"state": "ready"}, 10.0)
    wait_for(lambda: "structuredContent" in call(tree.cloud, "vent.read_sensor"))
    busy = tree.line.answers

    def slow(message: bytes) -> list[bytes]:
        import time

        if message[0] == 1:
            time.sleep(0.9)  # longer than three intervals
        return busy(message)

    tree.line.reply = slow
    try:
        assert "celsius" in content(tree.cloud, "vent.read_sensor")
    finally:
        tree.line.reply = busy
    assert tree.cloud.link("vent")["state"] == "ready"
    assert tree.edge.link("vent")["device"]["unplugged"] == before + 1
