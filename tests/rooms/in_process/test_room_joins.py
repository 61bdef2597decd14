"""Connections that come to a room while something else changes: nothing is decided by what was true a moment ago."""

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.approvals.inboxes import ManualClock, stored_inbox

from interlock.config.plan import Plan, RoomPlan
from interlock.core.replicas import Replicas
from interlock.fronts.http_protocol import UPGRADED
from interlock.rooms.endpoint import RoomCaller, RoomsEndpoint
from interlock.rooms.proposals import ProposalTracker
from interlock.rooms.protocol.participants import Participant, Privilege
from interlock.rooms.rooms import PrivilegeGrant, RoomRegistry
from interlock.rooms.timeline import Delivery

PLAN = Plan(workspace=Path(), data=Path(), room=(RoomPlan(topic="pair", written={"max_participants": 2}),))


class Pipe:
    """A socket that was accepted, and of which nothing is heard."""

    unsent_bytes = 0

    def __init__(self, closed: list[int]) -> None:
        self._closed = closed

    def attach(self) -> bool:
        return True

    def send(self, data: bytes) -> bool:
        return True

    async def drain(self, low_bytes: int) -> None: ...

    def close(self, code: int, reason: str) -> None:
        self._closed.append(code)

    async def run(self) -> None: ...

    def room_pipe(self, *_: object) -> "Pipe":
        return self


@pytest.mark.req("X-5.2-3")
async def test_a_ticket_is_good_for_thirty_seconds() -> None:
    clock = ManualClock()
    unused: Any = None
    endpoint = RoomsEndpoint(PLAN, unused, unused, unused, None, clock)
    socket = {"type": "websocket", "path": "/v0/ws", "headers": [(b"host", b"127.0.0.1:7332")]}
    caller = RoomCaller(principal="room:page", topic="pair", participant="page")

    async def settled(*_: object) -> object:
        return object()  # it may join

    endpoint._join = settled  # type: ignore[method-assign, assignment]
    for late, passes in ((0.0, True), (30.0, True), (30.1, False)):
        result = await endpoint._issue_ticket({"headers": []}, "pair", caller)
        assert isinstance(result, dict)
        clock.pass_(late)
        redeemed = await endpoint._admit(socket, {"ticket": result["ticket"], "topic": "pair"})
        assert (redeemed is caller) is passes


@pytest.mark.req("X-2.2-3", "X-5.1-4", "X-5.1-6")
async def test_places_and_privileges_are_those_of_the_moment_a_connection_comes_in(tmp_path: Path) -> None:
    clock = ManualClock()
    instances: list[RoomRegistry] = []

    def make(desk: Any) -> None:
        replicas = Replicas(desk.store, clock)
        proposals = ProposalTracker(desk.inbox, desk.recorder, clock, lambda _: None, replicas)
        instances.append(RoomRegistry(PLAN, desk.store, desk.recorder, clock, proposals, replicas, lambda _: None))

    async with stored_inbox(tmp_path, clock, made=make):
        (rooms,) = instances
        await rooms.open()
        unused: Any = None
        endpoint = RoomsEndpoint(PLAN, unused, rooms, unused, None, clock)
        room, accepted, answers = rooms.by_topic["pair"], asyncio.Event(), []
        closed: list[int] = []

        async def come(name: str) -> None:
            async def send(message: MutableMapping[str, Any]) -> None:
                answers.append(message.get("status", message["type"]))
                if message["type"] == "websocket.accept":
                    await accepted.wait()

            scope = {"type": "websocket", "client": ("127.0.0.1", 1), "extensions": {UPGRADED: Pipe(closed)}}
            caller = RoomCaller(principal=f"room:{name}", topic="pair", participant=name, privilege=Privilege.FULL)
            await endpoint._socket(scope, send, caller, {"topic": "pair"})

        endpoint._refusals = type("Notes", (), {"note": lambda *_, **__: None})()
        coming = [asyncio.create_task(come(name)) for name in ("a", "b", "a", "c")]
        async with asyncio.timeout(5):
            for _ in range(100):  # until three wait in their accept, and one is refused
                await asyncio.sleep(0)
            assert answers.count("websocket.accept") == 3 and answers.count(403) == 1
            assert await rooms.change_privilege(room, "b", Privilege.RESTRICTED, "admin") is None  # not known yet
            await rooms.grant(room, "b", Privilege.RESTRICTED, "admin")
            await rooms.grant(room, "a", Privilege.FULL, "admin")
            assert await rooms.remove(room, "a", "admin") == 0  # it is not here yet
            accepted.set()
            await asyncio.gather(*coming)
        assert {id: seat.participant.privilege for id, seat in room.seats.items()} == {
            "a": Privilege.RESTRICTED,
            "b": Privilege.RESTRICTED,
        }
        assert closed.count(4403) == 2  # those of a
        assert room.has_free_seat("a") and not room.has_free_seat("c")
        await rooms.close()


class TickingClock(ManualClock):
    """A clock on which some time passes between two readings, as on a busy machine."""

    def wall(self) -> float:
        self.pass_(0.001)
        return super().wall()


class Present:
    """A connection to a room that notes which privilege its participant was given."""

    id, since, is_here, can_answer = "present", 0, True, True

    def __init__(self) -> None:
        self.privileges: asyncio.Queue[str] = asyncio.Queue()

    def deliver(self, delivery: Delivery) -> None:
        payload = msgspec.json.decode(delivery.envelope.payload)
        if payload.get("event") == "privilege_changed":
            self.privileges.put_nowait(payload["newPrivilege"])

    def close(self, code: int, reason: str) -> None: ...


@pytest.mark.req("X-10.3-1")
@pytest.mark.parametrize("granted_s", [-1.0, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008])
async def test_a_timed_promotion_always_ends(tmp_path: Path, granted_s: float) -> None:
    """Also if its time is over before it is stored, or passes between two readings of the clock."""
    clock = TickingClock()
    instances: list[RoomRegistry] = []

    def make(desk: Any) -> None:
        replicas = Replicas(desk.store, clock)
        proposals = ProposalTracker(desk.inbox, desk.recorder, clock, lambda _: None, replicas)
        instances.append(RoomRegistry(PLAN, desk.store, desk.recorder, clock, proposals, replicas, lambda _: None))

    async with stored_inbox(tmp_path, clock, made=make):
        (rooms,) = instances
        await rooms.open()
        room, present = rooms.by_topic["pair"], Present()
        room.join(present, Participant(id="ada", privilege=Privilege.RESTRICTED), "room:ada", "test")
        until = clock.wall() + granted_s
        await rooms.change_privilege(room, "ada", Privilege.FULL, "admin", until=until)
        async with asyncio.timeout(5):
            assert [await present.privileges.get() for _ in range(2)] == ["full", "restricted"]
        assert room.seats["ada"].participant.privilege is Privilege.RESTRICTED
        await rooms.close()


@pytest.mark.req("X-8-3")
def test_a_grant_that_was_kept_before_rooms_were_migrated_lets_no_stranger_in() -> None:
    body = msgspec.json.decode(b'{"privilege":"full","by":"operator:ada","at":1.0}', type=PrivilegeGrant)
    assert (body.admits, body.is_removal, body.until) == (False, False, None)
