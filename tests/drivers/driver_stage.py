"""A node in this process that gives drivers what they need, and drivers in front of real servers that write down what
they are told."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.drivers.driver_texts import as_contract, as_driver, as_secrets, binding, contract, driver

from interlock.config.load import load
from interlock.core.calls.caller import Caller, Principal, ViewKey
from interlock.core.clock import Clock
from interlock.drivers.install.installation import Installed, InstallFailed, Locked
from interlock.drivers.protocol.files.inventory import secret_for
from interlock.drivers.protocol.model import Auth, Contract, Driver
from interlock.drivers.provider.keeper import DriverEnvironment, InstanceLease
from interlock.drivers.provider.provider import DriverProvider
from interlock.drivers.provider.vault import Vault
from interlock.drivers.workspace.declaration import Declared
from interlock.drivers.workspace.scan import Root
from interlock.mcp.methods import Era
from interlock.mcp.modern_requests import modern_head
from interlock.node.node import Node

SERVER = Path(__file__).parents[1] / "servers" / "driven.py"
SECONDS = 20.0
OBJECT = {"type": "object"}


def caller(name: str = "ada") -> Caller:
    return Caller(Principal(f"client:{name}"), Era.LEGACY, "http", ViewKey())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(check: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Until `check()` is true; gives what it gave."""
    async with asyncio.timeout(seconds):
        while True:
            if got := check():
                return got
            await asyncio.sleep(0.01)


