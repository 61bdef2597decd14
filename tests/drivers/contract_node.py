"""A node in this process with contracts over real servers: the registry's table written by a test, and providers that
lend the links of configured servers. Everything else is the product's own.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.drivers import driver_texts
from tests.servers.start import raw
from tests.support.node_process import _toml
from tests.support.node_with_clock import SECONDS, AheadClock, ClockedNode

from interlock.config.load import load
from interlock.core.calls.caller import Caller
from interlock.drivers.contracts.contract import ContractTable
from interlock.drivers.driver_state import DriverState
from interlock.drivers.parts import DriverParts
from interlock.drivers.protocol.binding.match import Bound, match
from interlock.drivers.protocol.model import Contract, Driver
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.links.connected_link import ServerLink
from interlock.node.node import Node
from interlock.wire.jsonrpc.codec import encode_value

FEATURES = "driven,recorder,cancellations,prompts,resources,logs,asks"
ANY = {"type": "object"}


def contract(ident: str, **changed: Any) -> Contract:
    whole = {"inputs": ANY, "outputs": ANY, "description": f"What {ident} does."}
    reading = driver_texts.as_contract(driver_texts.contract(**{**whole, "id": ident, **changed}))
    assert reading.value is not None, reading.problems
    return reading.value


def binding(tool: str, tool_name: str, **changed: Any) -> dict[str, Any]:
    metadata = {"mcp": {"tool_name": tool_name, **changed.pop("mcp", {})}, **changed.pop("metadata", {})}
    return driver_texts.binding(tool=tool, metadata=metadata, **changed)


def driver(ident: str, *bindings: dict[str, Any], **changed: Any) -> Driver:
    reading = driver_texts.as_driver(driver_texts.driver(id=ident, implements=list(bindings), **changed))
    assert reading.value is not None, reading.problems
    return reading.value


class LentLink:
    def __init__(self, provider: "LendingProvider", link: ServerLink) -> None:
        self.provider, self.link = provider, link
        provider.lent += 1

    def release(self) -> None:
        assert self.provider is not None, "given back twice"
        self.provider.lent -= 1
        self.provider = None  # type: ignore[assignment]


class ScriptedHealth:
    """The health of a server as a test says it."""

    def __init__(self) -> None:
        self.passed_at: float | None = None
        self.failed_at: float | None = None
        self.illness: str | None = None
        self.looked = 0

    async def check(self) -> str | None:
        self.looked += 1
        return self.illness


class LendingProvider:
    """A provider whose server is a configured one of the node."""

    def __init__(self, node: Node, segment: str, declared: Driver, contracts: Iterable[Contract]) -> None:
        self.driver = declared
        self.state = DriverState.READY
        self.code: str | None = None
        self.login: str | None = None
        self.reason: str | None = None
        self.login: str | None = None
        keeper = node.calls.keepers[segment]
        self.link, self.listing = keeper.link, keeper.listing
        known = {each.id: each for each in contracts}
        self.bindings = {each.tool: each for each in declared.implements}
        self.bound: dict[str, Bound] = {}
        tools = dict(self.listing.tools.items) if self.listing is not None else {}
        for ident, each in self.bindings.items():
            bound = match(declared, each, known[ident], json.loads(encode_value(tools[each.tool_name])))
            assert isinstance(bound, Bound), bound
            self.bound[ident] = bound
        self.contract_ids = frozenset(self.bound)
        self.health = ScriptedHealth()
        self.hooks: Any = None
        self.lent = 0
        self.asleep = False
        self.woken = 0
        self.refusal: DriverRefusal | None = None
        self.unlisted: str | None = None

    def find_ready_lease(self, caller: Caller) -> LentLink | None:
        return None if self.asleep or self.refusal is not None else LentLink(self, self.link)

    async def acquire(self, caller: Caller, timeout_s: float = 30.0) -> LentLink | DriverRefusal:
        self.woken += 1
        await asyncio.sleep(0)
        return self.refusal if self.refusal is not None else LentLink(self, self.link)


class ContractNode(ClockedNode):
    async def offer(self, contracts: Iterable[Contract], *providers: LendingProvider) -> None:
        known = {each.id: each for each in contracts}
        serving = {ident: tuple(one for one in providers if ident in one.bindings) for ident in known}
        await (
            self.node.get(DriverParts)
            .contracts.get()
            .take(ContractTable(contracts=known, providers=serving, drivers=providers))
        )

    async def serve(self, segment: str, made: Contract, tool_name: str, **changed: Any) -> LendingProvider:
        """One contract, one driver."""
        lending = LendingProvider(
            self.node, segment, driver("only-mcp", binding(made.id, tool_name, **changed)), [made]
        )
        await self.offer([made], lending)
        return lending

    async def seen(self, segment: str) -> list[Any]:
        """What the server was asked for by tools/call, as it came."""
        told = (await self.call(f"{segment}__seen").result())["structuredContent"]
        asked = [json.loads(each["text"]) for each in told["messages"]]
        return [each["params"] for each in asked if each.get("method") == "tools/call"]

    async def rows(self, after: int = 0) -> list[Any]:
        """The audit log."""
        await self.node.stores.recorder.flush()
        return [json.loads(one.data) for one in await self.node.stores.audit.read(after, 1000)]


@contextlib.asynccontextmanager
async def contract_node(folder: Path, servers: Mapping[str, Any], extra: str = "") -> AsyncIterator[ContractNode]:
    """`servers`: segment -> its era, or its table."""
    config = folder / "interlock.toml"
    tables = ""
    for segment, said in servers.items():
        table = {"command": raw(FEATURES, "--era", said)} if isinstance(said, str) else said
        tables += f"[servers.{segment}]\n{_toml(table)}\n"
    config.write_text(f"{extra or OPEN}\n{tables}")
    plan = load(config, os.environ, {"data": str(folder / "data")}).plan
    clock = AheadClock()
    node = Node(plan, lambda operations, authenticate: None, clock, listen=False)
    await node.open()
    try:
        await node.readiness.settle(SECONDS)
        yield ContractNode(node, clock)
    finally:
        await node.close()


OPEN = '[gate]\nmode = "open"\n'
