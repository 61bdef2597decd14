"""The tasks that servers create for clients, and the calls that create tasks or ask about them.

Servers may give the same id to different tasks, so clients see an id of this node: the server's segment and a random
part that cannot be guessed. `Tasks` maps both ids to each other. A task belongs to the principal that created it; for
everybody else it does not exist. Tasks are kept in memory only: of a task that was created before the node started, the
node knows by the form of its id that it was a task, and nothing else.

The calls translate ids on the way back and are otherwise calls like any other. A plain call knows nothing of tasks:

    TaskMaking   a tools/call that its server may answer with a task
    Taskless     a tools/call over a link with its user's token, which may not become a task
    TaskAsking   a request about a task, such as tasks/get
"""

import re
import secrets
from functools import partial
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.caller import Caller
from interlock.core.clock import Clock
from interlock.links.connected_link import TASKS_META, ConnectedLink
from interlock.links.link import Link
from interlock.mcp import tasks as mcp_tasks
from interlock.mcp.methods import META_CAPABILITIES, TASKS_CANCEL, TASKS_RESULT, Era
from interlock.mcp.modern_requests import modern_head
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import CodecError, Response, decode_object, decode_value, encode_value, error_body
from interlock.wire.refusal import INVALID_PARAMS, Refusal, RefusalCode, find_code

TASKS_MAX: Final = 20_000
TASKS_PER_PRINCIPAL_MAX: Final = 2_000
KEPT_S: Final = 86_400.0  # a task without a time to live, after it was last heard of
GRACE_S: Final = 60.0  # servers may keep a task longer than its time to live, and clients come late
TIDY_S: Final = 60.0
SHOWN_BYTES_MAX: Final = 2 * 1024  # of a task's state kept for lists; a longer one is asked for again
_SHAPE: Final = re.compile(r"[a-z0-9_-]+\.([0-9a-f]{8})[A-Za-z0-9_-]{24}")


class Task(msgspec.Struct, eq=False):
    """Task with two ids: the id that its server uses, and the id that its client sees."""

    id: str
    number: int  # the order in which they were made
    link: ConnectedLink
    theirs: str
    route: Route
    caller: Caller  # of the session that last spoke of it: news of the task go there
    principal: str
    era: Era
    connection: int
    made_at: float
    live: bool = False  # it may still run
    replaced: bool = False
    heard_at: float = 0.0
    expires_at: float = 0.0
    poll_s: float | None = None
    progress_id: int = 0  # what the server knows its progress by
    progress_token: Any = None  # what the client does
    shown: bytes | None = None  # its newest state, under our id


