"""The real stubs on emulated chips, two aggregators deep, called by an ordinary MCP client at the top."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.tree import ACCESS, ax_url, parents, wait_parent
from tests.devices.cables import Cable
from tests.devices.emulated_chips import EMULATORS, Monitor, built, emulator, need, program_of
from tests.gate.held_calls import ADA, Client, anchor, proof
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.reserved_ports import reserve_port

from interlock.devices.protocol.cbor_codec import read_untrusted
from interlock.devices.protocol.framing import CobsFraming, Framing, SofFraming
from mcp import Client as SdkClient

need("avr-gcc", "arm-none-eabi-gcc", "qemu-system-avr", "qemu-system-arm")
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

BOARD = """
profile = "a"
[link]
transport = "uart_cbor"
port = "{port}"
timeout_ms = 200
heartbeat_ms = 1000
[[tool]]
id = 1
name = "read_sensor"
mutable = false
reversible = true
response = [{{ name = "centigrade", type = "u32", scale = 0.01 }}]
req_len = 0
resp_len = 4
[[tool]]
id = 2
name = "set_led"
mutable = true
reversible = true
idempotent = true
request = [{{ name = "on", type = "bool" }}]
[[tool]]
id = 4
name = "fail"
mutable = true
reversible = true
request = [{{ name = "status", type = "u8" }}]
status = {{ "7" = "jammed" }}
[[tool]]
id = 5
name = "press"
mutable = true
reversible = false
"""
BIT = """
profile = "b"
[link]
transport = "uart_cbor"
port = "{port}"
crc = "crc16"
max_frame = 96
timeout_ms = 3000
heartbeat_ms = 5000
[[tool]]
id = 1
name = "status"
mutable = false
reversible = true
[[tool]]
id = 2
name = "set_led"
mutable = true
reversible = true
request = [{{ name = "level", type = "u16" }}]
[[tool]]
id = 6
name = "work"
mutable = true
reversible = true
request = [{{ name = "ms", type = "u16" }}]
"""
SMALL_B = BIT[: BIT.index("[[tool]]\nid = 6")].replace('crc = "crc16"\n', "")
Calls = list[tuple[str, dict[str, Any], dict[str, Any]]]
CALLS_A: Calls = [
    ("read_sensor", {}, {"centigrade": 21.5}),
    ("set_led", {"on": True}, {}),
    ("read_sensor", {}, {"centigrade": 22}),
]
CALLS_B: Calls = [
    ("status", {}, {"centigrade": 21}),
    ("set_led", {"level": 1}, {"led": 1}),
    ("status", {}, {"centigrade": 22}),
]
GATED = '[gate]\nmode = "gated"\n'


class Site:
    def __init__(
        self, folder: Path, cloud: RunningNode, edge: RunningNode, board: Cable, bit: Cable, monitor: Monitor
    ) -> None:
        self.folder = folder
        self.cloud, self.edge, self.board, self.bit, self.monitor = cloud, edge, board, bit, monitor

    def calls_of_board(self) -> list[bytes]:
        return [message for message in self.board.heard if message[0] == 1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("chips")
    devices = folder / "edge" / "workspace" / ".devices"
    devices.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        avr, arm = reserve_port(), reserve_port()
        stack.enter_context(emulator("avr", built("avr") / "avr_a.elf", avr, folder))
        monitor = stack.enter_context(emulator("arm", built("arm") / "arm_b_crc16.elf", arm, folder))
        board = Cable(avr, SofFraming(max_message=256, gap_s=60.0))
        bit = Cable(arm, CobsFraming(max_message=96, crc="crc16"))
        stack.callback(board.close)
        stack.callback(bit.close)
        (devices / "board.toml").write_text(BOARD.format(port=board.address))
        (devices / "bit.toml").write_text(BIT.format(port=bit.address))
        cloud = stack.enter_context(running_node(folder / "cloud", {}, ACCESS + GATED + anchor("ada", ADA, "*")))
        more = parents((ax_url(cloud), "edge")) + ACCESS
        edge = stack.enter_context(running_node(folder / "edge", {}, more))
        for segment in ("board", "bit"):
            edge.wait_link(segment, {"state": "ready"})
        wait_parent(edge, {"state": "registered"})
        names = {"edge__board__press", "edge__bit__work"}  # an ordinary client is shown no dots
        wait_for(lambda: names <= set(asyncio.run(_listed(cloud))))
        yield Site(folder, cloud, edge, board, bit, monitor)


async def _listed(node: RunningNode) -> list[str]:
    async with SdkClient(f"{node.url}/mcp") as client:
        return [tool.name for tool in (await client.list_tools()).tools]


@pytest.mark.req("AX-B.1-7", "AX-8.3-1")
async def test_a_client_reads_and_moves_chips_that_know_numbers_alone(site: Site) -> None:
    async with SdkClient(f"{site.cloud.url}/mcp") as client:

        async def content(name: str, **arguments: Any) -> Any:
            result = await client.call_tool(f"edge__{name}", arguments)
            assert not result.is_error, result
            return result.structured_content

        assert await content("board__read_sensor") == {"centigrade": 21.5}
        assert await content("board__set_led", on=True) == {}
        assert await content("board__read_sensor") == {"centigrade": 22}
        assert await content("bit__status") == {"centigrade": 21}
        assert await content("bit__set_led", level=300) == {"led": 1}
        assert await content("bit__status") == {"centigrade": 22}
        jammed = await client.call_tool("edge__board__fail", {"status": 7})
        assert jammed.is_error
        assert "jammed" in jammed.content[0].text
        assert (await client.call_tool("edge__bit__set_led", {"level": -1})).is_error


@pytest.mark.req("AX-1.1-4")
@pytest.mark.parametrize(
    ("kind", "stub", "description", "framing", "calls"),
    [
        ("avr", "b_reference", SMALL_B, CobsFraming(max_message=96), CALLS_B),
        ("mcs51", "a", BOARD, SofFraming(max_message=256, gap_s=60.0), CALLS_A),
        ("mcs51", "b_reference", SMALL_B.replace("= 96", "= 64"), CobsFraming(max_message=64), CALLS_B),
    ],
    ids=["ATmega328P, Profile B", "8051, Profile A", "8051, Profile B"],
)
async def test_small_chips_plugged_into_the_running_tree_are_called_at_the_root(
    site: Site, kind: str, stub: str, description: str, framing: Framing, calls: Calls
) -> None:
    """One at a time, beside the others: each emulator takes a core."""
    need(EMULATORS[kind][0])
    port = reserve_port()
    described = site.folder / "edge" / "workspace" / ".devices" / "small.toml"
    names = {f"edge__small__{name}" for name, _, _ in calls}
    with contextlib.ExitStack() as stack:
        stack.enter_context(emulator(kind, program_of(kind, stub), port, site.folder))
        cable = Cable(port, framing)
        stack.callback(cable.close)
        described.write_text(description.format(port=cable.address))
        stack.callback(described.unlink)
        await asyncio.to_thread(site.edge.wait_link, "small", {"state": "ready"})
        await asyncio.to_thread(wait_for, lambda: names <= set(asyncio.run(_listed(site.cloud))))
        async with SdkClient(f"{site.cloud.url}/mcp") as client:
            for name, arguments, content in calls:
                assert (await client.call_tool(f"edge__small__{name}", arguments)).structured_content == content
            assert (await client.call_tool("edge__board__set_led", {"on": False})).structured_content == {}
            beside = await client.call_tool("edge__board__read_sensor", {})
            assert beside.structured_content == {"centigrade": 21.5}
    await asyncio.to_thread(wait_for, lambda: not names & set(asyncio.run(_listed(site.cloud))))


def test_an_irreversible_call_reaches_the_chip_once_and_only_with_a_proof(site: Site) -> None:
    with Client(site.cloud) as client:
        site.board.heard.clear()
        demand = client.held("edge.board.press")
        assert client.confirm(demand, "x.y.z")["error"]["code"] == 32123
        assert site.calls_of_board() == []
        assert client.confirm(demand, proof(demand))["result"]["structuredContent"] == {}
        assert [message[1] for message in site.calls_of_board()] == [5]
        assert "error" in client.confirm(demand, proof(demand))
        assert len(site.calls_of_board()) == 1


def test_noise_costs_time_and_never_a_wrong_value(site: Site) -> None:
    with Client(site.cloud) as client:
        client.call("edge.board.set_led", {"on": False})
        site.board.noise = 0.03
        right = 0
        try:
            for _ in range(25):
                answer = client.ask("tools/call", {"name": "edge.board.read_sensor", "arguments": {}})
                said = answer.get("result", {}).get("structuredContent")
                assert said in (None, {"centigrade": 21.5}), answer
                right += said is not None
        finally:
            site.board.noise = 0.0
        assert site.board.changed > 2
        assert right > 15
        assert sum(site.edge.link("board")["device"]["discarded"].values()) > 0
    site.edge.wait_link("board", {"state": "ready"})


@pytest.mark.req("AX-B.3-3")
def test_a_reset_in_the_middle_of_a_call_leaves_its_outcome_unknown_and_the_chip_back(site: Site) -> None:
    with Client(site.cloud) as client:
        client.call("edge.bit.set_led", {"level": 1})
        site.bit.heard.clear()
        answers: list[Any] = []

        def work() -> None:
            with Client(site.cloud) as another:
                answers.append(another.ask("tools/call", {"name": "edge.bit.work", "arguments": {"ms": 2000}}))

        caller = threading.Thread(target=work)
        caller.start()
        wait_for(lambda: any(read_untrusted(message).get(1) == 6 for message in site.bit.heard))
        site.monitor.reset()
        caller.join(timeout=20)
        assert answers[0]["error"]["data"]["outcome"] == "unknown", answers
        site.edge.wait_link("bit", {"state": "ready"})
        assert [read_untrusted(message)[1] for message in site.bit.heard].count(6) == 1  # never sent again
        status = wait_for(
            lambda: client.ask("tools/call", {"name": "edge.bit.status", "arguments": {}}).get("result"), 10.0
        )
        assert status["structuredContent"] == {"centigrade": 21}  # the lamp is off: it was a real reset


def test_a_cable_pulled_out_within_a_frame_degrades_the_device_until_it_is_back(site: Site) -> None:
    with Client(site.cloud) as client:
        site.board.pull_after = 5  # of the eleven bytes of the answer
        answer = client.ask("tools/call", {"name": "edge.board.read_sensor", "arguments": {}})
        assert "structuredContent" not in str(answer), answer
        site.edge.wait_link("board", {"state": "degraded"})
        assert client.refused("edge.board.read_sensor")["message"] == "tool_degraded"
        assert client.call("edge.bit.status")["structuredContent"]  # the other is unharmed
        site.board.plug()
        site.edge.wait_link("board", {"state": "ready"}, 20.0)
        back = wait_for(
            lambda: client.ask("tools/call", {"name": "edge.board.read_sensor", "arguments": {}}).get("result"), 10.0
        )
        assert back["structuredContent"] == {"centigrade": 21.5}