class AheadClock(Clock):
    """The time it is, and some more."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:  # type: ignore[override]
        return Clock.now() + self.ahead

    def wall(self) -> float:  # type: ignore[override]
        return Clock.wall() + self.ahead


class Log:
    """What the servers wrote down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def lines(self) -> list[dict[str, Any]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    @property
    def starts(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if "argv" in line]

    @property
    def pids(self) -> list[int]:
        return [line["pid"] for line in self.starts]

    @property
    def methods(self) -> list[str]:
        return [line["got"]["method"] for line in self.lines if "method" in line.get("got", {})]

    def params(self, method: str) -> list[Any]:
        return [line["got"].get("params") for line in self.lines if line.get("got", {}).get("method") == method]


class DriverStage:
    def __init__(self, folder: Path, node: Node) -> None:
        self.folder = folder
        self.node = node
        self.log = Log(folder / "driven.log")
        self.providers: list[DriverProvider] = []
        self.installs = 0
        self.failing: InstallFailed | None = None
        self.installed: Installed | None = None  # instead of the recording server
        self.environment = DriverEnvironment(
            plan=node.stores.current.plan.drivers,
            data=node.stores.current.plan.data,
            connector_parts=node.links.connector_parts,
            link_events=node.calls.link_events,
            keepers=node.calls.keepers,
            kv=node.stores.store.kv,
            install=self._install,
            holder_for=node.links.credentials.holder,
            vault=Vault(
                store=node.links.credentials.secrets,
                clock=node.stores.clock,
                record=node.stores.recorder.add_line,
                workspace="here",
                environment=os.environ,
                private=(),
            ),
        )

    async def _install(self, driver: Driver, folder: Path, say: Any) -> Installed | InstallFailed:
        self.installs += 1
        command = (sys.executable, str(SERVER), "--log", str(self.log.path))
        return (
            self.failing
            or self.installed
            or Installed(command=command, version="1", lock=Locked(asked="", method="present"))
        )

    def provider(
        self,
        *args: str,
        tools: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        contracts: Mapping[str, Mapping[str, Any]] | None = None,
        plan: Mapping[str, Any] | None = None,
        started: bool = True,
        secrets: Sequence[Mapping[str, Any]] = (),
        seal: Any = None,
        **changed: Any,
    ) -> DriverProvider:
        """A driver of the recording server. `tools`: the server's tool -> the contract's id. `contracts`: what differs
        in them. `metadata`: of interlock. `plan`: of [drivers]. `secrets`: entries of its own SECRETS.md."""
        tools = tools or {"echo": "echoes"}
        bindings = [binding(tool=named, metadata={"mcp": {"tool_name": name}}) for name, named in tools.items()]
        whole = driver(
            id=changed.pop("id", "driven-mcp"),
            server=changed.pop("server", {"kind": "binary", "path": str(SERVER), "args": list(args)}),
            implements=bindings,
            metadata={"interlock": dict(metadata or {})},
            **changed,
        )
        reading = as_driver(whole)
        assert reading.value is not None, reading.problems
        made: dict[int, Contract] = {}
        for each in reading.value.implements:
            said = contract(id=each.tool, inputs=OBJECT, outputs=OBJECT, **(contracts or {}).get(each.tool, {}))
            read = as_contract(said)
            assert read.value is not None, read.problems
            made[each.index] = read.value
        settings = {"sandbox": {reading.value.id: "off"}, **(plan or {})}
        plan_of_drivers = msgspec.structs.replace(self.environment.plan, **settings)
        environment = msgspec.structs.replace(self.environment, plan=plan_of_drivers)
        inventory = as_secrets(*secrets).value if secrets else None
        named = {name: secret_for(name, reading.value.id, inventory, ()) for name in reading.value.secret_names}
        # Its auth.ref grants a driver the secrets of its own SECRETS.md.
        auth = msgspec.structs.replace(reading.value.auth or Auth(), ref="./SECRETS.md") if inventory else None
        declared = Declared(
            key=reading.value.key,
            root=Root(kind="workspace", rank=0, path=self.folder),
            folder=self.folder,
            state=None,
            driver=msgspec.structs.replace(reading.value, auth=auth or reading.value.auth),
            contracts=made,
            secrets={name: entry for name, entry in named.items() if entry is not None},
            own_secrets=inventory,
            digest="d",
        )
        provider = DriverProvider(declared, environment, seal=seal)
        self.providers.append(provider)
        if started:
            provider.start()
        return provider

    def tools(self, *tools: Mapping[str, Any]) -> tuple[str, str]:
        """What --tools is to be given; written anew, the server lists other tools."""
        path = self.folder / "tools.json"
        path.write_text(json.dumps([{"inputSchema": OBJECT, "outputSchema": OBJECT, **tool} for tool in tools]))
        return "--tools", str(path)

    async def close(self) -> None:
        await asyncio.gather(*(provider.stop() for provider in self.providers))


async def wait_until_settled(provider: DriverProvider) -> DriverProvider:
    async with asyncio.timeout(SECONDS):
        await provider.settled.wait()
    return provider


async def lend_link(provider: DriverProvider, who: str = "ada", timeout_s: float = SECONDS) -> InstanceLease:
    lease = await provider.acquire(caller(who), timeout_s)
    assert isinstance(lease, InstanceLease), lease
    return lease


async def call_tool(lease: InstanceLease, name: str = "echo", **arguments: Any) -> dict[str, Any]:
    """A tools/call on the lent link, as plain as can be."""
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    if lease.link.modern:
        params["_meta"] = meta
    head = modern_head("tools/call") + b"mcp-name: %b\r\n" % name.encode() if lease.link.modern else b""
    inquiry = lease.link.ask("tools/call", params, head)
    async with asyncio.timeout(SECONDS):
        reply = await inquiry.future
    result: dict[str, Any] = json.loads(bytes(reply.result))["structuredContent"]  # type: ignore[union-attr]
    return result


@contextlib.asynccontextmanager
async def driver_stage(folder: Path, clock: Clock | None = None) -> AsyncIterator[DriverStage]:
    config = folder / "interlock.toml"
    config.write_text("")
    plan = load(config, os.environ, {"data": str(folder / "data")}).plan
    node = Node(plan, lambda *_: None, clock, listen=False)
    await node.open()
    stage = DriverStage(folder, node)
    try:
        yield stage
    finally:
        await stage.close()
        await node.close()