class Tasks:
    """Registry of the tasks of all clients. A task can be found by either id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._run = secrets.token_hex(4)
        self._made = 0
        self._tidied_at = 0.0
        self.by_id: dict[str, Task] = {}
        self._theirs: dict[tuple[str, str], Task] = {}  # (segment, the server's id)
        self.progress: dict[tuple[str, int], Task] = {}  # (segment, the id by which the server knows the progress)
        self._of: dict[str, dict[str, Task]] = {}  # principal -> its tasks, oldest first
        self._live: dict[str, dict[str, int]] = {}  # segment -> principals with tasks that may still run, and how many

    # Making

    def has_room(self, principal: str) -> bool:
        """Return whether a task of this principal can be added.

        Tasks that have expired are removed first. At a limit, a task that has ended is removed to make room, first one
        of the same principal. Tasks that may still run are not removed.
        """
        now = self._clock.now()
        if now - self._tidied_at >= TIDY_S:
            self._tidied_at = now
            for task in [task for task in self.by_id.values() if task.expires_at <= now]:
                self._forget(task)
        mine = self._of.get(principal, {})
        if len(mine) >= TASKS_PER_PRINCIPAL_MAX and not self._drop_ended(mine):
            return False
        return len(self.by_id) < TASKS_MAX or self._drop_ended(mine) or self._drop_ended(self.by_id)

    def make(self, caller: Caller, link: ConnectedLink, route: Route, facts: mcp_tasks.TaskFacts) -> Task | None:
        """Add a task that a server created for this client. Return None if there are too many tasks.

        If the principal already has this task in the same era, the existing task is returned.
        """
        principal = caller.principal.name
        existing = self._theirs.get((link.segment, facts.id))
        if existing is not None and existing.principal == principal and existing.era is caller.era:
            existing.route, existing.caller, existing.connection = route, caller, link.connection
            existing.made_at = self._clock.now()
            return existing  # the client already has an id for this task
        if not self.has_room(principal):
            return None
        if existing is not None:  # the server reused an id: our id for the old task must not show the new one
            existing.replaced = True  # its id is kept, so that a request for it is refused with that reason
            self._cut(existing)
        self._made += 1
        task_id = f"{route.link.segment}.{self._run}{secrets.token_urlsafe(18)}"
        made_at = self._clock.now()
        task = Task(task_id, self._made, link, facts.id, route, caller, principal, caller.era, link.connection, made_at)
        self.by_id[task_id] = self._theirs[link.segment, facts.id] = task
        self._of.setdefault(principal, {})[task_id] = task
        self._set_live(task, live=True)
        return task

    def follow_progress(self, task: Task, progress_id: int, token: Any) -> None:
        """Keep the progress token of the call that created a task for as long as the task exists (2025-11-25)."""
        self.progress.pop((task.link.segment, task.progress_id), None)
        task.progress_id, task.progress_token = progress_id, token
        self.progress[task.link.segment, progress_id] = task

    def heard(self, task: Task, facts: mcp_tasks.TaskFacts, shown: dict[str, Any] | None) -> None:
        """Store the state of a task that its server has just reported."""
        now = self._clock.now()
        task.heard_at, task.poll_s = now, facts.poll_s
        task.expires_at = now + KEPT_S if facts.ttl_s is None else task.made_at + facts.ttl_s + GRACE_S
        self._set_live(task, live=facts.status not in mcp_tasks.TERMINAL)
        if shown is not None:
            state = encode_value({key: value for key, value in shown.items() if key != "_meta"})
            task.shown = state if len(state) <= SHOWN_BYTES_MAX else None

    # Finding

    def find(self, task_id: str, principal: str) -> Task | Refusal:
        """Return the task with this id, or a refusal. A task of another principal counts as unknown."""
        task = self.by_id.get(task_id) if len(task_id) <= mcp_tasks.ID_BYTES_MAX else None
        if task is None or task.principal != principal:
            # An id of this form was issued by an earlier process of this node.
            shaped = _SHAPE.fullmatch(task_id) if len(task_id) <= mcp_tasks.ID_BYTES_MAX else None
            return mcp_tasks.TASK_FORGOTTEN if shaped is not None and shaped[1] != self._run else mcp_tasks.TASK_UNKNOWN
        return mcp_tasks.TASK_REPLACED if task.replaced else task

    def maybe_theirs(self, link: ConnectedLink, theirs: str) -> Task | None:
        return self._theirs.get((link.segment, theirs))

    def maybe_ours(self, task: Task, theirs: str) -> str | None:
        """Return the id that the client uses for another task of the server that runs `task`. `theirs` is the server's
        id for it.

        Return None if that task is unknown or belongs to another principal.
        """
        other = self.maybe_theirs(task.link, theirs)
        return other.id if other is not None and other.principal == task.principal else None

    def of(self, principal: str) -> list[Task]:
        return [task for task in self._of.get(principal, {}).values() if not task.replaced]

    def principals(self, link: Link) -> set[str]:
        """Return the principals that have tasks at this server which may still be running.

        A message that the server sends outside a call may be about any of these tasks.
        """
        return set(self._live.get(link.segment, ()))

    # Forgetting

    def lost(self, task: Task) -> None:
        """Mark a task as ended, because its server no longer recognises it."""
        self._set_live(task, live=False)

    def lose_all(self, link: ConnectedLink) -> None:
        """Mark all tasks of a link as ended, because the link will not return."""
        for task in [task for task in self.by_id.values() if task.link is link]:
            self._cut(task)
        self._live.pop(link.segment, None)

    def _drop_ended(self, tasks: dict[str, Task]) -> bool:
        if (ended := next((task for task in tasks.values() if not task.live), None)) is not None:
            self._forget(ended)
        return ended is not None

    def _forget(self, task: Task) -> None:
        self._cut(task)
        self.by_id.pop(task.id, None)
        mine = self._of.get(task.principal, {})
        mine.pop(task.id, None)
        if not mine:
            self._of.pop(task.principal, None)

    def _cut(self, task: Task) -> None:
        """Mark a task as ended, and forget its server's id for it and its progress token."""
        self._set_live(task, live=False)
        segment = task.link.segment
        if self._theirs.get((segment, task.theirs)) is task:
            del self._theirs[segment, task.theirs]
        if self.progress.get((segment, task.progress_id)) is task:
            del self.progress[segment, task.progress_id]

    def _set_live(self, task: Task, *, live: bool) -> None:
        if task.live == live:
            return
        task.live = live
        principals = self._live.setdefault(task.link.segment, {})
        if count := principals.get(task.principal, 0) + (1 if live else -1):
            principals[task.principal] = count
        else:
            del principals[task.principal]


