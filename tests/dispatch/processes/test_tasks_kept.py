"""How many tasks are remembered, and for how long? A node in this process, its clock set by the test, real servers."""

import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Raw
from tests.servers.start import raw
from tests.support.node_with_clock import META, OPEN, SECONDS, AheadClock, ClockedNode, ModernRequest

from interlock.config.load import load
from interlock.core.calls.caller import Principal
from interlock.dispatch import task_methods as task_desk
from interlock.dispatch import tasks
from interlock.dispatch.tasks import Tasks
from interlock.fronts.sessions import ClientSession
from interlock.mcp.tasks import TaskFacts
from interlock.node.node import Node
from interlock.wire.jsonrpc.codec import Request

DECLARED = {"extensions": {META + "tasks": {}}}
NO_ROOM = {"reason": "too_many_tasks"}
_ids = itertools.count(1)


class Here(ClockedNode):
    @property
    def tasks(self) -> Tasks:
        return self.node.calls.dispatch.tasks

    def session(self, who: str) -> ClientSession:
        body = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        request = Request(b"0", "initialize", Raw(json.dumps(body).encode()))
        opened = self.node.fronts.legacy.initialize(request, Principal(who), "http", None, "auto")
        assert isinstance(opened, ClientSession)
        return opened

    def legacy(self, session: ClientSession, method: str, params: Mapping[str, Any]) -> ModernRequest:
        asked = ModernRequest()
        request = Request(str(asked.id).encode(), method, Raw(json.dumps(params).encode()))
        self.node.fronts.legacy.handle(session, request, asked)
        return asked

    async def make(self, who: str, session: ClientSession | None = None, **arguments: Any) -> ModernRequest:
        """A call that becomes a task, answered."""
        given = {"id": f"id-{next(_ids)}", **arguments}
        if session is not None:
            asked = self.legacy(session, "tools/call", {"name": "old__job", "arguments": given, "task": {}})
        else:
            asked = self.call("new__job", given, who=who, capabilities=DECLARED)
        await asked.message()
        return asked

    def get(self, task_id: str, who: str, session: ClientSession | None = None) -> ModernRequest:
        params = {"taskId": task_id}
        if session is not None:
            return self.legacy(session, "tasks/get", params)
        return self.ask("tasks/get", params, who=who, capabilities=DECLARED)

    async def book(self, link: str) -> Any:
        return (await self.call(f"{link}__book", capabilities={}).result())["structuredContent"]

    def kept(self) -> dict[str, int]:
        of = self.tasks
        parts = {"by_id": of.by_id, "theirs": of._theirs, "progress": of.progress, "of": of._of}
        live = {who for principals in of._live.values() for who in principals}
        return {**{name: len(part) for name, part in parts.items()}, "live": len(live)}


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    async with place(tmp_path) as started:
        yield started


@contextlib.asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Here]:
    config = folder / "interlock.toml"
    servers = {segment: raw("tasks", "--era", era) for segment, era in (("old", "legacy"), ("new", "modern"))}
    tables = (f"[servers.{name}]\ncommand = {json.dumps(command)}\n" for name, command in servers.items())
    config.write_text("\n".join((OPEN, *tables)))
    clock = AheadClock()
    plan = load(config, os.environ, {"data": str(folder / "data")}).plan
    node = Node(plan, lambda operations, authenticate: None, clock, listen=False)
    await node.open()
    try:
        await node.readiness.settle(SECONDS)
        yield Here(node, clock)
    finally:
        await node.close()


async def made(asked: ModernRequest) -> str:
    result = await asked.result()
    return str(result["taskId"] if "taskId" in result else result["task"]["taskId"])


