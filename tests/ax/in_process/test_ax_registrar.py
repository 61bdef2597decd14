"""What a registration that is refused half way leaves behind: nothing (MCP-AX 4.2, 13.4)."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.registrant import AuthorityProofs, RegistrantIdentity
from interlock.ax.connection import SubserverConnection
from interlock.ax.endpoint import DialBack
from interlock.ax.ownership import LEASES, Leases, Owners
from interlock.ax.protocol.budget import UNLIMITED
from interlock.ax.protocol.messages import Parent, Register, Registered
from interlock.ax.protocol.registration.authority import Proved
from interlock.ax.protocol.registration.codec import MESSAGE_BYTES_MAX
from interlock.ax.registrar import Registrar
from interlock.config.plan import AccessRule, AxPlan, DegradedPlan, DevicesPlan, McpPlan
from interlock.core.clock import Clock
from interlock.core.store_backends import build_store
from interlock.guard.budgets import Budgets
from interlock.links.connector import ConnectorParts
from interlock.process.packages.package_store import PackageFolders
from interlock.store.ports import Damaged, Store, Unavailable
from interlock.wire.refusal import FORMS, UNAVAILABLE, Refusal

OWN_ID, ELSEWHERE_ID = str(uuid.uuid4()), str(uuid.uuid4())
AUTHORITY = "dns:edge.example.com"
RULE = AccessRule(who=("*",), authority=AUTHORITY)


class _Plan:
    ax = AxPlan()
    degraded = DegradedPlan()
    mcp = McpPlan()
    servers = ()
    access = ()
    devices = DevicesPlan()


class _Quiet:
    """Of the house: nobody listens to what is listed and recorded."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class _Once(AuthorityProofs):
    """Every signature holds."""

    async def judge(self, request: Register) -> Proved | Refusal | None:
        return Proved(authority=AUTHORITY, anchor="plant", jti="j1", expires_at=Clock.wall() + 60)


class _Away(Owners):
    async def keep(self, owner: object) -> None:
        raise Unavailable("the store is away")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    built = build_store("sqlite", tmp_path)
    await built.open()
    yield built
    await built.close()


def _registrar(store: Store, *, leases: Leases | None = None, owners: type[Owners] = Owners) -> Registrar:
    quiet = cast(Any, _Quiet())
    clock = Clock()
    connector_parts = ConnectorParts(
        packages=PackageFolders(own=Path(), store=Path()),
        message_bytes=MESSAGE_BYTES_MAX,
        reaper=None,
        eras=quiet,
        clock=clock,
        revealer=quiet,
    )
    return Registrar(
        plan=cast(Any, _Plan()),
        aggregator_id=OWN_ID,
        clock=clock,
        connector_parts=connector_parts,
        catalog=quiet,
        keepers={},
        audience=quiet,
        link_events=quiet,
        recorder=quiet,
        budgets=Budgets(UNLIMITED, clock),
        refusals=quiet,
        owners=owners(store.kv, clock),
        proofs=_Once(store.kv, clock, Anchors((), clock), audiences=lambda: (OWN_ID,)),
        leases=leases,
    )


class _Pipe:
    def __init__(self) -> None:
        self.happened: list[str] = []

    def send(self, message: bytes) -> bool:
        self.happened.append(f"sent {message.decode()}")
        return True

    def close(self, code: int, reason: str) -> None:
        self.happened.append("closed")


def _connection(registrar: Registrar) -> tuple[SubserverConnection, _Pipe]:
    guest = RegistrantIdentity(principal="local", rule=RULE)
    connection, pipe = SubserverConnection(registrar, guest, transport="websocket", heartbeat_min_ms=100), _Pipe()
    connection.begin(cast(Any, pipe))
    return connection, pipe


def _register(segment: str) -> Register:
    return Register(subserver_id=str(uuid.uuid4()), segment=segment, parent_id=None, authority=AUTHORITY)


async def test_a_proof_is_not_spent_on_a_registration_that_is_refused_anyway(store: Store) -> None:
    registrar = _registrar(store)
    registrar.engine.keep(("taken",))
    connection, _ = _connection(registrar)
    try:
        assert isinstance(await registrar.register(_register("taken"), "a", connection), Refusal)
        assert isinstance(await registrar.register(_register("free"), "a", connection), Registered)
        again = await registrar.register(_register("more"), "b", connection)
        assert isinstance(again, Refusal)
        assert (again.details or {})["reason"] == "replayed"
    finally:
        connection.on_closed(1000, "")
        await registrar.close()


