"""Are the flows that ARCHITECTURE.md draws the ones that calls take?

Each flow is run once in a node in this process, and every module that is entered on the way is noted in the order of
its first entry. The drawing names the modules that hand the message on, in this order. Behind `also:` it names the
packages of all other modules that were entered. Both must be exact. Not drawn are the packages that every flow uses and
that decide nothing: pure ones, `core`, `store`, `net` and `process`.

    python tests/test_flows.py        print the modules of each flow, for a new drawing
"""

import asyncio
import contextlib
import contextvars
import inspect
import json
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import UNSET

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.approvals.inboxes import ManualClock  # noqa: E402
from tests.aql.aql_node import TOOLS, aql_node  # noqa: E402
from tests.gate.held_calls import ADA, anchor  # noqa: E402
from tests.rooms.in_process.test_room_tracker import AGENT, HUMAN, garden_at  # noqa: E402
from tests.servers.minting import mint  # noqa: E402
from tests.servers.start import raw, serving  # noqa: E402
from tests.support.frozen_node import advance_time, frozen_node, in_frozen_time, tool  # noqa: E402

from interlock.approvals.decisions import DecisionService  # noqa: E402
from interlock.approvals.inbox import Inbox  # noqa: E402
from interlock.approvals.protocol.approval import Status  # noqa: E402
from interlock.config.load import load  # noqa: E402
from interlock.core.clock import Clock  # noqa: E402
from interlock.drivers.api import AddDriver, TryServer  # noqa: E402
from interlock.gate.confirm import Confirmations  # noqa: E402
from interlock.guard.guard import Guard  # noqa: E402
from interlock.links.connected_link import ConnectedLink  # noqa: E402
from interlock.node.node import Node  # noqa: E402
from interlock.rooms.connections import Admission, ParticipantConnection  # noqa: E402
from interlock.wire.jsonrpc import codec  # noqa: E402

SHARED = re.compile(r"interlock\.(?:wire|mcp|core|store|net|process|crypto)\b|interlock\.\w+\.protocol\b")
SOURCES = ROOT / "src" / "interlock"
PAGE = ROOT / "ARCHITECTURE.md"
HAND_OVERS_MAX = 7  # between modules, from a client's message to the inbox or to the link
MODULE = re.compile(r"\b[a-z_]+(?:/[a-z_]+)+\.py\b")


OF_THE_FLOW = contextvars.ContextVar("OF_THE_FLOW", default=False)  # what a flow schedules inherits it


