"""Messages about tasks that no client requested: status, progress, logs and questions of servers.

`TaskNews` delivers what servers send about tasks that they run for clients. A legacy client gets it on its session, a
modern client on the stream on which it listens for that task. A question for a client that cannot be reached waits
until the client asks for the task's result, which is where 2025-11-25 lets a client look for questions.

`AskedTasks` is the other direction (2025-11-25): a server asks a client something as a task, and the client runs the
task. The link is shared, so a server sees ids of this node for the tasks of all clients. Only the server that asked can
ask about such a task, and the task ends with the session of its client.
"""

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.calls.call import Call, Pending, passes_level
from interlock.core.calls.caller import AnswerReceiver, Caller, QuestionOrigin, Sink
from interlock.dispatch.tasks import Task, TaskAsking, TaskMaking, Tasks, make_taskless
from interlock.gate.protocol.reserved_claims import without_claims
from interlock.links.connected_link import ConnectedLink
from interlock.links.link import TaskEvents
from interlock.mcp.meta import PROGRESS_TOKEN
from interlock.mcp.methods import (
    LATEST_MODERN,
    LOG_MESSAGE,
    PROGRESS,
    TASK_STATUS,
    TASKS_CANCEL,
    TASKS_GET,
    TASKS_RESULT,
    Era,
)
from interlock.mcp.tasks import (
    TASK_UNKNOWN,
    Rename,
    read_made,
    read_task,
    related_task,
    rename_related,
    renamed_answer,
    renamed_in,
    renamed_related,
    takes_as_task,
)
from interlock.wire.jsonrpc.codec import (
    Request,
    decode_object,
    encode_notification,
    encode_value,
    error_body,
    find_string,
)
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal

KEPT_PER_CLIENT_MAX: Final = 100  # the oldest makes way
EXPECTED_MAX: Final = 10_000  # answers under way that may be tasks, or are about one
_RESULT: Final = b'"result":'


class Background:
    """Client that can be asked although it has no call under way (`QuestionOrigin`)."""

    __slots__ = ("_sink", "asking", "caller", "progressed")

    def __init__(self, caller: Caller, sink: Sink | None = None) -> None:
        self.caller = caller
        self.asking = 0
        self.progressed = False
        self._sink = sink

    @property
    def reachable(self) -> bool:
        return self._sink is not None or (self.caller.channel is not None and self.caller.channel.reachable)

    def on_request(self, link: AnswerReceiver, request: Request) -> None:
        if self.caller.channel is not None:
            self.caller.channel.ask(link, request.id, request.method, request.params, self._sink)


class AskedTask:
    """Task that a client runs for a server."""

    __slots__ = ("caller", "id", "link", "theirs")

    def __init__(self, link: ConnectedLink, caller: Caller, theirs: str) -> None:
        self.id = f"il-{secrets.token_urlsafe(18)}"
        self.link = link
        self.caller = caller
        self.theirs = theirs  # as the client calls it


