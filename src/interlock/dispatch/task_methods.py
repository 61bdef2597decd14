"""Tasks between clients and servers: the methods `tasks/*` of both eras, and messages about tasks.

`TaskMethods` handles requests. A request about a task goes to the server that created the task, like any other call.
tasks/list (2025-11-25) is answered here, because a server's list contains the tasks of all clients: the state of each
task is the one that the server last reported, or is asked for again if it is old. A 2026-07-28 client listens for its
tasks with `watch`.

`TaskNews` delivers what servers send about tasks that they run for clients: status, progress, logs and questions. A
legacy client gets it on its session, a modern client on the stream on which it listens for that task. A question for a
client that cannot be reached waits until the client asks for the task's result, which is where 2025-11-25 lets a client
look for questions.

`AskedTasks` is the other direction (2025-11-25): a server asks a client something as a task, and the client runs the
task. The link is shared, so a server sees ids of this node for the tasks of all clients. Only the server that asked can
ask about such a task, and the task ends with the session of its client.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.catalog.catalog import View
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, Pending, passes_level
from interlock.core.calls.caller import AnswerReceiver, Caller, ClientRequest, QuestionOrigin, Sink, refuse_question
from interlock.core.calls.check import BUSY
from interlock.core.clock import Clock
from interlock.core.link_state import USABLE
from interlock.dispatch.dispatch import STANDARD_S, Dispatch
from interlock.dispatch.tasks import Task, TaskAsking, TaskMaking, Tasks, code_of, make_taskless
from interlock.gate.protocol.reserved_claims import without_claims
from interlock.links.connected_link import ConnectedLink
from interlock.links.keeper import Keeper, ServerKeeper
from interlock.links.link import TaskEvents
from interlock.links.listing import LIST_S
from interlock.mcp import methods
from interlock.mcp import tasks as mcp_tasks
from interlock.mcp.items import decode_cursor_untrusted, encode_cursor
from interlock.mcp.meta import PROGRESS_TOKEN
from interlock.mcp.methods import Era
from interlock.mcp.modern_requests import modern_head
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import Request, decode_object, encode_notification, encode_value, find_string
from interlock.wire.refusal import INVALID_PARAMS, METHOD_NOT_FOUND, Refusal

KEPT_PER_CLIENT_MAX: Final = 100  # the oldest makes way
EXPECTED_MAX: Final = 10_000  # answers under way that may be tasks, or are about one
_RESULT: Final = b'"result":'


@dataclass(eq=False)
class Background:
    """Client to which a server's question can be passed although it has no call under way."""

    caller: Caller
    sink: Sink | None = None
    asking = 0
    progressed = False

    @property
    def reachable(self) -> bool:
        return self.sink is not None or (self.caller.channel is not None and self.caller.channel.reachable)

    def on_request(self, link: AnswerReceiver, request: Request) -> None:
        if self.caller.channel is not None:
            self.caller.channel.ask(link, request.id, request.method, request.params, self.sink)


class AskedTask(msgspec.Struct, eq=False):
    """Task that a client runs for a server."""

    link: ConnectedLink
    caller: Caller
    theirs: str  # as the client calls it
    id: str = msgspec.field(default_factory=lambda: f"il-{secrets.token_urlsafe(18)}")


class _Expected(msgspec.Struct, frozen=True):
    """Request of a server that its client has not answered yet. The answer creates a task at the client or is about
    one.
    """

    link: ConnectedLink
    connection: int
    caller: Caller
    method: str
    task: AskedTask | None