async def test_a_principal_with_too_many_tasks_gets_no_more_and_the_new_task_is_cancelled(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TASKS_PER_PRINCIPAL_MAX", 2)
    ids = [await made(await here.make("a")) for _ in range(2)]
    refused = await here.make("a", id="one too many")
    error = await refused.error()
    assert (error["code"], error["data"]) == (32131, NO_ROOM)
    assert (await here.book("new"))["tasks"]["one too many"]["status"] == "cancelled"
    assert await made(await here.make("b"))  # another has room
    assert [(await here.get(one, "a").result())["status"] for one in ids] == ["working", "working"]


async def test_a_legacy_client_with_too_many_tasks_is_refused_before_the_server_is_asked(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TASKS_PER_PRINCIPAL_MAX", 1)
    session = here.session("a")
    await here.make("a", session)
    error = await (await here.make("a", session, id="one too many")).error()
    assert (error["code"], error["data"]) == (32131, NO_ROOM)
    assert "one too many" not in (await here.book("old"))["tasks"]


@pytest.mark.parametrize("limit", ["TASKS_PER_PRINCIPAL_MAX", "TASKS_MAX"])
async def test_tasks_that_have_ended_make_way_oldest_first(
    here: Here, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(tasks, limit, 3)
    names = ["first", "second", "third"]
    ids = [await made(await here.make("a", id=name)) for name in names]
    for name in names[1:]:
        await here.call("new__end", {"task": name}, capabilities={}).result()
    for one in ids:
        await here.get(one, "a").result()  # the node has heard how they stand
    newest = await made(await here.make("a"))
    assert [one in here.tasks.by_id for one in (*ids, newest)] == [True, False, True, True]
    assert (await here.get(ids[1], "a").error())["data"] == {"reason": "task_unknown"}


async def test_tasks_of_others_that_still_run_do_not_make_way(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASKS_MAX", 2)
    ids = [await made(await here.make("a")) for _ in range(2)]
    assert (await (await here.make("b")).error())["data"] == NO_ROOM
    assert all(one in here.tasks.by_id for one in ids)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_task_is_forgotten_some_time_after_its_time_to_live(here: Here, era: str) -> None:
    session = here.session("a") if era == "legacy" else None
    ids = {ttl: await made(await here.make("a", session, ttl=ttl)) for ttl in (1000, 10_000_000, None)}
    here.clock.ahead += 1 + tasks.GRACE_S + 1
    assert await made(await here.make("b"))
    assert [one in here.tasks.by_id for one in ids.values()] == [False, True, True]
    here.clock.ahead += tasks.KEPT_S / 2
    assert (await here.get(ids[None], "a", session).result())["status"] == "working"  # heard of again
    here.clock.ahead += tasks.KEPT_S / 2 + 1
    await here.make("b")
    assert [one in here.tasks.by_id for one in ids.values()] == [False, False, True]
    here.clock.ahead += tasks.KEPT_S
    await here.make("b")
    assert (await here.get(ids[None], "a", session).error())["data"] == {"reason": "task_unknown"}


async def test_a_principal_may_wait_for_a_limited_number_of_results(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_desk, "WAITING_MAX", 2)
    one, two = here.session("a"), here.session("b")
    tasks_of = {session: {"taskId": await made(await here.make("", session))} for session in (one, two)}
    waiting = [here.legacy(one, "tasks/result", tasks_of[one]) for _ in range(2)]
    busy = await here.legacy(one, "tasks/result", tasks_of[one]).error()
    assert (busy["code"], busy["data"]["reason"]) == (-32002, "link_busy")
    waiting.append(here.legacy(two, "tasks/result", tasks_of[two]))
    assert (await here.legacy(one, "tasks/get", tasks_of[one]).result())["status"] == "working"
    for session, params in tasks_of.items():
        await here.legacy(session, "tasks/cancel", params).result()
    assert [(await one.error())["message"] for one in waiting] == ["cancelled"] * 3


async def test_nothing_of_a_forgotten_task_stays(here: Here) -> None:
    session = here.session("a")
    for number in range(5):
        params = {"name": "old__job", "arguments": {"id": f"gone {number}", "ttl": 1}, "task": {}}
        await here.legacy(session, "tools/call", {**params, "_meta": {"progressToken": number}}).result()
        await here.make("b", id=f"gone {number}", ttl=1)
    assert here.kept() == {"by_id": 10, "theirs": 10, "progress": 5, "of": 2, "live": 2}
    here.clock.ahead += tasks.GRACE_S + 1
    assert here.tasks.has_room("c")
    assert here.kept() == {"by_id": 0, "theirs": 0, "progress": 0, "of": 0, "live": 0}


async def test_a_task_that_was_replaced_is_counted_and_forgotten_like_others(here: Here) -> None:
    old = await made(await here.make("a", id="same", ttl=1))
    assert await made(await here.make("b", id="same", ttl=10_000_000)) != old
    assert here.kept()["by_id"] == 2
    assert here.tasks.of("a") == []
    here.clock.ahead += tasks.GRACE_S + 1
    assert here.tasks.has_room("a")
    assert here.kept() == {"by_id": 1, "theirs": 1, "progress": 0, "of": 1, "live": 1}


async def test_a_full_table_holds_what_it_says(here: Here) -> None:
    """Many tasks at once, made where a server's answer would make them."""
    session = here.session("a")
    params = {"name": "old__job", "arguments": {"id": "x"}, "task": {}}
    await here.legacy(session, "tools/call", params).result()
    (first,) = here.tasks.by_id.values()
    for principal in range(11):
        caller = here.session(f"p{principal}").caller
        for number in range(tasks.TASKS_PER_PRINCIPAL_MAX):
            facts = TaskFacts(f"{principal}/{number}", "working", None, None)
            task = here.tasks.make(caller, first.link, first.route, facts)
            if task is not None:
                here.tasks.heard(task, facts, None)
    assert len(here.tasks.by_id) == tasks.TASKS_MAX
    assert (await (await here.make("z", session)).error())["data"] == NO_ROOM