async def test_a_lease_is_given_up_when_the_registration_fails_after_it(store: Store) -> None:
    clock = Clock()
    ours, theirs = (Leases(store.kv, clock, one, "default") for one in (OWN_ID, ELSEWHERE_ID))
    registrar = _registrar(store, leases=ours)
    connection, _ = _connection(registrar)
    await registrar.close()
    request = _register("plant")
    refused = await registrar.register(request, "a", connection)
    connection.on_closed(1000, "")
    assert isinstance(refused, Refusal)
    assert (refused.details or {})["reason"] == "stopping"
    assert await theirs.claim(request, "elsewhere") is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"aggregator_id":1,"session_hash":""}', b"\xff", b"[" * 9999])
async def test_a_lease_that_cannot_be_read_is_named(store: Store, data: bytes) -> None:
    clock, request = Clock(), _register("plant")
    leases = Leases(store.kv, clock, OWN_ID, "default")
    await store.kv.put(LEASES, f"default/{request.subserver_id}", data, clock.wall())
    with pytest.raises(Damaged, match="remove it"):
        await leases.claim(request, "session")


@pytest.mark.req("AX-13.4-5")
async def test_a_former_holder_cannot_remove_a_lease_that_moved_on(store: Store) -> None:
    clock, request = Clock(), _register("plant")
    ours, theirs = (Leases(store.kv, clock, aggregator_id, "default") for aggregator_id in (OWN_ID, ELSEWHERE_ID))
    await ours.give_up(request.subserver_id, "ours")
    assert await ours.claim(request, "ours") is None
    moved = msgspec.structs.replace(request, released_session="ours")
    assert await theirs.claim(moved, "theirs") is None
    await ours.give_up(request.subserver_id, "ours")
    assert isinstance(await ours.claim(request, "again"), Refusal)
    await theirs.give_up(request.subserver_id, "theirs")
    assert await ours.claim(request, "again") is None


class _AskedConnection(SubserverConnection):
    """A connection that counts how often the subserver is asked for its parent."""

    count = 0

    async def ask_parent(self) -> Parent | Refusal | None:
        self.count += 1
        return None


@pytest.mark.req("AX-13.4-4")
@pytest.mark.parametrize(
    ("parent_id", "is_shared", "times"),
    [(msgspec.UNSET, False, 1), (msgspec.UNSET, True, 0), (None, False, 0), (OWN_ID, False, 0)],
    ids=["nothing tells", "a store tells", "it has none", "it names us"],
)
async def test_a_subserver_is_asked_for_its_parent_only_if_nothing_else_tells(
    store: Store, parent_id: Any, is_shared: bool, times: int
) -> None:
    leases = Leases(store.kv, Clock(), OWN_ID, "default") if is_shared else None
    registrar = _registrar(store, leases=leases)
    guest = RegistrantIdentity(principal="local", rule=RULE)
    connection = _AskedConnection(registrar, guest, transport="websocket", heartbeat_min_ms=100)
    connection.begin(cast(Any, _Pipe()))
    try:
        request = msgspec.structs.replace(_register("plant"), parent_id=parent_id)
        assert isinstance(await registrar.register(request, "a", connection), Registered)
        assert connection.count == times
    finally:
        connection.on_closed(1000, "")
        await registrar.close()


async def test_a_registrant_whose_ownership_cannot_be_kept_is_informed_before_its_link_is_closed(store: Store) -> None:
    registrar = _registrar(store, owners=_Away)
    connection, pipe = _connection(registrar)
    params = (
        b'{"subserver_id":"%b","segment":"plant","parent_id":null,"tree":"default","authority":"%b","capabilities":{}}'
    )
    said = params % (str(uuid.uuid4()).encode(), AUTHORITY.encode())
    connection.on_message(b'{"jsonrpc":"2.0","id":1,"method":"mcpax/register","params":%b}' % said)
    registering = connection._registering
    assert registering is not None
    await registering
    connection.on_closed(1000, "")
    try:
        assert pipe.happened[0].startswith("sent ")
        assert f'"code":{FORMS[UNAVAILABLE].number}' in pipe.happened[0]
        assert pipe.happened[1] == "closed"
    finally:
        await registrar.close()
    assert registrar.engine.find("plant") is None


class _SlowPipe:
    closed = False

    async def close(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        self.closed = True


async def test_a_connection_that_the_node_opened_is_closed_when_the_registrar_has_stopped(store: Store) -> None:
    registrar = _registrar(store)
    answer = await registrar.register(
        _register("plant"), "", DialBack(RegistrantIdentity(principal="local", rule=RULE), ())
    )
    assert isinstance(answer, Registered)
    pipe = _SlowPipe()
    registrar.keepers["plant"].link.pipe = cast(Any, pipe)
    await registrar.close()
    assert pipe.closed
