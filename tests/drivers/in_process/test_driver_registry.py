"""Which drivers run, and does a change to one disturb another?"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.drivers.driver_workspace import MACHINE, Workspace, binding, contract, driver

from interlock.config.plan import DriversPlan, Plan
from interlock.core.calls.caller import Caller
from interlock.core.clock import Clock
from interlock.core.store_backends import build_store
from interlock.drivers.contracts.contract import ContractTable
from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.model import ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.drivers.registry.registry import Registry
from interlock.drivers.workspace.declaration import Declared, Memory, Trusted
from interlock.links.listing import Listing
from interlock.store.ports import KeyValue, Unavailable


class Fake:
    """A provider whose server is always there; `calls` keeps it from ending."""

    def __init__(self, declared: Declared, on_changed: Callable[[Any], None]) -> None:
        assert declared.driver is not None
        self.declared = declared
        self.driver = declared.driver
        self.state = DriverState.READY
        self.reason: str | None = None
        self.unlisted: str | None = None
        self.bindings: Mapping[str, ToolBinding] = {}
        self.bound: Mapping[str, Any] = {}
        self.listing: Listing | None = None
        self.problems: tuple[FileProblem, ...] = ()
        self.on_changed = on_changed
        self.contract_ids = frozenset(one.id for one in declared.contracts.values())
        self.started = 0
        self.calls = asyncio.Event()
        self.calls.set()
        self.ended = asyncio.Event()
        self.settled = asyncio.Event()
        self.settled.set()

    def succeed(self, other: Any) -> None:
        self.contract_ids = other.contract_ids

    def find_ready_lease(self, caller: Caller) -> None:
        return None

    async def acquire(self, caller: Caller, timeout_s: float = 30.0) -> DriverRefusal:
        raise AssertionError("nobody calls here")

    def start(self) -> None:
        self.started += 1

    async def stop(self, *, at_once: bool = False) -> None:
        if not at_once:
            await self.calls.wait()
        self.ended.set()


class House:
    def __init__(self, workspace: Workspace, kv: KeyValue) -> None:
        self.workspace = workspace
        self.memory = Memory(kv, Clock())
        self.made: list[Fake] = []
        self.tables: list[ContractTable] = []
        self.told = asyncio.Event()
        self.registry = Registry(workspace.plan, self.memory, MACHINE, factory=self._make, contracts=self)

    def _make(self, declared: Declared, on_changed: Callable[[Any], None]) -> Fake:
        self.made.append(Fake(declared, on_changed))
        return self.made[-1]

    async def take(self, table: ContractTable) -> None:
        self.tables.append(table)
        self.told.set()

    async def trust(self) -> None:
        """Everything, as it is now."""
        for one in self.registry.declaration.drivers:
            await self.memory.trust(
                Trusted(
                    folder=str(one.folder),
                    key=one.key,
                    digest=one.digest,
                    files=one.covered,
                    texts={},
                    tags=(),
                    by="test",
                    at=0.0,
                )
            )
        await self.registry.refresh()

    def provider(self, key: str) -> Fake:
        found = self.registry.providers[key]
        assert isinstance(found, Fake)
        return found

    def states(self) -> dict[str, DriverState]:
        return {one.key: DriverState(self.registry.state_of(one)[0]) for one in self.registry.declaration.drivers}


@pytest.fixture
async def kv(tmp_path: Path) -> AsyncIterator[KeyValue]:
    store = build_store("sqlite", tmp_path / "data")
    await store.open()
    yield store.kv
    await store.close()


@pytest.fixture
async def house(tmp_path: Path, kv: KeyValue) -> AsyncIterator[House]:
    made = House(Workspace(tmp_path), kv)
    await made.memory.open()
    yield made
    await made.registry.close()


@pytest.mark.req("AIP-security-13")
async def test_nothing_is_made_of_a_folder_that_nobody_accepted(house: House) -> None:
    folder = house.workspace.driver(driver())
    await house.registry.refresh()
    assert house.states() == {"files-mcp@1": DriverState.UNTRUSTED}
    assert house.made == []
    await house.trust()
    assert house.states() == {"files-mcp@1": DriverState.READY}
    assert [one.started for one in house.made] == [1]
    (folder / "driver.py").write_text("import os\n")
    await house.registry.refresh()
    assert house.states() == {"files-mcp@1": DriverState.UNTRUSTED}
    await asyncio.wait_for(house.made[0].ended.wait(), 5)
    assert len(house.made) == 1
    assert house.tables[-1].contracts == {}


@pytest.mark.req("AIP-security-13")
async def test_trust_outlives_the_node_and_what_cannot_be_read_of_it_grants_nothing(house: House, kv: KeyValue) -> None:
    house.workspace.driver(driver())
    await house.registry.refresh()
    await house.trust()
    again = House(house.workspace, kv)
    await again.memory.open()
    await again.registry.refresh()
    assert again.states() == {"files-mcp@1": DriverState.READY}
    await again.registry.close()
    for entry in await kv.entries("driver-trust", 0):
        await kv.put("driver-trust", entry.key, b"\xff{", 0)
    spoilt = House(house.workspace, kv)
    await spoilt.memory.open()
    await spoilt.registry.refresh()
    assert spoilt.states() == {"files-mcp@1": DriverState.UNTRUSTED}
    assert spoilt.made == []


@pytest.mark.req("AIP-30.front-5")
async def test_a_driver_for_another_machine_is_not_made_even_when_it_is_trusted(house: House) -> None:
    house.workspace.driver(driver(requires={"os": ["windows"]}))
    await house.registry.refresh()
    await house.trust()
    assert house.states() == {"files-mcp@1": DriverState.UNAVAILABLE}
    assert house.made == []
    house.workspace.driver(driver(requires={"os": ["linux"]}))
    await house.registry.refresh()
    await house.trust()
    assert [one.started for one in house.made] == [1]


async def test_a_change_to_one_driver_disturbs_no_other(house: House) -> None:
    first = house.workspace.driver(driver("first-mcp"))
    house.workspace.driver(driver("second-mcp"))
    await house.registry.refresh()
    await house.trust()
    kept = house.provider("second-mcp@1")
    table = house.tables[-1]
    assert [each.driver.id for each in table.providers["fs-read"]] == ["first-mcp", "second-mcp"]
    house.workspace.driver(driver("first-mcp", description="Another."))
    await house.registry.refresh()
    await house.trust()
    assert house.provider("second-mcp@1") is kept
    assert (kept.started, kept.ended.is_set()) == (1, False)
    (first / "DRIVER.md").write_bytes(b"broken")
    await house.registry.refresh()
    assert house.provider("second-mcp@1") is kept
    assert list(house.registry.providers) == ["second-mcp@1"]
    assert [each.driver.id for each in house.tables[-1].providers["fs-read"]] == ["second-mcp"]


@pytest.mark.req("AIP-30.identity-1")
async def test_a_newer_version_takes_calls_at_once_and_the_older_ends_with_its_own(house: House) -> None:
    house.workspace.driver(driver(version="1.1.0"))
    await house.registry.refresh()
    await house.trust()
    older = house.provider("files-mcp@1")
    older.calls.clear()
    house.workspace.driver(driver(version="1.2.0"))
    await house.registry.refresh()
    await house.trust()
    newer = house.provider("files-mcp@1")
    assert (newer is older, newer.driver.version, newer.started) == (False, "1.2.0", 1)
    assert not older.ended.is_set()
    assert house.tables[-1].providers["fs-read"] == (newer,)
    older.calls.set()
    await asyncio.wait_for(older.ended.wait(), 5)


@pytest.mark.req("AIP-30.identity-1")
async def test_two_majors_serve_side_by_side(house: House) -> None:
    house.workspace.driver(driver(version="1.2.0"), folder="one")
    house.workspace.driver(driver(version="2.0.0"), folder="two")
    await house.registry.refresh()
    await house.trust()
    assert [each.driver.key for each in house.tables[-1].providers["fs-read"]] == ["files-mcp@1", "files-mcp@2"]


@pytest.mark.req("AIP-identity-4")
async def test_registered_manifests_survive_restarts_and_removals(house: House, kv: KeyValue) -> None:
    folder = house.workspace.driver(driver())
    await house.registry.refresh()
    await house.trust()
    (folder / "DRIVER.md").unlink()
    await house.registry.refresh()
    assert house.registry.declaration.drivers == ()
    again = House(house.workspace, kv)
    await again.memory.open()
    again.workspace.driver(driver(version="1.1.0", protocol_version="2025-06-18"))
    await again.registry.refresh()
    await again.trust()
    assert again.states() == {"files-mcp@1": DriverState.REJECTED}
    assert await again.memory.forget("files-mcp@1")
    await again.registry.refresh()
    assert again.states() == {"files-mcp@1": DriverState.READY}
    await again.registry.close()


async def test_only_settings_that_matter_to_a_driver_rebuild_it(house: House, tmp_path: Path) -> None:
    house.workspace.driver(driver("first-mcp"))
    house.workspace.driver(driver("second-mcp"))
    await house.registry.refresh()
    await house.trust()
    first, second = house.provider("first-mcp@1"), house.provider("second-mcp@1")

    async def with_(**settings: Any) -> None:
        plan = house.workspace.plan
        drivers = DriversPlan(own=plan.drivers.own, **settings)
        house.registry.replan(Plan(workspace=plan.workspace, data=plan.data, drivers=drivers))
        await house.registry.refresh()

    await with_(region="EU", pins={"fs-read": "first-mcp"})
    assert (house.provider("first-mcp@1"), house.provider("second-mcp@1")) == (first, second)
    await with_(sandbox={"first-mcp": "off"})
    assert house.provider("first-mcp@1") is not first
    assert house.provider("second-mcp@1") is second
    await with_(idle_timeout_s=7)
    assert house.provider("second-mcp@1") is not second


async def test_a_provider_that_offers_something_else_is_reported_once_for_several_changes(house: House) -> None:
    house.workspace.driver(driver())
    await house.registry.refresh()
    await house.trust()
    provider = house.provider("files-mcp@1")
    count = len(house.tables)
    provider.contract_ids = frozenset()
    for _ in range(5):
        provider.on_changed(provider)
    house.told.clear()
    await asyncio.wait_for(house.told.wait(), 5)
    assert house.tables[-1].contracts == {}
    assert house.tables[-1].drivers == (provider,)
    assert len(house.tables) == count + 1


async def test_a_look_that_shows_nothing_new_tells_nobody(house: House) -> None:
    house.workspace.driver(driver())
    await house.registry.refresh()
    await house.trust()
    count = len(house.tables)
    await house.registry.refresh()
    assert len(house.tables) == count


async def test_a_contract_that_changes_below_tools_asks_its_drivers_again_and_no_others(house: House) -> None:
    house.workspace.write(".tools/shared/TOOL.md", contract("shared"))
    house.workspace.driver(driver("first-mcp", implements=[binding("shared")]))
    house.workspace.driver(driver("second-mcp"))
    await house.registry.refresh()
    await house.trust()
    house.workspace.write(".tools/shared/TOOL.md", contract("shared", description="Another."))
    await house.registry.refresh()
    assert house.states() == {"first-mcp@1": DriverState.UNTRUSTED, "second-mcp@1": DriverState.READY}


async def test_a_view_during_a_refresh_shows_the_drivers_that_are_already_declared(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.workspace.driver(driver("first-mcp"))
    house.workspace.driver(driver("second-mcp"))
    await house.registry.refresh()
    let_go = asyncio.Event()
    take = house.take

    async def held(table: ContractTable) -> None:
        house.told.set()
        await let_go.wait()
        await take(table)

    monkeypatch.setattr(house, "take", held)
    house.told.clear()
    trusting = asyncio.create_task(house.trust())
    await asyncio.wait_for(house.told.wait(), 5)
    known = await asyncio.wait_for(house.registry.current(), 5)
    assert [one.trusted for one in known.drivers] == [True, True]
    let_go.set()
    await asyncio.wait_for(trusting, 5)


async def test_a_driver_that_cannot_be_kept_on_record_is_not_started(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.workspace.driver(driver())
    await house.registry.refresh()

    async def full(driver: object) -> None:
        raise Unavailable("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(house.memory, "register", full)
        with pytest.raises(Unavailable, match="disk full"):
            await house.trust()
        assert house.made == []
    await house.registry.refresh()
    assert [one.started for one in house.made] == [1]
