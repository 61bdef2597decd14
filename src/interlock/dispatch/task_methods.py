"""The methods `tasks/*` of both eras, and tools/call with a legacy client's request for a task.

A request about a task goes to the server that created the task, like any other call. tasks/list (2025-11-25) is
answered here, because a server's list contains the tasks of all clients: the state of each task is the one that the
server last reported, or is asked for again if it is old. A 2026-07-28 client listens for its tasks with `watch`.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from msgspec import Raw

from interlock.catalog.catalog import View
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, ClientRequest
from interlock.core.calls.check import BUSY
from interlock.core.clock import Clock
from interlock.core.link_state import USABLE
from interlock.dispatch.dispatch import STANDARD_S, Dispatch
from interlock.dispatch.task_updates import TaskListener, TaskNews
from interlock.dispatch.tasks import Task, TaskAsking, code_of, task_head
from interlock.links.keeper import Keeper
from interlock.links.link import Link
from interlock.links.listing import LIST_S
from interlock.links.server_keeper import ServerKeeper
from interlock.mcp.items import decode_cursor_untrusted, encode_cursor
from interlock.mcp.methods import (
    META_CAPABILITIES,
    TASKS_CANCEL,
    TASKS_GET,
    TASKS_RESULT,
    TASKS_UPDATE,
    Era,
)
from interlock.mcp.tasks import (
    NO_ROOM,
    NOT_DECLARED,
    TASK_PER_USER,
    TASK_UNKNOWN,
    call_across_eras,
    declares_tasks,
    lost_task,
    offers_tasks,
    read_task,
    renamed_answer,
    task_across_eras,
)
from interlock.wire.jsonrpc.codec import Response, encode_value, find_string
from interlock.wire.refusal import INVALID_PARAMS, METHOD_NOT_FOUND, Refusal

PAGE_TASKS: Final = 50
WAITING_MAX: Final = 256  # of one principal for results of tasks, at once
FRESH_S: Final = 1.0  # a state younger than this, or than the server's poll interval, is not asked for again
ABOUT: Final = {
    Era.LEGACY: frozenset((TASKS_GET, TASKS_RESULT, TASKS_CANCEL)),
    Era.MODERN: frozenset((TASKS_GET, TASKS_UPDATE, TASKS_CANCEL)),
}


Answer = Callable[[bytes | Refusal], None]  # takes the result of a list, or its refusal


class TaskMethods:
    """Handlers of the methods `tasks/*` for clients of both eras, legacy and modern."""

    def __init__(self, dispatch: Dispatch, news: TaskNews, keepers: Mapping[str, Keeper], clock: Clock) -> None:
        self._dispatch = dispatch
        self._tasks = dispatch.tasks
        self._news = news
        self._keepers = keepers
        self._clock = clock
        self._running = BackgroundTasks()

    # Making

    def call_tool(self, request: ClientRequest) -> Call:
        """Handle a tools/call in which a legacy client asks for a task."""
        dispatch, caller = self._dispatch, request.caller
        name = find_string(request.params.get("name"))
        route = dispatch.view(caller.key).find_tool(name) if name is not None else None
        if route is None:
            return dispatch.call_tool(request)
        refusal: Refusal | None = None
        if route.link.modern:
            refusal = call_across_eras(caller.era)
        elif _makes_tasks_for_users(route.link):
            refusal = TASK_PER_USER
        elif route.link.tasks and not self._tasks.has_room(caller.principal.name):
            refusal = NO_ROOM  # before the server begins a task that no client could ask about
        if refusal is not None:
            return dispatch.refuse(Call(*dispatch.call_fields(request, route.qualified)), refusal)
        return dispatch.call_tool(request, as_task=True)

    # Asking

    def ask(self, request: ClientRequest) -> Call:
        """Send a request about a task to the server that created the task."""
        caller, method, params = request.caller, request.method, request.params
        task_id = find_string(params.get("taskId"))
        task = self._find_task(caller, method, task_id, request.meta)
        if isinstance(task, Refusal):
            refused = Call(*self._dispatch.call_fields(request, (task_id or "")[:255]))
            return self._dispatch.refuse(refused, task)
        fields = self._dispatch.call_fields(request, task.route.qualified)
        call = TaskAsking(*fields, tasks=self._tasks, task=task)
        call.timeout_s = None if call.waits_forever else STANDARD_S
        call.head = task_head(method, task.theirs)
        params["taskId"] = Raw(encode_value(task.theirs))
        if caller.era is Era.LEGACY:
            task.caller = caller
        if call.waits_forever and self._waits_too_often(caller):
            return self._dispatch.refuse(call, BUSY)
        self._dispatch.send(call, task.link)
        if call.waits_forever and not call.done:
            self._news.on_result_asked(call)
        return call

    def _waits_too_often(self, caller: Caller) -> bool:
        """Return whether a client already waits for as many task results as it may. The results may never come."""
        waiting = [call for call in self._dispatch.under_way.calls if call.waits_forever]
        return sum(call.caller.principal.name == caller.principal.name for call in waiting) >= WAITING_MAX

    def _find_task(self, caller: Caller, method: str, task_id: str | None, meta: dict[str, Raw]) -> Task | Refusal:
        task = self._tasks.find(task_id, caller.principal.name) if task_id is not None else TASK_UNKNOWN
        if isinstance(task, Refusal) and not self.offered(caller):
            return Refusal(METHOD_NOT_FOUND, "Method not found", {"method": method})
        if caller.era is Era.MODERN and not declares_tasks(meta[META_CAPABILITIES]):
            return NOT_DECLARED
        if task_id is None:
            return Refusal(INVALID_PARAMS, "params.taskId must be a string")
        if isinstance(task, Refusal):
            return task
        return self._refusal(caller, task) or task

    def _refusal(self, caller: Caller, task: Task) -> Refusal | None:
        if not self._may_use(caller, task):
            return TASK_UNKNOWN
        if task.era is not caller.era:
            return task_across_eras(caller.era)
        if task.link.modern != (caller.era is Era.MODERN):
            return lost_task("it now speaks another revision of MCP")
        return None

    def offered(self, caller: Caller) -> bool:
        """Return whether a server that the client sees creates tasks in the client's era."""
        return offers(self._dispatch.view(caller.key), caller.era)

    def _may_use(self, caller: Caller, task: Task) -> bool:
        """Return whether a client may ask about a task. It must be allowed to call the tool that created the task."""
        key = caller.key
        return key.only in (None, task.route.link.segment) and self._dispatch.view(key).may_see(task.route)

    # Listing (2025-11-25)

    def list_tasks(self, caller: Caller, params: dict[str, Raw], answer: Answer) -> None:
        """Answer with the client's tasks, oldest first. A state that is old is asked for again at the task's server.

        Servers are not asked for their lists, because those contain the tasks of all clients.
        """
        after = _after(params)
        if not self.offered(caller):
            answer(Refusal(METHOD_NOT_FOUND, "Method not found", {"method": "tasks/list"}))
        elif after is None:
            answer(Refusal(INVALID_PARAMS, "this cursor is not one of ours; list again from the start"))
        else:
            left = [
                task
                for task in self._tasks.of(caller.principal.name)
                if task.number > after and task.era is Era.LEGACY and self._may_use(caller, task)
            ]
            page = left[:PAGE_TASKS]
            cursor = encode_cursor(str(page[-1].number)) if len(left) > PAGE_TASKS else None
            self._running.begin(self._answer_list(page, cursor, answer))

    async def _answer_list(self, page: list[Task], cursor: str | None, answer: Answer) -> None:
        states = await asyncio.gather(*(self._state(task) for task in page))
        result: dict[str, Any] = {"tasks": [Raw(state) for state in states if state is not None]}
        if cursor is not None:
            result["nextCursor"] = cursor
        answer(encode_value(result))

    async def _state(self, task: Task) -> bytes | None:
        """Return a task in the form for lists.

        Return None if its server does not recognise the task, or if its state is neither stored nor available.
        """
        link = task.link
        fresh_s = max(FRESH_S, task.poll_s or 0.0)
        fresh = not task.live or self._clock.now() - task.heard_at < fresh_s
        if (task.shown is not None and fresh) or link.standing.state not in USABLE or link.modern:
            return task.shown
        inquiry = link.ask(TASKS_GET, {"taskId": task.theirs})
        try:
            reply = await asyncio.wait_for(inquiry.future, LIST_S)
        except TimeoutError:
            link.cancel(inquiry, "timeout")
            return task.shown
        if not isinstance(reply, Response):
            return task.shown
        if reply.error:
            return None if code_of(reply.error) == INVALID_PARAMS else task.shown
        members = renamed_answer(reply.result, TASKS_GET, task.theirs, lambda _: task.id)
        facts = members if isinstance(members, str) else read_task(members, Era.LEGACY)
        if isinstance(members, str) or isinstance(facts, str):
            return task.shown
        self._tasks.heard(task, facts, members)
        members.pop("_meta", None)
        return encode_value(members)

    # Being told (2026-07-28)

    async def watch(self, caller: Caller, listener: TaskListener, ids: list[str]) -> list[str]:
        """Start to notify a client about tasks. Return the ids of those about which it will be notified.

        These are the client's own tasks at servers that agree to notify.
        """
        wanted: dict[str, list[Task]] = {}
        for task_id in dict.fromkeys(ids):
            task = self._tasks.find(task_id, caller.principal.name)
            if not isinstance(task, Refusal) and self._refusal(caller, task) is None:
                wanted.setdefault(task.link.segment, []).append(task)
        agreed: list[str] = []
        for segment, tasks in wanted.items():
            for task in tasks:
                self._news.watch(task, listener)
            keeper = self._keepers.get(segment)
            watched: Collection[str] = ()
            if isinstance(keeper, ServerKeeper):
                watched = await keeper.task_listening.watch({task.theirs for task in tasks})
            agreed += [task.id for task in tasks if task.theirs in watched]
            self._unwatch([task for task in tasks if task.theirs not in watched], listener)
        return agreed

    def unwatch(self, listener: TaskListener) -> None:
        self._unwatch(self._news.watched_by(listener), listener)

    def _unwatch(self, tasks: list[Task], listener: TaskListener) -> None:
        unheard: dict[str, set[str]] = {}
        for task in tasks:
            if self._news.unwatch(task, listener):
                unheard.setdefault(task.link.segment, set()).add(task.theirs)
        for segment, ids in unheard.items():
            keeper = self._keepers.get(segment)
            if isinstance(keeper, ServerKeeper):
                keeper.task_listening.unwatch(ids)


def offers(view: View, era: Era) -> bool:
    """Return whether a server of this era, among those a caller sees, creates tasks."""
    return any(link.tasks and link.modern == (era is Era.MODERN) for link in view.links)


def _makes_tasks_for_users(link: Link) -> bool:
    """Return whether the server of a link creates tasks although users have links of their own to it."""
    facts = link.facts if link.own is not None and not link.own.is_whole else None
    return facts is not None and offers_tasks(facts.capabilities, facts.era)


def _after(params: dict[str, Raw]) -> int | None:
    """Return the task number after which a list page begins, which is 0 without a cursor.

    Return None if the cursor does not have the form of this node's cursors.
    """
    if "cursor" not in params:
        return 0
    after = decode_cursor_untrusted(find_string(params["cursor"]) or "")
    return int(after) if after is not None and after.isdecimal() and len(after) <= 18 else None