class AskedTasks:
    """Registry of the tasks that clients run for servers."""

    def __init__(self) -> None:
        self._by_id: dict[str, AskedTask] = {}
        self._of: dict[Caller, dict[str, AskedTask]] = {}  # client -> its own ids
        self._expected: dict[tuple[str, bytes], _Expected] = {}

    def maybe(self, link: ConnectedLink, ours: str) -> AskedTask | None:
        task = self._by_id.get(ours)
        return task if task is not None and task.link is link else None

    def expect(self, link: ConnectedLink, request: Request, caller: Caller) -> str | None:
        """Prepare for a server's request that creates a task at a client. Return the reason if the client cannot create
        it, otherwise None.
        """
        if caller.era is Era.MODERN:
            return f"{request.method} as a task of 2025-11-25 does not cross to a client of MCP {methods.LATEST_MODERN}"
        if not mcp_tasks.takes_as_task(caller.capabilities, request.method):
            return f"the client does not take {request.method} as a task"
        return None if self._expect(link, request, caller, None) else "too many clients are being asked"

    def ask(self, link: ConnectedLink, request: Request, origin: Pending | None) -> None:
        """Pass a server's request about a task to the client that runs the task."""
        members: dict[str, Any] = decode_object(request.params) or {}
        task = self.maybe(link, find_string(members.get("taskId")) or "")
        if task is None or not self._expect(link, request, task.caller, task):
            link.questions.respond(request.id, b'"error":' + codec.error_body(mcp_tasks.TASK_UNKNOWN))
            return
        members["taskId"] = task.theirs
        sink = origin.sink if isinstance(origin, Call) and origin.caller is task.caller else None
        asking = Background(task.caller, sink)
        link.questions.ask_client(Request(request.id, request.method, Raw(encode_value(members))), asking)

    def on_answer(self, link: ConnectedLink, upstream_id: bytes, payload: bytes, their: mcp_tasks.Rename) -> bytes:
        """Return the payload of a client's answer with its task ids replaced by the ids that the server uses."""
        expected = self._expected.pop((link.segment, upstream_id), None)
        if not payload.startswith(_RESULT) or (expected is None and b"/related-task" not in payload):
            return payload
        result = Raw(payload[len(_RESULT) :])

        def server_side(named: str) -> str | None:
            stored = self._of.get(expected.caller, {}).get(named) if expected is not None else None
            return stored.id if stored is not None and stored.link is link else their(named)

        if expected is None:
            members: dict[str, Any] | None = decode_object(result)
            if members is None:
                return payload
            mcp_tasks.rename_related(members, server_side)
            return _RESULT + encode_value(members)
        if (task := expected.task) is None:
            if (created := mcp_tasks.read_made(result, Era.LEGACY)) is None or isinstance(created, str):
                return payload  # a plain answer, or nonsense: the server's to judge
            caller, theirs = expected.caller, created.facts.id
            mine = self._of.setdefault(caller, {})
            if len(mine) >= KEPT_PER_CLIENT_MAX or theirs in mine:
                oldest = mine.pop(theirs, None) or mine.pop(next(iter(mine)))
                self._by_id.pop(oldest.id, None)
            stored = AskedTask(link, caller, theirs)
            self._by_id[stored.id] = mine[theirs] = stored
            return _RESULT + created.rename_task(stored.id, server_side)
        answered = mcp_tasks.renamed_answer(result, expected.method, task.theirs, server_side)
        return payload if isinstance(answered, str) else _RESULT + encode_value(answered)

    def on_status(self, caller: Caller, params: Raw) -> None:
        """Pass a status notification for a task that a client runs to the server that requested the task."""
        members: dict[str, Any] = decode_object(params) or {}
        if (task := self._of.get(caller, {}).get(find_string(members.get("taskId")) or "")) is not None:
            members["taskId"] = task.id
            mcp_tasks.rename_related(members, lambda _: task.id)
            task.link.notify(methods.TASK_STATUS, members)

    def forget(self, caller: Caller) -> None:
        """Forget the tasks of a client that is gone."""
        for task in self._of.pop(caller, {}).values():
            self._by_id.pop(task.id, None)
        for key in [key for key, expected in self._expected.items() if expected.caller is caller]:
            del self._expected[key]

    def _expect(self, link: ConnectedLink, request: Request, caller: Caller, task: AskedTask | None) -> bool:
        if len(self._expected) >= EXPECTED_MAX:  # a server whose connection is gone waits no more
            for key, expected in list(self._expected.items()):
                if expected.connection != expected.link.connection:
                    del self._expected[key]
        if len(self._expected) >= EXPECTED_MAX:
            return False
        self._expected[link.segment, request.id] = _Expected(link, link.connection, caller, request.method, task)
        return True


HELD_MAX: Final = 32  # questions of one task that wait for their client
HELD_BYTES_MAX: Final = 64 * 1024 * 1024  # of all of them
_WHOSE: Final = "the client this is for cannot be told from others with calls or tasks under way"
_ABOUT_TASKS: Final = frozenset((methods.TASKS_GET, methods.TASKS_RESULT, methods.TASKS_CANCEL))


