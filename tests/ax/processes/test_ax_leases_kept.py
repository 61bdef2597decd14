"""Two aggregators and one store: a subserver belongs to one of them (MCP-AX 13.4)."""

import asyncio
import uuid
from pathlib import Path

import msgspec
import pytest
from tests.store.nats_server import NatsServer

from interlock.ax.ownership import Leases, Owners
from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.messages import Register
from interlock.ax.protocol.registration.registrations import Peer, Session
from interlock.core.store_backends import BACKENDS, build_store
from interlock.store.ports import Unavailable
from interlock.wire.refusal import Refusal

A, B = str(uuid.uuid4()), str(uuid.uuid4())


class Hands:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


def _register(subserver_id: str, released: str | None = None) -> Register:
    return Register(subserver_id=subserver_id, segment="plant", released_session=released)


def _session(session_id: str, subserver_id: str) -> Session:
    return Session(
        session_id=session_id,
        register=_register(subserver_id),
        peer=Peer(principal="local"),
        auth_scope=AuthScope.READ,
        registered_at=0.0,
    )


@pytest.mark.req("AX-13.4-3")
@pytest.mark.parametrize("backend", BACKENDS)
async def test_of_two_replicas_at_once_exactly_one_gets_the_lease_a_thousand_times(
    tmp_path: Path, backend: str
) -> None:
    server = NatsServer(tmp_path / "nats") if BACKENDS[backend].is_shared else None
    if server is not None:
        server.start()
    place = server.place("tree") if server is not None else None
    store, other = build_store(backend, tmp_path, place), build_store(backend, tmp_path, place)
    await store.open()
    await other.open()
    clock = Hands()
    one, two = Leases(store.kv, clock, A, "default"), Leases(other.kv, clock, B, "default")
    try:
        for trial in range(1000):
            subserver = str(uuid.uuid4())
            first, second = (one, two) if trial % 2 else (two, one)
            outcomes = await asyncio.gather(
                first.claim(_register(subserver), "x"), second.claim(_register(subserver), "y")
            )
            assert sorted(isinstance(outcome, Refusal) for outcome in outcomes) == [False, True]
        subserver = str(uuid.uuid4())
        assert await one.claim(_register(subserver), "held") is None
        clock.at += 14.9
        assert isinstance(await two.claim(_register(subserver), "y"), Refusal)
        clock.at += 0.2  # a crashed holder's record lapses after three intervals
        assert await two.claim(_register(subserver), "y") is None
    finally:
        await store.close()
        await other.close()
        if server is not None:
            server.kill()
    with pytest.raises(Unavailable, match="is not open"):
        await one.claim(_register(str(uuid.uuid4())), "z")


async def test_a_lease_names_its_holder_and_a_slow_holder_notices_a_release(tmp_path: Path) -> None:
    store = build_store("sqlite", tmp_path)
    await store.open()
    clock = Hands()
    one, two, elsewhere = (
        Leases(store.kv, clock, A, "default"),
        Leases(store.kv, clock, B, "default"),
        Leases(store.kv, clock, B, "another"),
    )
    subserver = str(uuid.uuid4())
    try:
        assert await one.claim(_register(subserver), "first") is None
        refused = await two.claim(_register(subserver), "second")
        assert isinstance(refused, Refusal)
        assert (refused.message, (refused.details or {})["holder_aggregator_id"]) == ("split_brain", A)
        assert await elsewhere.claim(_register(subserver), "other tree") is None
        assert isinstance(await two.claim(_register(subserver, released="made up"), "second"), Refusal)
        assert await two.claim(_register(subserver, released="first"), "second") is None
        assert not await one.renew(_session("first", subserver))
        assert await two.renew(_session("second", subserver))
        await two.give_up(subserver, "second")
        assert await one.claim(_register(subserver), "third") is None
    finally:
        await store.close()


async def test_owners_are_kept_read_and_released(tmp_path: Path) -> None:
    from interlock.ax.protocol.registration.registrations import SegmentOwner

    store = build_store("sqlite", tmp_path)
    await store.open()
    owners = Owners(store.kv, Hands())
    try:
        owner = SegmentOwner(segment="plant", authority="edge.example.com", subserver_id=str(uuid.uuid4()))
        await owners.keep(owner)
        kept = await owners.find_owner("plant")
        assert kept is not None
        assert msgspec.structs.replace(kept, at=0.0) == owner
        assert [record.segment for record in await owners.all()] == ["plant"]
        assert await owners.release("plant")
        assert not await owners.release("plant")
        assert await owners.find_owner("plant") is None
    finally:
        await store.close()