class _Expected(msgspec.Struct, frozen=True):
    """Answer expected from a client that either creates a task or is about one."""

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
        """Prepare for a client's task that a server requests. Return why the client cannot create it, or None."""
        if caller.era is Era.MODERN:
            return f"{request.method} as a task of 2025-11-25 does not cross to a client of MCP {LATEST_MODERN}"
        if not takes_as_task(caller.capabilities, request.method):
            return f"the client does not take {request.method} as a task"
        if not self._expect(link, request, caller, None):
            return "too many clients are being asked"
        return None

    def ask(self, link: ConnectedLink, request: Request, origin: Pending | None) -> None:
        """Pass a server's request about a task to the client that runs the task."""
        members: dict[str, Any] = decode_object(request.params) or {}
        task = self.maybe(link, find_string(members.get("taskId")) or "")
        if task is None or not self._expect(link, request, task.caller, task):
            link.questions.respond(request.id, b'"error":' + error_body(TASK_UNKNOWN))
            return
        members["taskId"] = task.theirs
        sink = origin.sink if isinstance(origin, Call) and origin.caller is task.caller else None
        asking = Background(task.caller, sink)
        link.questions.ask_client(Request(request.id, request.method, Raw(encode_value(members))), asking)

    def on_answer(self, link: ConnectedLink, upstream_id: bytes, payload: bytes, their: Rename) -> bytes:
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
            rename_related(members, server_side)
            return _RESULT + encode_value(members)
        task = expected.task
        if task is None:
            created = read_made(result, Era.LEGACY)
            if created is None or isinstance(created, str):
                return payload  # a plain answer, or nonsense: the server's to judge
            caller, theirs = expected.caller, created.facts.id
            mine = self._of.setdefault(caller, {})
            if len(mine) >= KEPT_PER_CLIENT_MAX or theirs in mine:
                oldest = mine.pop(theirs, None) or mine.pop(next(iter(mine)))
                self._by_id.pop(oldest.id, None)
            stored = AskedTask(link, caller, theirs)
            self._by_id[stored.id] = mine[theirs] = stored
            return _RESULT + created.rename_task(stored.id, server_side)
        answered = renamed_answer(result, expected.method, task.theirs, server_side)
        return payload if isinstance(answered, str) else _RESULT + encode_value(answered)

    def on_status(self, caller: Caller, params: Raw) -> None:
        """Pass the status of a client's task to the server that requested the task."""
        members: dict[str, Any] = decode_object(params) or {}
        task = self._of.get(caller, {}).get(find_string(members.get("taskId")) or "")
        if task is not None:
            members["taskId"] = task.id
            rename_related(members, lambda _: task.id)
            task.link.notify(TASK_STATUS, members)

    def forget(self, caller: Caller) -> None:
        """Forget the tasks of a client that is gone."""
        for task in self._of.pop(caller, {}).values():
            self._by_id.pop(task.id, None)
        for key in [key for key, expected in self._expected.items() if expected.caller is caller]:
            del self._expected[key]

    def _expect(self, link: ConnectedLink, request: Request, caller: Caller, task: AskedTask | None) -> bool:
        if len(self._expected) >= EXPECTED_MAX:  # a server whose connection is gone waits no more
            alive = {
                key: expected
                for key, expected in self._expected.items()
                if expected.connection == expected.link.connection
            }
            self._expected = alive
        if len(self._expected) >= EXPECTED_MAX:
            return False
        self._expected[link.segment, request.id] = _Expected(link, link.connection, caller, request.method, task)
        return True


HELD_MAX: Final = 32  # questions of one task that wait for their client
HELD_BYTES_MAX: Final = 64 * 1024 * 1024  # of all of them
_WHOSE: Final = "the client this is for cannot be told from others with calls or tasks under way"
_ABOUT_TASKS: Final = frozenset((TASKS_GET, TASKS_RESULT, TASKS_CANCEL))


TaskListener = Callable[[dict[str, Any]], None]  # takes the new state of a task, for a modern client that listens