TaskListener = Callable[[dict[str, Any]], None]  # takes the new state of a task, for a modern client that listens


class TaskNews(TaskEvents):
    """Delivery of servers' messages about tasks to the clients that own the tasks."""

    def __init__(self, tasks: Tasks, asked_tasks: AskedTasks) -> None:
        self.call_type = partial(TaskMaking, tasks=tasks)
        self.per_user_call_type = make_taskless
        self._tasks = tasks
        self._asked = asked_tasks
        self.listening: dict[Task, set[TaskListener]] = {}  # clients of 2026-07-28, by the task they follow
        self._held: dict[Task, list[tuple[Request, Background]]] = {}

    # News

    def on_task_status(self, link: ConnectedLink, params: Raw) -> None:
        era = Era.MODERN if link.modern else Era.LEGACY
        params = Raw(without_claims(params, is_aggregator=link.offer.is_aggregator and link.offer.proved))
        facts = mcp_tasks.read_task(decode_object(params) or {}, era)
        task = None if isinstance(facts, str) else self._tasks.maybe_theirs(link, facts.id)
        if isinstance(facts, str) or task is None or task.era is not era:
            link.stray += 1
            return
        rename = partial(self._tasks.maybe_ours, task)
        if isinstance(members := mcp_tasks.renamed_answer(params, methods.TASKS_GET, task.theirs, rename), str):
            return
        self._tasks.heard(task, facts, members if era is Era.LEGACY else None)
        if era is Era.LEGACY:
            self._tell(task, encode_notification(methods.TASK_STATUS.encode(), encode_value(members)))
        else:
            for listener in list(self.listening.get(task, ())):
                listener(members)

    def on_task_progress(self, link: ConnectedLink, progress_id: int, params: dict[str, Raw]) -> None:
        if (task := self._tasks.progress.get((link.segment, progress_id))) is None:
            link.stray += 1
            return
        members: dict[str, Any] = {**params, PROGRESS_TOKEN: task.progress_token}
        mcp_tasks.rename_related(members, partial(self._tasks.maybe_ours, task))
        self._tell(task, encode_notification(methods.PROGRESS.encode(), encode_value(members)))

    def on_task_log(self, link: ConnectedLink, params: Raw) -> bool:
        if (theirs := mcp_tasks.related_task(params)) is None or link.modern:
            return False
        if (task := self._tasks.maybe_theirs(link, theirs)) is None:
            link.stray += 1
        elif task.caller.log_level is not None and passes_level(params, task.caller.log_level):
            renamed = mcp_tasks.renamed_in(params, partial(self._tasks.maybe_ours, task))
            self._tell(task, encode_notification(methods.LOG_MESSAGE.encode(), bytes(renamed)))
        return True

    def _tell(self, task: Task, message: bytes) -> None:
        """Send a message about a task to the client that owns it: on the stream of its session, or with its open
        request for the task's result.

        If there is neither, the message is dropped, as MCP allows.
        """
        if (channel := task.caller.channel) is None or channel.tell(message):
            return
        if (waiting := self._find_result_request(task)) is not None and waiting.caller is task.caller:
            waiting.sink.emit(message)

    def _find_result_request(self, task: Task) -> TaskAsking | None:
        """Return the newest unanswered request for the result of a task, or None."""
        calls = [call for call in task.link.in_flight.values() if isinstance(call, TaskAsking) and call.waits_forever]
        return next((call for call in reversed(calls) if call.task is task), None)

    # Who listens (2026-07-28)

    def unwatch(self, task: Task, listener: TaskListener) -> bool:
        """Remove a listener of a task. Return True if no client listens for the task any longer."""
        listeners = self.listening.get(task, set())
        listeners.discard(listener)
        if not listeners:
            self.listening.pop(task, None)
        return not listeners

    # Questions (2025-11-25)

    def on_task_request(self, link: ConnectedLink, request: Request, origin: Pending | None) -> bool:
        if request.method in _ABOUT_TASKS:
            self._asked.ask(link, request, origin)
            return True
        theirs = mcp_tasks.related_task(request.params)
        as_task = b'"task"' in bytes(request.params) and "task" in (decode_object(request.params) or {})
        if theirs is None and not as_task:
            return False
        asking, params = self._find_asking(link, request.params, theirs, origin)
        if not isinstance(asking, str) and as_task:
            asking = self._asked.expect(link, request, asking.caller) or asking
        if isinstance(asking, str):
            refuse_question(link.questions, request.id, asking)
        else:
            link.questions.ask_client(Request(request.id, request.method, params), asking)
        return True

    def _find_asking(
        self, link: ConnectedLink, params: Raw, theirs: str | None, origin: Pending | None
    ) -> tuple[QuestionOrigin | str, Raw]:
        """Return the client to which a server's question about a task has to be sent, or the reason why there is none.

        The second value is the params, with the task id that this client uses.
        """
        if theirs is None:
            pending = link.find_call(origin)
            return (pending, params) if isinstance(pending, Call) else (_WHOSE, params)
        if (client_task := self._asked.maybe(link, theirs)) is not None:
            return Background(client_task.caller), mcp_tasks.renamed_in(params, lambda _: client_task.theirs)
        if (task := self._tasks.maybe_theirs(link, theirs)) is None:
            return "the task this belongs to is not known", params
        if isinstance(origin, Call) and origin.caller.principal.name != task.principal:
            return "the task this belongs to is another client's", params
        named = mcp_tasks.renamed_in(params, partial(self._tasks.maybe_ours, task))
        call = (
            origin if isinstance(origin, Call) and origin.caller.era is Era.LEGACY else self._find_result_request(task)
        )
        caller, sink = (task.caller, None) if call is None else (call.caller, call.sink)
        return _OfTask(caller, sink, news=self, task=task), named

    def hold(self, task: Task, link: AnswerReceiver, request: Request, asking: Background) -> None:
        """Keep a question until the client asks for the task's result. Refuse the question if too many wait."""
        for of, entries in list(self._held.items()):
            self._held[of] = [entry for entry in entries if of.link.questions.is_open(entry[0].id, entry[1])]
            if not self._held[of]:
                del self._held[of]
        held = self._held.setdefault(task, [])
        size = len(request.params) + sum(len(entry.params) for entries in self._held.values() for entry, _ in entries)
        if len(held) >= HELD_MAX or size > HELD_BYTES_MAX:
            refuse_question(link, request.id, "the client cannot be reached, and too many questions wait for it")
        else:
            held.append((request, asking))

    def on_result_asked(self, call: TaskAsking) -> None:
        """Ask the client the questions that were kept for it, because it has requested the task's result."""
        link = call.task.link
        for request, asking in self._held.pop(call.task, ()):
            if link.questions.is_open(request.id, asking):
                link.questions.ask_client(request, _OfTask(call.caller, call.sink, news=self, task=call.task))

    def on_task_answer(self, link: ConnectedLink, upstream_id: bytes, payload: bytes) -> bytes:
        def server_side(ours: str) -> str | None:
            task = self._tasks.by_id.get(ours)
            return task.theirs if task is not None and task.link is link else None

        return self._asked.on_answer(link, upstream_id, payload, server_side)

    # What the link asks

    def find_related_task(self, link: ConnectedLink, caller: Caller, related: Raw) -> dict[str, Any] | None:
        def theirs(ours: str) -> str | None:
            task = self._tasks.find(ours, caller.principal.name)
            return task.theirs if isinstance(task, Task) and task.link is link else None

        return mcp_tasks.renamed_related(related, theirs)

    def on_link_ended(self, link: ConnectedLink) -> None:
        self._tasks.lose_all(link)

    def of_others(self, link: ConnectedLink, principals: set[str]) -> bool:
        return not self._tasks.principals(link) <= principals


