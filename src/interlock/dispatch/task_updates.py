"""What servers say of tasks by themselves, brought to whose task it is: status, progress, logs, questions.

A legacy client is told on its session, a modern one where it listens for that task. A question for a client that cannot
be reached waits until the client asks for the task's result, which is where 2025-11-25 has it look for questions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Raw

from interlock.core.calls.call import Call, Pending, passes_level
from interlock.core.calls.caller import AnswerReceiver, Caller, QuestionOrigin, Sink
from interlock.dispatch.client_tasks import AskedTasks, Background
from interlock.dispatch.task_calls import TaskAsking, TaskMaking, make_taskless
from interlock.dispatch.task_table import Task, Tasks
from interlock.gate.protocol.reserved_claims import without_claims
from interlock.links.connected_link import ConnectedLink
from interlock.links.link import TaskEvents
from interlock.mcp.meta import PROGRESS_TOKEN
from interlock.mcp.methods import LOG_MESSAGE, PROGRESS, TASK_STATUS, TASKS_CANCEL, TASKS_GET, TASKS_RESULT, Era
from interlock.mcp.tasks import (
    read_task,
    related_task,
    rename_related,
    renamed_answer,
    renamed_in,
    renamed_related,
)
from interlock.wire.jsonrpc.codec import Request, decode_object, encode_notification, encode_value
from interlock.wire.jsonrpc.errors import error_body
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal

HELD_MAX: Final = 32  # questions of one task that wait for their client
HELD_BYTES_MAX: Final = 64 * 1024 * 1024  # of all of them
_WHOSE: Final = "the client this is for cannot be told from others with calls or tasks under way"
_ABOUT_TASKS: Final = frozenset((TASKS_GET, TASKS_RESULT, TASKS_CANCEL))


TaskListener = Callable[[dict[str, Any]], None]  # takes the new state of a task, for a modern client that listens


class TaskNews(TaskEvents):
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
        """Send a message on the session's stream, or where the client waits for the task's result.

        Otherwise the message is dropped, as MCP allows.
        """
        channel = task.caller.channel
        if channel is not None and not channel.tell(message):
            waiting = self._waiting(task)
            if waiting is not None and waiting.caller is task.caller:
                waiting.sink.emit(message)

    def _waiting(self, task: Task) -> TaskAsking | None:
        """Return the newest request under way for the task's result, or None."""
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
        """Remove a listener of a task and return whether no client listens for the task any longer."""
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
        """Return on whose behalf the server asks, or why no client can be asked, and the params with that client's
        ids.
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
        link = call.task.link
        for request, asking in self._held.pop(call.task, ()):
            if link.questions.is_open(request.id, asking):
                link.questions.ask_client(request, _OfTask(self, call.task, call.caller, call.sink))

    def on_task_answer(self, link: ConnectedLink, upstream_id: bytes, payload: bytes) -> bytes:
        return self._asked.on_answer(link, upstream_id, payload, lambda ours: self._their(link, ours))

    def _their(self, link: ConnectedLink, ours: str) -> str | None:
        task = self._tasks.by_id.get(ours)
        return task.theirs if task is not None and task.link is link else None

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
    """The client of a task, asked where it can be reached, else when it comes back.

    Not the call it may be waiting with: that ends when the client stops to wait, and the question does not.
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