class TaskNews(TaskEvents):
    """Delivery of servers' messages about tasks to the clients that own the tasks."""

    def __init__(self, tasks: Tasks, asked_tasks: AskedTasks) -> None:
        self.call_type = partial(TaskMaking, tasks=tasks)
        self.per_user_call_type = make_taskless
        self._tasks = tasks
        self._asked = asked_tasks
        self._listening: dict[Task, set[TaskListener]] = {}
        self._held: dict[Task, list[tuple[Request, Background]]] = {}

    # News

    def on_task_status(self, link: ConnectedLink, params: Raw) -> None:
        era = Era.MODERN if link.modern else Era.LEGACY
        params = Raw(without_claims(params, is_aggregator=link.offer.is_aggregator and link.offer.proved))
        facts = read_task(decode_object(params) or {}, era)
        task = None if isinstance(facts, str) else self._tasks.maybe_theirs(link, facts.id)
        if isinstance(facts, str) or task is None or task.era is not era:
            link.stray += 1
            return
        members = renamed_answer(params, TASKS_GET, task.theirs, lambda theirs: self._tasks.maybe_ours(task, theirs))
        if isinstance(members, str):
            return
        self._tasks.heard(task, facts, members if era is Era.LEGACY else None)
        if era is Era.LEGACY:
            self._tell(task, encode_notification(TASK_STATUS.encode(), encode_value(members)))
        else:
            for listener in list(self._listening.get(task, ())):
                listener(members)

    def on_task_progress(self, link: ConnectedLink, progress_id: int, params: dict[str, Raw]) -> None:
        task = self._tasks.maybe_progressing(link, progress_id)
        if task is None:
            link.stray += 1
            return
        members: dict[str, Any] = {**params, PROGRESS_TOKEN: task.progress_token}
        rename_related(members, lambda theirs: self._tasks.maybe_ours(task, theirs))
        self._tell(task, encode_notification(PROGRESS.encode(), encode_value(members)))

    def on_task_log(self, link: ConnectedLink, params: Raw) -> bool:
        theirs = related_task(params)
        if theirs is None or link.modern:
            return False
        task = self._tasks.maybe_theirs(link, theirs)
        if task is None:
            link.stray += 1
        elif task.caller.log_level is not None and passes_level(params, task.caller.log_level):
            renamed = renamed_in(params, lambda theirs: self._tasks.maybe_ours(task, theirs))
            self._tell(task, encode_notification(LOG_MESSAGE.encode(), bytes(renamed)))
        return True

    def _tell(self, task: Task, message: bytes) -> None:
        """Send a message on the stream of the client's session, or on its request for the task's result.

        If there is neither, the message is dropped, as MCP allows.
        """
        channel = task.caller.channel
        if channel is not None and not channel.tell(message):
            waiting = self._waiting(task)
            if waiting is not None and waiting.caller is task.caller:
                waiting.sink.emit(message)

    def _waiting(self, task: Task) -> TaskAsking | None:
        """Return the newest open request for the task's result, or None."""
        calls = [
            pending
            for pending in task.link.in_flight.values()
            if isinstance(pending, TaskAsking) and pending.waits_forever
        ]
        return next((call for call in reversed(calls) if call.task is task), None)

    # Who listens (2026-07-28)

    def watch(self, task: Task, listener: TaskListener) -> None:
        self._listening.setdefault(task, set()).add(listener)

    def unwatch(self, task: Task, listener: TaskListener) -> bool:
        """Remove a listener of a task. Return True if no client listens for the task any longer."""
        listeners = self._listening.get(task, set())
        listeners.discard(listener)
        if not listeners:
            self._listening.pop(task, None)
        return not listeners

    def watched_by(self, listener: TaskListener) -> list[Task]:
        return [task for task, listeners in self._listening.items() if listener in listeners]

    # Questions (2025-11-25)

    def on_task_request(self, link: ConnectedLink, request: Request, origin: Pending | None) -> bool:
        if request.method in _ABOUT_TASKS:
            self._asked.ask(link, request, origin)
            return True
        theirs = related_task(request.params)
        as_task = b'"task"' in bytes(request.params) and "task" in (decode_object(request.params) or {})
        if theirs is None and not as_task:
            return False
        asking, params = self._find_asking(link, request.params, theirs, origin)
        if not isinstance(asking, str) and as_task:
            asking = self._asked.expect(link, request, asking.caller) or asking
        if isinstance(asking, str):
            link.questions.respond(request.id, b'"error":' + error_body(Refusal(METHOD_NOT_FOUND, asking)))
        else:
            link.questions.ask_client(Request(request.id, request.method, params), asking)
        return True

    def _find_asking(
        self, link: ConnectedLink, params: Raw, theirs: str | None, origin: Pending | None
    ) -> tuple[QuestionOrigin | str, Raw]:
        """Return the client on whose behalf the server asks, or the reason why no client can be asked.

        The second value is the params, with the task id that this client uses.
        """
        if theirs is None:
            pending = link.find_call(origin)
            return (pending, params) if isinstance(pending, Call) else (_WHOSE, params)
        client_task = self._asked.maybe(link, theirs)
        if client_task is not None:
            return Background(client_task.caller), renamed_in(params, lambda _: client_task.theirs)
        task = self._tasks.maybe_theirs(link, theirs)
        if task is None:
            return "the task this belongs to is not known", params
        if isinstance(origin, Call) and origin.caller.principal.name != task.principal:
            return "the task this belongs to is another client's", params
        named = renamed_in(params, lambda theirs: self._tasks.maybe_ours(task, theirs))
        call = origin if isinstance(origin, Call) and origin.caller.era is Era.LEGACY else self._waiting(task)
        if call is None:
            return _OfTask(self, task, task.caller, None), named
        return _OfTask(self, task, call.caller, call.sink), named

    def hold(self, task: Task, link: AnswerReceiver, request: Request, asking: Background) -> None:
        """Keep a question until the client asks for the task's result. Refuse the question if too many wait."""
        wanted = {
            of: [entry for entry in held if of.link.questions.is_open(entry[0].id, entry[1])]
            for of, held in self._held.items()
        }
        self._held = {of: held for of, held in wanted.items() if held}
        held = self._held.setdefault(task, [])
        size = len(request.params) + sum(len(entry.params) for entries in self._held.values() for entry, _ in entries)
        if len(held) >= HELD_MAX or size > HELD_BYTES_MAX:
            why = "the client cannot be reached, and too many questions wait for it"
            link.respond(request.id, b'"error":' + error_body(Refusal(METHOD_NOT_FOUND, why)))
        else:
            held.append((request, asking))

    def on_result_asked(self, call: TaskAsking) -> None:
        """Ask the client the questions that were kept for it, because it has requested the task's result."""
        link = call.task.link
        for request, asking in self._held.pop(call.task, ()):
            if link.questions.is_open(request.id, asking):
                link.questions.ask_client(request, _OfTask(self, call.task, call.caller, call.sink))

    def on_task_answer(self, link: ConnectedLink, upstream_id: bytes, payload: bytes) -> bytes:
        def server_side(ours: str) -> str | None:
            task = self._tasks.by_id.get(ours)
            return task.theirs if task is not None and task.link is link else None

        return self._asked.on_answer(link, upstream_id, payload, server_side)

    # What the link asks

    def named_for(self, link: ConnectedLink, caller: Caller, related: Raw) -> dict[str, Any] | None:
        def theirs(ours: str) -> str | None:
            task = self._tasks.find(ours, caller.principal.name)
            return task.theirs if isinstance(task, Task) and task.link is link else None

        return renamed_related(related, theirs)

    def on_link_ended(self, link: ConnectedLink) -> None:
        self._tasks.lose_all(link)

    def of_others(self, link: ConnectedLink, principals: set[str]) -> bool:
        return not self._tasks.principals(link) <= principals


class _OfTask(Background):
    """Client of a task. It is asked at once if it can be reached, otherwise when it returns.

    The question does not belong to the call with which the client may wait for the task: that call ends when the client
    stops waiting, and the question stays open.
    """

    __slots__ = ("_news", "_task")

    def __init__(self, news: TaskNews, task: Task, caller: Caller, sink: Sink | None) -> None:
        super().__init__(caller, sink)
        self._news = news
        self._task = task

    def on_request(self, link: AnswerReceiver, request: Request) -> None:
        if self.reachable:
            super().on_request(link, request)
        else:
            self._news.hold(self._task, link, request, self)