@dataclass(eq=False)
class _OfTask(Background):
    """Receiver of a server's question about a task, on behalf of the client that owns the task. If the client cannot be
    reached, the question is stored until the client asks for the task's result.

    The question does not belong to the call with which the client may wait for the task: that call ends when the client
    stops waiting, and the question stays open.
    """

    news: TaskNews = field(kw_only=True)
    task: Task = field(kw_only=True)

    def on_request(self, link: AnswerReceiver, request: Request) -> None:
        if self.reachable:
            super().on_request(link, request)
        else:
            self.news.hold(self.task, link, request, self)


PAGE_TASKS: Final = 50
WAITING_MAX: Final = 256  # of one principal for results of tasks, at once
FRESH_S: Final = 1.0  # a state younger than this, or than the server's poll interval, is not asked for again
ABOUT: Final = {
    Era.LEGACY: frozenset((methods.TASKS_GET, methods.TASKS_RESULT, methods.TASKS_CANCEL)),
    Era.MODERN: frozenset((methods.TASKS_GET, methods.TASKS_UPDATE, methods.TASKS_CANCEL)),
}


Answer = Callable[[bytes | Refusal], None]  # takes the result of a list, or its refusal


@dataclass(eq=False)
class TaskMethods:
    """Handlers of the methods `tasks/*` for clients of both eras, legacy and modern."""

    dispatch: Dispatch
    news: TaskNews
    keepers: Mapping[str, Keeper]
    clock: Clock

    def __post_init__(self) -> None:
        self._tasks = self.dispatch.tasks
        self._running = BackgroundTasks()

    # Making

    def call_tool(self, request: ClientRequest) -> Call:
        """Handle a tools/call in which a legacy client asks for a task."""
        dispatch, caller = self.dispatch, request.caller
        name = find_string(request.params.get("name"))
        route = dispatch.view(caller.key).find_tool(name) if name is not None else None
        if route is None:
            return dispatch.call_tool(request)
        refusal: Refusal | None = None
        if route.link.modern:
            refusal = mcp_tasks.call_across_eras(caller.era)
        elif route.link.own is not None and not route.link.own.is_whole and route.link.offers_tasks:
            refusal = mcp_tasks.TASK_PER_USER
        elif route.link.tasks and not self._tasks.has_room(caller.principal.name):
            refusal = mcp_tasks.NO_ROOM  # before the server begins a task that no client could ask about
        if refusal is not None:
            return dispatch.refuse(Call(*dispatch.call_fields(request, route.qualified)), refusal)
        return dispatch.call_tool(request, as_task=True)

    # Asking

    def ask(self, request: ClientRequest) -> Call:
        """Send a request about a task to the server that created the task."""
        caller, method, params = request.caller, request.method, request.params
        task_id = find_string(params.get("taskId"))
        if isinstance(task := self._find_task(caller, method, task_id, request.meta), Refusal):
            refused = Call(*self.dispatch.call_fields(request, (task_id or "")[:255]))
            return self.dispatch.refuse(refused, task)
        fields = self.dispatch.call_fields(request, task.route.qualified)
        call = TaskAsking(*fields, tasks=self._tasks, task=task)
        call.timeout_s = None if call.waits_forever else STANDARD_S
        call.head = modern_head(method, task.theirs)
        params["taskId"] = Raw(encode_value(task.theirs))
        if caller.era is Era.LEGACY:
            task.caller = caller
        if call.waits_forever:
            # The results of tasks may never come, so that each principal may wait for a limited number of them.
            waiting = [other.caller.principal for other in self.dispatch.under_way.calls if other.waits_forever]
            if sum(principal.name == caller.principal.name for principal in waiting) >= WAITING_MAX:
                return self.dispatch.refuse(call, BUSY)
        self.dispatch.send(call, task.link)
        if call.waits_forever and not call.done:
            self.news.on_result_asked(call)
        return call

    def _find_task(self, caller: Caller, method: str, task_id: str | None, meta: dict[str, Raw]) -> Task | Refusal:
        task = self._tasks.find(task_id, caller.principal.name) if task_id is not None else mcp_tasks.TASK_UNKNOWN
        if isinstance(task, Refusal) and not self.offered(caller):
            return Refusal(METHOD_NOT_FOUND, "Method not found", {"method": method})
        if caller.era is Era.MODERN and not mcp_tasks.declares_tasks(meta[methods.META_CAPABILITIES]):
            return mcp_tasks.NOT_DECLARED
        if task_id is None:
            return Refusal(INVALID_PARAMS, "params.taskId must be a string")
        return task if isinstance(task, Refusal) else self._refusal(caller, task) or task

    def _refusal(self, caller: Caller, task: Task) -> Refusal | None:
        if not self._may_use(caller, task):
            return mcp_tasks.TASK_UNKNOWN
        if task.era is not caller.era:
            return mcp_tasks.task_across_eras(caller.era)
        if task.link.modern != (caller.era is Era.MODERN):
            return mcp_tasks.lost_task("it now speaks another revision of MCP")
        return None

    def offered(self, caller: Caller) -> bool:
        """Return whether the client sees a server that creates tasks for clients of its era."""
        return offers(self.dispatch.view(caller.key), caller.era)

    def _may_use(self, caller: Caller, task: Task) -> bool:
        """Return whether a client may ask about a task. It must be allowed to call the tool that created the task."""
        key = caller.key
        return key.only in (None, task.route.link.segment) and self.dispatch.view(key).may_see(task.route)

    # Listing (2025-11-25)

    def list_tasks(self, caller: Caller, params: dict[str, Raw], answer: Answer) -> None:
        """Answer a list request with the client's tasks, oldest first. A server is asked again for a state that is too
        old.

        Servers are not asked for their lists, because those contain the tasks of all clients.
        """
        after = _after(params)
        if not self.offered(caller):
            answer(Refusal(METHOD_NOT_FOUND, "Method not found", {"method": "tasks/list"}))
        elif after is None:
            answer(Refusal(INVALID_PARAMS, "this cursor is not one of ours; list again from the start"))
        else:
            tasks = (task for task in self._tasks.of(caller.principal.name) if task.era is Era.LEGACY)
            left = [task for task in tasks if task.number > after and self._may_use(caller, task)]
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
        """Return the encoded state of a task, as tasks/list shows it. Ask the server if the stored state is too old.

        Return None if its server does not recognise the task, or if its state is neither stored nor available.
        """
        link = task.link
        fresh_s = max(FRESH_S, task.poll_s or 0.0)
        fresh = not task.live or self.clock.now() - task.heard_at < fresh_s
        if (task.shown is not None and fresh) or link.standing.state not in USABLE or link.modern:
            return task.shown
        reply = await link.request(methods.TASKS_GET, {"taskId": task.theirs}, LIST_S)
        if not isinstance(reply, codec.Response):
            return task.shown
        if reply.error:
            return None if code_of(reply.error) == INVALID_PARAMS else task.shown
        members = mcp_tasks.renamed_answer(reply.result, methods.TASKS_GET, task.theirs, lambda _: task.id)
        if isinstance(members, str) or isinstance(facts := mcp_tasks.read_task(members, Era.LEGACY), str):
            return task.shown
        self._tasks.heard(task, facts, members)
        members.pop("_meta", None)
        return encode_value(members)

    # Being told (2026-07-28)

    async def watch(self, caller: Caller, listener: TaskListener, ids: list[str]) -> list[str]:
        """Start to notify a client about tasks. Return the ids of the tasks about which it will be notified.

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
                self.news.listening.setdefault(task, set()).add(listener)
            watched: Collection[str] = ()
            if isinstance(keeper := self.keepers.get(segment), ServerKeeper):
                watched = await keeper.task_listening.watch({task.theirs for task in tasks})
            agreed += [task.id for task in tasks if task.theirs in watched]
            self._unwatch([task for task in tasks if task.theirs not in watched], listener)
        return agreed

    def unwatch(self, listener: TaskListener) -> None:
        watched = [task for task, listeners in self.news.listening.items() if listener in listeners]
        self._unwatch(watched, listener)

    def _unwatch(self, tasks: list[Task], listener: TaskListener) -> None:
        unheard: dict[str, set[str]] = {}
        for task in tasks:
            if self.news.unwatch(task, listener):
                unheard.setdefault(task.link.segment, set()).add(task.theirs)
        for segment, ids in unheard.items():
            if isinstance(keeper := self.keepers.get(segment), ServerKeeper):
                keeper.task_listening.unwatch(ids)


def offers(view: View, era: Era) -> bool:
    """Return whether any server in this view speaks the given era and can run calls as tasks."""
    return any(link.tasks and link.modern == (era is Era.MODERN) for link in view.links)


def _after(params: dict[str, Raw]) -> int | None:
    """Return the number of the task after which the requested page of a list begins, as the cursor says. Return 0 if
    there is no cursor.

    Return None if the cursor does not have the form of this node's cursors.
    """
    if "cursor" not in params:
        return 0
    after = decode_cursor_untrusted(find_string(params["cursor"]) or "")
    return int(after) if after is not None and after.isdecimal() and len(after) <= 18 else None