class TaskMaking(Call, eq=False, kw_only=True):
    """Call of a tool (tools/call) that the server may answer with a task."""

    tasks: Tasks

    def on_response(self, response: Response, era: Era) -> None:
        if not self.done and not response.error and era is self.caller.era:
            created = mcp_tasks.read_made(response.result, era)
            brought = self._name_task(created, era) if created is not None else response.result
            if isinstance(brought, Refusal):
                self.on_failed(brought, Outcome.ERROR)
                return
            response = Response(response.id, brought, response.error)
        super().on_response(response, era)

    def _name_task(self, created: mcp_tasks.Made | str, era: Era) -> Raw | Refusal:
        if isinstance(created, str):
            return mcp_tasks.bad_task(created)
        if era is Era.MODERN and not mcp_tasks.declares_tasks(self.meta[META_CAPABILITIES]):
            return mcp_tasks.bad_task("a task for a client that takes none")
        route = cast(Route, self.route)
        link = cast(ConnectedLink, self.link)  # no other makes tasks
        if (task := self.tasks.make(self.caller, link, route, created.facts)) is None:
            cancel_task(link, created.facts.id)
            return mcp_tasks.NO_ROOM
        if era is Era.LEGACY and self.progress_token is not None:
            self.tasks.follow_progress(task, self.upstream_id, self.progress_token)
        result = Raw(created.rename_task(task.id, partial(self.tasks.maybe_ours, task)))
        self.tasks.heard(task, created.facts, created.task if era is Era.LEGACY else None)
        return result


class Taskless(Call, eq=False, kw_only=True):
    """Tool call over a connection that belongs to one user. The server must not create a task for it, because the
    client could not ask about that task.
    """

    def on_response(self, response: Response, era: Era) -> None:
        if not self.done and response.error and mcp_tasks.requires_tasks(response.error):
            self.on_failed(mcp_tasks.TASK_PER_USER, Outcome.ERROR)
            return
        created = mcp_tasks.read_made(response.result, era) if not self.done and not response.error else None
        if created is None:
            super().on_response(response, era)
            return
        if isinstance(created, mcp_tasks.Made) and isinstance(self.link, ConnectedLink):
            cancel_task(self.link, created.facts.id)
        self.on_failed(mcp_tasks.bad_task("a task that was not asked for"), Outcome.ERROR)


def make_taskless(
    caller: Caller, client_id: bytes, method: str, params: dict[str, Any], meta: dict[str, Raw], *others: Any
) -> Taskless:
    """Create a tool call for a connection that belongs to one user. The call tells the server that the client does not
    support tasks.
    """
    if META_CAPABILITIES in meta and mcp_tasks.declares_tasks(meta[META_CAPABILITIES]):
        meta = {**meta, META_CAPABILITIES: mcp_tasks.without_tasks(meta[META_CAPABILITIES])}
        params["_meta"] = meta
    return Taskless(caller, client_id, method, params, meta, *others)


class TaskAsking(Call, eq=False, kw_only=True):
    """Request of a client about an existing task, such as tasks/get."""

    tasks: Tasks
    task: Task

    @property
    def waits_forever(self) -> bool:
        """Return whether the call waits for a task's result, and so has no deadline."""
        return self.method == TASKS_RESULT

    def on_response(self, response: Response, era: Era) -> None:
        if self.done:
            return
        if response.error:
            super().on_response(Response(response.id, response.result, self._explain(response.error)), era)
        elif isinstance(result := self._name_task(response.result), Refusal):
            self.on_failed(result, Outcome.ERROR)
        else:
            super().on_response(Response(response.id, result, response.error), era)

    def _name_task(self, result: Raw) -> Raw | Refusal:
        task = self.task
        rename = partial(self.tasks.maybe_ours, task)
        if isinstance(members := mcp_tasks.renamed_answer(result, self.method, task.theirs, rename), str):
            return mcp_tasks.bad_task(members)
        task.connection = task.link.connection
        facts = mcp_tasks.read_task(members, task.era) if "status" in members and "taskId" in members else ""
        if not isinstance(facts, str):
            self.tasks.heard(task, facts, members if task.era is Era.LEGACY else None)
        return Raw(encode_value(members))

    def _explain(self, error: Raw) -> Raw:
        """Return the error that is sent to the client when its request about a task has failed.

        It says that the task is lost if the server may have forgotten the task while it was disconnected.
        """
        task = self.task
        if task.connection == task.link.connection or code_of(error) != INVALID_PARAMS:
            return error
        self.tasks.lost(task)
        message = codec.find_string((decode_object(error) or {}).get("message")) or "no reason given"
        return Raw(error_body(mcp_tasks.lost_task(message[:200])))


def cancel_task(link: ConnectedLink, theirs: str) -> None:
    """Cancel a task at its server, because no client knows its id. Do not wait for the server's answer."""
    params: dict[str, Any] = {"taskId": theirs}
    if link.modern:
        link.ask(TASKS_CANCEL, {**params, "_meta": TASKS_META}, modern_head(TASKS_CANCEL, theirs))
    else:
        link.ask(TASKS_CANCEL, params)


def code_of(error: Raw) -> RefusalCode | None:
    members = decode_object(error) or {}
    try:
        return find_code(decode_value(members["code"]))
    except (KeyError, CodecError):
        return None