class Trace:
    """The modules of the program that a flow enters, in the order of their first entry. Other tasks do not count."""

    def __init__(self) -> None:
        self.modules: list[str] = []

    def on_event(self, frame: types.FrameType, event: str, argument: object) -> None:
        name, code = frame.f_globals.get("__name__", ""), frame.f_code
        if event != "call" or not name.startswith("interlock.") or SHARED.match(name) or not OF_THE_FLOW.get():
            return
        # The body of a module or class runs when it is imported, which says nothing about the flow.
        if not code.co_flags & inspect.CO_OPTIMIZED or not Path(code.co_filename).is_relative_to(SOURCES):
            return
        module = Path(code.co_filename).relative_to(SOURCES).as_posix()
        if module not in self.modules:
            self.modules.append(module)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        token = OF_THE_FLOW.set(True)
        sys.setprofile(self.on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            OF_THE_FLOW.reset(token)


class HandOvers(Trace):
    """A trace that also counts, for each message of a client, what the way of a held call costs."""

    ENDS = (
        Guard._find_verdict,
        Inbox.raise_,
        Confirmations.find_held_call,
        DecisionService.approve,
        ConnectedLink.send,
    )

    def __init__(self) -> None:
        super().__init__()
        self.guard_passes: list[int] = []
        self.pairs: list[set[tuple[str, str]]] = []  # the modules that hand the call on, and those that they call

    def active(self) -> contextlib.AbstractContextManager[None]:
        self.guard_passes.append(0)
        self.pairs.append(set())
        return super().active()

    def on_event(self, frame: types.FrameType, event: str, argument: object) -> None:
        super().on_event(frame, event, argument)
        if event != "call" or not OF_THE_FLOW.get() or frame.f_code not in {end.__code__ for end in self.ENDS}:
            return
        self.guard_passes[-1] += frame.f_code is Guard._find_verdict.__code__
        callee, caller = "", frame
        while caller is not None:
            module = caller.f_globals.get("__name__", "")
            if module.startswith("interlock.") and not SHARED.match(module):
                if callee and module != callee:
                    self.pairs[-1].add((module, callee))
                callee = module
            caller = caller.f_back


class Encodings(Trace):
    """A trace that also notes with which functions the node encodes messages of JSON-RPC."""

    def __init__(self) -> None:
        super().__init__()
        self.encoders: set[str] = set()

    def on_event(self, frame: types.FrameType, event: str, argument: object) -> None:
        super().on_event(frame, event, argument)
        if event == "call" and OF_THE_FLOW.get() and frame.f_globals.get("__name__") == codec.__name__:
            self.encoders |= {frame.f_code.co_name} & {"encode_call", "encode_request", "encode_result"}


@in_frozen_time
async def plain_call(folder: Path, trace: Trace) -> None:
    """A client on stdio calls a tool of a subserver."""
    async with frozen_node(folder, '[gate]\nmode = "open"\n') as here:
        await here.leaf("docs", tools=TOOLS, heartbeat_interval_ms=0).joined()
        client = here.client()
        await client.call("docs.list_users")
        with trace.active():
            reply = await client.call("docs.list_users")
    assert "result" in reply


@in_frozen_time
async def aql_operation(folder: Path, trace: Trace) -> None:
    """A client sends an operation to an endpoint of MCP-AQL."""
    async with aql_node(folder) as here:
        await here.leaf()
        client = here.modern()
        await client.do("docs__list_users")
        with trace.active():
            reply = await client.do("docs__list_users")
    assert reply["success"]


@in_frozen_time
async def held_call(folder: Path, trace: Trace) -> None:
    """A client calls a tool that cannot be undone, and confirms the call with a proof."""
    config = anchor("key", ADA, "*")
    async with frozen_node(folder, config) as here:
        erase = tool("erase", annotations={"destructiveHint": True})
        leaf = await here.leaf("docs", tools=[erase], heartbeat_interval_ms=0).joined()
        client = here.client()
        await client.tools()
        with trace.active():
            waiting = client.begin("tools/call", {"name": "docs.erase", "arguments": {}})
            await here.until(waiting.done)
        demand = json.loads(json.dumps(waiting.result()))["result"]["_meta"]["x-mcpax-confirmation"]
        now = here.node.stores.clock.wall()
        claims = {"iss": ADA.kid, "aud": demand["aggregator_id"], "jti": "1", "iat": now, "exp": now + 60}
        claims |= {name: demand[name] for name in ("confirmation_id", "call_digest")}
        params = {"confirmation_id": demand["confirmation_id"], "proof": mint(ADA, claims, typ="mcpax-confirm+jwt")}
        with trace.active():
            released = client.begin("mcpax/confirm", params)
            await here.until(released.done)
        assert "result" in released.result(), released.result()
        assert [each["params"]["name"] for each in leaf.heard if each.get("method") == "tools/call"] == ["erase"]


class Pipe:
    """The WebSocket of a participant, of which only what it is sent counts."""

    unsent_bytes = 0

    def send(self, data: bytes) -> bool:
        return True

    def close(self, code: int, reason: str) -> None: ...


async def room_proposal(folder: Path, trace: Trace) -> None:
    """A restricted participant proposes a call, and a full one carries it out."""
    async with garden_at(folder, ManualClock()) as garden:
        agent = ParticipantConnection(Admission(garden.room, AGENT, "room:agent", "token", 0), garden.clock)
        human = ParticipantConnection(Admission(garden.room, HUMAN, "room:human", "token", 0), garden.clock)
        for connection in (agent, human):
            connection.begin(Pipe())
        await asyncio.sleep(0)
        payload = {"method": "tools/call", "params": {"name": "water"}}
        proposal = {"protocol": "mcpx/v0.1", "id": "p", "kind": "mcp/proposal", "payload": payload, "to": ["robot"]}
        call = {**proposal, "id": "c", "kind": "mcp", "payload": {**payload, "jsonrpc": "2.0", "id": 1}}
        with trace.active():
            agent.on_message(json.dumps(proposal).encode())
            await garden.approval("p")
            human.on_message(json.dumps({**call, "correlation_id": "p"}).encode())
            await garden.approval("p", Status.USED)


DEVICE = ROOT / "examples" / "tree" / ".devices" / "vent.toml"


@in_frozen_time
async def device_call(folder: Path, trace: Trace) -> None:
    """A client calls a command of a device that the node simulates."""
    (folder / ".devices").mkdir()
    (folder / ".devices" / "vent.toml").write_text(DEVICE.read_text(encoding="utf-8"))
    async with frozen_node(folder, '[gate]\nmode = "open"\n') as here:
        client = here.client()
        while here.state("vent") != "ready":
            await advance_time(0.05)
        waiting = client.begin("tools/call", {"name": "vent.read_air", "arguments": {}})
        while not waiting.done():
            await advance_time(0.001)
        with trace.active():
            waiting = client.begin("tools/call", {"name": "vent.read_air", "arguments": {}})
            while not waiting.done():
                await advance_time(0.001)
    assert "result" in waiting.result(), waiting.result()


async def add(folder: Path, trace: Trace) -> None:
    """An operator adds a server that is reached at an address."""
    config = folder / "interlock.toml"
    config.write_text("")
    node = Node(load(config, {}, {"data": str(folder / "data")}).plan, lambda *_: None, Clock(), listen=False)
    await node.open()
    try:
        with serving(raw("all")) as url, trace.active():
            adding = node.operations.adding
            events = [event async for event in await adding.try_out(TryServer(reference=url, id="docs-mcp"), "local")]
            assert events[-1].trial is not UNSET
            await adding.add(AddDriver(trial=events[-1].trial.id, accept=True), "local")
    finally:
        await node.close()
    assert (folder / ".drivers").is_dir()


FLOWS: dict[str, Callable[[Path, Trace], Any]] = {
    "Plain call": plain_call,
    "Held call": held_call,
    "AQL operation": aql_operation,
    "Room proposal": room_proposal,
    "Device call": device_call,
    "Add": add,
}


def traced(flow: Callable[[Path, Trace], Any], folder: Path) -> list[str]:
    trace = Trace()
    traced_by(trace, flow, folder)
    return trace.modules


def traced_by(trace: Trace, flow: Callable[[Path, Trace], Any], folder: Path) -> None:
    run = flow(folder, trace)
    if asyncio.iscoroutine(run):
        asyncio.run(run)


class Drawing(NamedTuple):
    """A flow as the page draws it: the modules in their order, and the packages that are asked on the way."""

    steps: list[str]
    packages: set[str]


def drawings(page: str) -> dict[str, Drawing]:
    """Read the drawings: a heading, a sentence, and a block in which each line names a module."""
    drawn = {}
    for section in page.split("\n### ")[1:]:
        title, _, rest = section.partition("\n")
        steps, _, also = rest.split("```")[1].partition("also:")
        drawn[title] = Drawing(MODULE.findall(steps), set(also.split()))
    return drawn


def packages_beside(steps: list[str], modules: list[str]) -> set[str]:
    """Return the packages of the modules that are no steps."""
    return {module.partition("/")[0] for module in modules if module not in steps}


def differences(drawing: Drawing, modules: list[str]) -> list[str]:
    """Return what the drawing says and the run does not, and the reverse."""
    steps, packages = drawing
    entered = packages_beside(steps, modules)
    lines = [f"{module} is drawn, but was not entered" for module in steps if module not in modules]
    lines += [f"{package} is drawn behind `also:`, but was not entered" for package in sorted(packages - entered)]
    lines += [f"{package} was entered, but is not behind `also:`" for package in sorted(entered - packages)]
    order = [module for module in modules if module in steps]
    if not lines and order != steps:
        lines.append(f"the order is {' '.join(order)}")
    return lines


def test_the_page_draws_every_flow() -> None:
    assert list(drawings(PAGE.read_text(encoding="utf-8"))) == list(FLOWS)


@pytest.mark.parametrize("title", FLOWS)
def test_a_flow_is_what_the_page_draws(title: str, tmp_path: Path) -> None:
    drawing = drawings(PAGE.read_text(encoding="utf-8"))[title]
    assert differences(drawing, traced(FLOWS[title], tmp_path)) == [], "python tests/test_flows.py prints the modules"


def test_a_held_call_goes_one_way_with_seven_hand_overs_and_two_guard_passes(tmp_path: Path) -> None:
    trace = HandOvers()
    traced_by(trace, held_call, tmp_path)
    for pairs in trace.pairs:  # of the call, and of its proof
        assert 0 < len(pairs) <= HAND_OVERS_MAX, sorted(pairs)
        assert not [pair for pair in pairs if pair[::-1] in pairs], "a module hands the call back"
    assert trace.guard_passes == [1, 2]


@pytest.mark.parametrize(
    ("flow", "encoders"), [(plain_call, {"encode_call", "encode_result"}), (device_call, {"encode_result"})]
)
def test_the_call_of_a_device_is_not_encoded_as_json_rpc(
    flow: Callable[[Path, Trace], Any], encoders: set[str], tmp_path: Path
) -> None:
    trace = Encodings()
    traced_by(trace, flow, tmp_path)
    assert trace.encoders == encoders  # the result is encoded once, for the client


def test_a_wrong_drawing_is_found() -> None:
    page = "\n### A call\nIt is sent.\n```\n   a/b.py  one\n ▼ c/d.py  two\nalso: c e\n```\n"
    drawing = drawings(page)["A call"]
    assert drawing == Drawing(["a/b.py", "c/d.py"], {"c", "e"})
    entered = ["a/b.py", "e/f.py", "c/d.py", "c/x.py"]
    assert differences(drawing, entered) == []
    assert differences(drawing, entered[::-1]) == ["the order is c/d.py a/b.py"]
    assert differences(drawing, entered[1:]) == ["a/b.py is drawn, but was not entered"]
    assert differences(drawing, ["a/b.py", "c/d.py", "c/x.py"]) == ["e is drawn behind `also:`, but was not entered"]
    assert differences(drawing, [*entered, "g/h.py"]) == ["g was entered, but is not behind `also:`"]


if __name__ == "__main__":
    for title, flow in FLOWS.items():
        with tempfile.TemporaryDirectory() as folder:
            print(title, *traced(flow, Path(folder)), sep="\n    ")
