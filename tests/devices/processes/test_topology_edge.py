"""Topology C.2: a cloud node over an edge node over a PLC, a BLE sensor array and a UART actuator, as processes.

With a root above the cloud, and a server of each, it is also the topology that 3.1 draws.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import pytest
from tests.ax.tree import ACCESS, ax_url, parents, wait_parent
from tests.devices.device_ends import TOOLS, BleEnd, CheckedPtyEnd, Hosts, Uplink, environment
from tests.gate.held_calls import ADA, Client, anchor, proof
from tests.servers.start import raw
from tests.support.node_process import KNOWS_AX, RunningNode, running_node, wait_for

PLC = """
profile = "modbus"
[link]
transport = "modbus_tcp"
host = "127.0.0.1"
tcp_port = {port}
unit = 2
heartbeat_ms = 500
timeout_ms = 500
[[tool]]
id = 1
name = "read_temperature"
mutable = false
reversible = true
registers = [{{ table = "input", address = 10, field = {{ name = "celsius", type = "f32", unit = "C" }} }}]
[[tool]]
id = 2
name = "set_level"
mutable = true
reversible = true
registers = [
  {{ table = "holding", address = 20, write = true, field = {{ name = "level", type = "i16", scale = 0.1 }} }},
  {{ table = "holding", address = 20, field = {{ name = "set", type = "i16", scale = 0.1 }} }},
]
[[tool]]
id = 3
name = "drain"
mutable = true
reversible = false
registers = [{{ table = "coil", address = 3, write = true, field = {{ name = "open", type = "bool" }} }}]
[[tool]]
id = 4
name = "read_busy"
mutable = false
reversible = true
registers = [{{ table = "holding", address = 40, field = {{ name = "v", type = "u16" }} }}]
[[tool]]
id = 5
name = "read_drain"
mutable = false
reversible = true
registers = [{{ table = "coil", address = 3, field = {{ name = "open", type = "bool" }} }}]
"""
PRESS = 'name = "press"\nmutable = true\nreversible = false'
REALTIME = 'latency_class = "realtime"\n'
ACTUATOR = TOOLS.replace('name = "press"\nmutable = true\nreversible = true', PRESS).replace(REALTIME, "")
GATED = '[gate]\nmode = "gated"\n'
SERVER = {"command": raw("all", "--era", "legacy")}
OPEN = '[gate]\nmode = "open"\n'


class Site:
    def __init__(
        self, root: RunningNode, cloud: RunningNode, edge: RunningNode, uplink: Uplink, actuator: CheckedPtyEnd
    ) -> None:
        self.root, self.cloud, self.edge, self.uplink, self.actuator = root, cloud, edge, uplink, actuator


@contextlib.contextmanager
def plc_port() -> Iterator[int]:
    """Of a PLC that is a process of its own."""
    command = [sys.executable, str(Path(__file__).parents[1] / "plc.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield int(process.stdout.readline())
        process.stdin.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("topology")
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(Hosts())
        array, actuator = BleEnd("array", hosts.run), CheckedPtyEnd("actuator", folder)
        stack.callback(array.stop)
        stack.callback(actuator.stop)
        actuator.tools = ACTUATOR
        workspace = folder / "edge" / "workspace"
        array.describe(workspace)
        actuator.describe(workspace)
        port = stack.enter_context(plc_port())
        (workspace / ".devices" / "plc.toml").write_text(PLC.format(port=port))
        root = stack.enter_context(running_node(folder / "root", {"local": SERVER}, ACCESS))
        more = parents((ax_url(root), "cloud")) + ACCESS + GATED + anchor("ada", ADA, "*")
        cloud = stack.enter_context(running_node(folder / "cloud", {"server": SERVER}, more))
        uplink = Uplink(hosts, cloud.host, cloud.port)
        stack.callback(uplink.cut)
        more = parents((f"ws://127.0.0.1:{uplink.port}/ax", "edge")) + ACCESS + OPEN
        edge = stack.enter_context(running_node(folder / "edge", {}, more, environment(array)))
        for segment in ("plc", "array", "actuator"):
            edge.wait_link(segment, {"state": "ready"})
        wait_parent(edge, {"state": "registered"})
        wait_for(lambda: set(_listed(cloud)) >= {"edge.plc.drain", "edge.array.read", "edge.actuator.press"})
        yield Site(root, cloud, edge, uplink, actuator)


def _listed(node: RunningNode) -> dict[str, dict[str, Any]]:
    with Client(node, capabilities=KNOWS_AX) as client:
        return {tool["name"]: tool["_meta"] for tool in client.ask("tools/list", {})["result"]["tools"]}


@pytest.mark.req("AX-C.2-1", "AX-1.1-6")
def test_all_tools_are_listed_at_the_cloud_with_transport_and_hops(site: Site) -> None:
    listed = _listed(site.cloud)
    transports = {
        "edge.plc.read_temperature": "native",
        "edge.array.read": "ble_cbor",
        "edge.actuator.read": "uart_cbor",
    }
    for name, transport in transports.items():
        assert (listed[name]["x-mcpax-capability"]["transport"], listed[name]["x-mcpax-hops"]) == (transport, 2)
        assert {"latency_class", "mutable", "reversible"} <= listed[name]["x-mcpax-capability"].keys()
    assert listed["edge.actuator.press"]["x-mcpax-safety"] == "irreversible_mutable"


@pytest.mark.req("AX-3.1-6")
def test_the_drawn_tree_is_listed_at_its_root_with_hops_and_called_there(site: Site) -> None:
    wait_for(lambda: "cloud.edge.actuator.read" in _listed(site.root) and "cloud.server.echo" in _listed(site.root))
    listed = _listed(site.root)
    drawn = {
        "cloud.server.echo": ("native", 2),
        "cloud.edge.actuator.read": ("uart_cbor", 3),
        "cloud.edge.array.read": ("ble_cbor", 3),
        "local.echo": ("native", 1),
    }
    with Client(site.root) as client:
        for name, transport_and_hops in drawn.items():
            said = listed[name]
            assert (said["x-mcpax-capability"]["transport"], said["x-mcpax-hops"]) == transport_and_hops
            arguments = {"n": 7} if name.endswith("echo") else {}
            assert client.call(name, arguments)["structuredContent"] == (arguments or {"celsius": 21})


@pytest.mark.req("AX-C.2-1")
def test_reads_succeed_and_the_loss_of_the_uplink_degrades_all_until_it_is_back(site: Site) -> None:
    reads = {
        "edge.plc.read_temperature": {"celsius": 21.5},
        "edge.array.read": {"celsius": 21},
        "edge.actuator.read": {"celsius": 21},
    }
    with Client(site.cloud) as client:
        for name, content in reads.items():
            assert client.call(name)["structuredContent"] == content
        site.uplink.cut()
        site.cloud.wait_link("edge", {"state": "degraded"}, 5.0)
        listed = _listed(site.cloud)
        for name in reads:
            assert listed[name]["x-mcpax-capability"]["availability"] == "degraded"
            assert client.refused(name)["message"] == "tool_degraded"
        site.uplink.mend()
        site.cloud.wait_link("edge", {"state": "ready"}, 20.0)
        for name, content in reads.items():
            assert wait_for(lambda name=name: _result(client, name))["structuredContent"] == content
    listed = _listed(site.cloud)
    assert not [name for name in reads if listed[name]["x-mcpax-capability"].get("availability") == "degraded"]


def _result(client: Client, name: str) -> Any:
    return client.ask("tools/call", {"name": name, "arguments": {}}).get("result")


@pytest.mark.req("AX-C.2-2")
def test_an_irreversible_call_waits_at_the_cloud_for_an_operator_and_is_sent_once(site: Site) -> None:
    actuator = site.actuator
    with Client(site.cloud) as client, Client(site.edge) as below:
        assert client.call("edge.actuator.read")["structuredContent"] == {"celsius": 21}
        assert "isError" not in client.call("edge.actuator.set_level", {"level": 3})
        actuator.heard.clear()
        demand = client.held("edge.actuator.press")
        assert actuator.heard == []
        assert client.confirm(demand, "x.y.z")["error"]["code"] == 32123
        assert actuator.heard == []
        assert client.confirm(demand, proof(demand))["result"]["structuredContent"] == {}
        assert [cbor2.loads(message)[1] for message in actuator.heard] == [3]
        assert "error" in client.confirm(demand, proof(demand))
        assert len(actuator.heard) == 1
        below.call("actuator.press")  # the edge's own policy is open
        assert len(actuator.heard) == 2


@pytest.mark.req("AX-8.N-5")
def test_a_plc_is_read_written_with_its_gate_and_its_exceptions_have_names(site: Site) -> None:
    with Client(site.cloud) as client:
        assert client.call("edge.plc.set_level", {"level": -12.5})["structuredContent"] == {"set": -12.5}
        refused = client.call("edge.plc.set_level", {"level": 12.55})
        assert refused["_meta"]["x-mcpax-device"]["fault"] == "argument_invalid"
        busy = client.call("edge.plc.read_busy")
        assert busy["isError"] is True
        assert "status 6 (server_device_busy)" in busy["content"][0]["text"]
        demand = client.held("edge.plc.drain", {"open": True})
        assert client.call("edge.plc.read_drain")["structuredContent"] == {"open": False}
        assert "result" in client.confirm(demand, proof(demand))
        assert client.call("edge.plc.read_drain")["structuredContent"] == {"open": True}
