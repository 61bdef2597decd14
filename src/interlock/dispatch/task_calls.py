"""Calls that make tasks and calls about tasks: ids are put right on the way back, the rest is a call like any other.

A plain call is none of these and knows nothing of them.
"""

from typing import Any, cast

from msgspec import Raw

from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.caller import Caller
from interlock.dispatch.task_table import Task, Tasks
from interlock.links.connected_link import ConnectedLink
from interlock.links.handshake import TASKS_META, modern_head
from interlock.mcp.headers import encode_header
from interlock.mcp.methods import META_CAPABILITIES, TASKS_CANCEL, TASKS_RESULT, Era
from interlock.mcp.tasks import (
    NO_ROOM,
    TASK_PER_USER,
    Made,
    bad_task,
    declares_tasks,
    lost_task,
    read_made,
    read_task,
    renamed_answer,
    requires_tasks,
    without_tasks,
)
from interlock.wire.jsonrpc.codec import Response, decode_object, decode_value, encode_value, find_string
from interlock.wire.jsonrpc.errors import CodecError, error_body
from interlock.wire.refusal import INVALID_PARAMS, Refusal, RefusalCode, find_code


class TaskMaking(Call, eq=False, kw_only=True):
    """A tools/call that the server may answer with a task."""

    tasks: Tasks

    def on_response(self, response: Response, era: Era) -> None:
        if not self.done and not response.error and era is self.caller.era:
            created = read_made(response.result, era)
            brought = self._name_task(created, era) if created is not None else response.result
            if isinstance(brought, Refusal):
                self.on_failed(brought, Outcome.ERROR)
                return
            response = Response(response.id, brought, response.error)
        super().on_response(response, era)

    def _name_task(self, created: Made | str, era: Era) -> Raw | Refusal:
        if isinstance(created, str):
            return bad_task(created)
        if era is Era.MODERN and not declares_tasks(self.meta[META_CAPABILITIES]):
            return bad_task("a task for a client that takes none")
        route = cast(Route, self.route)
        link = cast(ConnectedLink, self.link)  # no other makes tasks
        task = self.tasks.make(self.caller, link, route, created.facts)
        if task is None:
            cancel_task(link, created.facts.id)
            return NO_ROOM
        if era is Era.LEGACY and self.progress_token is not None:
            self.tasks.follow_progress(task, self.upstream_id, self.progress_token)
        result = Raw(created.rename_task(task.id, lambda theirs: self.tasks.maybe_ours(task, theirs)))
        self.tasks.heard(task, created.facts, created.task if era is Era.LEGACY else None)
        return result


class Taskless(Call, eq=False, kw_only=True):
    """A tools/call over a user's own link, of which no task may come: no client could ask about it."""

    def on_response(self, response: Response, era: Era) -> None:
        if not self.done and response.error and requires_tasks(response.error):
            self.on_failed(TASK_PER_USER, Outcome.ERROR)
            return
        created = read_made(response.result, era) if not self.done and not response.error else None
        if created is None:
            super().on_response(response, era)
            return
        if isinstance(created, Made) and isinstance(self.link, ConnectedLink):
            cancel_task(self.link, created.facts.id)
        self.on_failed(bad_task("a task that was not asked for"), Outcome.ERROR)


def make_taskless(
    caller: Caller, client_id: bytes, method: str, params: dict[str, Any], meta: dict[str, Raw], *others: Any
) -> Taskless:
    """Create a call whose server sees a client that takes no tasks."""
    if META_CAPABILITIES in meta and declares_tasks(meta[META_CAPABILITIES]):
        meta = {**meta, META_CAPABILITIES: without_tasks(meta[META_CAPABILITIES])}
        params["_meta"] = meta
    return Taskless(caller, client_id, method, params, meta, *others)


class TaskAsking(Call, eq=False, kw_only=True):
    """A request about a task."""

    tasks: Tasks
    task: Task

    @property
    def waits_forever(self) -> bool:
        """Return whether the call waits for a task's result, as long as the task takes."""
        return self.method == TASKS_RESULT

    def on_response(self, response: Response, era: Era) -> None:
        if self.done:
            return
        if response.error:
            super().on_response(Response(response.id, response.result, self._explain(response.error)), era)
            return
        result = self._name_task(response.result)
        if isinstance(result, Refusal):
            self.on_failed(result, Outcome.ERROR)
        else:
            super().on_response(Response(response.id, result, response.error), era)

    def _name_task(self, result: Raw) -> Raw | Refusal:
        task = self.task
        members = renamed_answer(result, self.method, task.theirs, lambda theirs: self.tasks.maybe_ours(task, theirs))
        if isinstance(members, str):
            return bad_task(members)
        task.connection = task.link.connection
        facts = read_task(members, task.era) if "status" in members and "taskId" in members else ""
        if not isinstance(facts, str):
            self.tasks.heard(task, facts, members if task.era is Era.LEGACY else None)
        return Raw(encode_value(members))

    def _explain(self, error: Raw) -> Raw:
        """Return the error, or a lost-task error if the server may have forgotten the task while it was
        disconnected.
        """
        task = self.task
        if task.connection == task.link.connection or code_of(error) != INVALID_PARAMS:
            return error
        self.tasks.lost(task)
        message = find_string((decode_object(error) or {}).get("message")) or "no reason given"
        return Raw(error_body(lost_task(message[:200])))


def cancel_task(link: ConnectedLink, theirs: str) -> None:
    """Cancel a task that no client will ever ask for, without waiting for the server's answer."""
    params: dict[str, Any] = {"taskId": theirs}
    if link.modern:
        link.ask(TASKS_CANCEL, {**params, "_meta": TASKS_META}, task_head(TASKS_CANCEL, theirs))
    else:
        link.ask(TASKS_CANCEL, params)


def task_head(method: str, theirs: str) -> bytes:
    """Return the routing headers for a 2026-07-28 server."""
    return modern_head(method) + b"mcp-name: %b\r\n" % encode_header(theirs)


def code_of(error: Raw) -> RefusalCode | None:
    members = decode_object(error) or {}
    try:
        return find_code(decode_value(members["code"]))
    except (KeyError, CodecError):
        return None
