"""Tasks the other way round (2025-11-25): a server asks a client something as a task, and the client keeps the task.

The link is shared, so a server sees ids of ours for the tasks of all clients. Only the server that asked can ask about
a task, and it ends with the session of its client.
"""

import secrets
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.calls.call import Call, Pending
from interlock.core.calls.caller import AnswerReceiver, Caller, Sink
from interlock.links.connected_link import ConnectedLink
from interlock.mcp.methods import LATEST_MODERN, TASK_STATUS, Era
from interlock.mcp.tasks import TASK_UNKNOWN, Rename, read_made, rename_related, renamed_answer, takes_as_task
from interlock.wire.jsonrpc.codec import Request, decode_object, encode_value, find_string
from interlock.wire.jsonrpc.errors import error_body

KEPT_PER_CLIENT_MAX: Final = 100  # the oldest makes way
EXPECTED_MAX: Final = 10_000  # answers under way that may be tasks, or are about one
_RESULT: Final = b'"result":'


class Background:
    """A client that is asked without a call under way, as a `QuestionOrigin`."""

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
    """A task that a client keeps for a server."""

    __slots__ = ("caller", "id", "link", "theirs")

    def __init__(self, link: ConnectedLink, caller: Caller, theirs: str) -> None:
        self.id = f"il-{secrets.token_urlsafe(18)}"
        self.link = link
        self.caller = caller
        self.theirs = theirs  # as the client calls it


class _Expected(msgspec.Struct, frozen=True):
    """An answer of a client that may be a task, or is about one."""

    link: ConnectedLink
    connection: int
    caller: Caller
    method: str
    task: AskedTask | None


class AskedTasks:
    def __init__(self) -> None:
        self._by_id: dict[str, AskedTask] = {}
        self._of: dict[Caller, dict[str, AskedTask]] = {}  # client -> its own ids
        self._expected: dict[tuple[str, bytes], _Expected] = {}

    def maybe(self, link: ConnectedLink, ours: str) -> AskedTask | None:
        task = self._by_id.get(ours)
        return task if task is not None and task.link is link else None

    def expect(self, link: ConnectedLink, request: Request, caller: Caller) -> str | None:
        """Expect a client to create the task that a server requests, or return why the client cannot."""
        if caller.era is Era.MODERN:
            return f"{request.method} as a task of 2025-11-25 does not cross to a client of MCP {LATEST_MODERN}"
        if not takes_as_task(caller.capabilities, request.method):
            return f"the client does not take {request.method} as a task"
        if not self._expect(link, request, caller, None):
            return "too many clients are being asked"
        return None

    def ask(self, link: ConnectedLink, request: Request, origin: Pending | None) -> None:
        """Pass a server's request about a task to the client that has the task."""
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
        """Return the payload of a client's answer with the task ids that its server uses."""
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
            stored = self._keep(link, expected.caller, created.facts.id)
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

    def _keep(self, link: ConnectedLink, caller: Caller, theirs: str) -> AskedTask:
        mine = self._of.setdefault(caller, {})
        if len(mine) >= KEPT_PER_CLIENT_MAX or theirs in mine:
            oldest = mine.pop(theirs, None) or mine.pop(next(iter(mine)))
            self._by_id.pop(oldest.id, None)
        task = AskedTask(link, caller, theirs)
        self._by_id[task.id] = mine[theirs] = task
        return task
