"""Tasks of both eras: `tasks/*` of 2025-11-25 and the extension `io.modelcontextprotocol/tasks` of 2026-07-28.

A task has one id at the server and another at the client, because two servers may use the same id. This module finds
the ids in messages and replaces them; every other member keeps its bytes and its place. It also knows which servers
offer tasks, which clients accept them, and the refusals about tasks. The two eras are different protocols: no task
crosses from one to the other, and a client that asks for one across eras is told which era it needs.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.mcp import methods
from interlock.mcp.meta import is_object
from interlock.mcp.methods import Era
from interlock.wire import refusal
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_value, encode_value, find_string
from interlock.wire.refusal import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_CAPABILITY, Refusal, RefusalCode

ID_BYTES_MAX: Final = 1024  # of a task; kept for as long as the task, and repeated in a header
TERMINAL: Final = frozenset(("completed", "failed", "cancelled"))

Rename = Callable[[str], str | None]  # the id on the other side; None where there is none

_REVISION: Final = {Era.LEGACY: methods.LATEST_LEGACY, Era.MODERN: methods.LATEST_MODERN}
_TTL: Final = {Era.LEGACY: "ttl", Era.MODERN: "ttlMs"}
_POLL: Final = {Era.LEGACY: "pollInterval", Era.MODERN: "pollIntervalMs"}
_MARK: Final = methods.META_TASK.encode()


class TaskFacts(msgspec.Struct, frozen=True):
    """The properties of a task that the gateway has to remember."""

    id: str
    status: str
    ttl_s: float | None  # None: unlimited, or nothing that can be understood
    poll_s: float | None


class Made(msgspec.Struct, frozen=True):
    """The result with which a server tells that it runs a call as a task."""

    facts: TaskFacts
    result: dict[str, Any]
    task: dict[str, Any]  # the task in it: the result itself in 2026-07-28

    def rename_task(self, ours: str, rename: Rename) -> bytes:
        """Encode the result with the gateway's id `ours` for the task. `rename` returns the gateway's ids of other
        tasks that the result mentions.
        """
        self.task["taskId"] = Raw(encode_value(ours))
        if self.task is not self.result:
            self.result["task"] = self.task
        rename_related(self.result, rename)
        return encode_value(self.result)


# Reading and renaming


def read_task(members: dict[str, Any], era: Era) -> TaskFacts | str:
    """Read the properties of a task from the members of a JSON object. Return a text that says what is wrong if they do
    not describe a task.
    """
    if (raw := members.get("taskId")) is None or len(raw) > ID_BYTES_MAX:
        return f"a task without an id of at most {ID_BYTES_MAX} bytes"
    if not (task_id := find_string(raw)):
        return "a task whose id is no text"
    status = find_string(members.get("status")) or ""
    return TaskFacts(task_id, status, find_seconds(members.get(_TTL[era])), find_seconds(members.get(_POLL[era])))


def read_made(result: Raw, era: Era) -> Made | str | None:
    """Read the task that a server created for a call. Return a text with the reason if the task is unusable, or None if
    the result is not a task.
    """
    if b'"task"' not in bytes(result):
        return None
    members: dict[str, Any] | None = decode_object(result)
    if members is None:
        return None
    if era is Era.MODERN:
        if find_string(members.get("resultType")) != "task":
            return None
        task: dict[str, Any] | None = members
    else:
        if "task" not in members:
            return None
        task = decode_object(members["task"])
    if task is None:
        return "a task that is no object"
    facts = read_task(task, era)
    return facts if isinstance(facts, str) else Made(facts, members, task)


def renamed_answer(result: Raw, method: str, theirs: str, rename: Rename) -> dict[str, Any] | str:
    """Replace the server's task ids in an answer about the task `theirs` by the ids that the client uses. Return a text
    that says what is wrong if the answer is malformed or about another task.
    """
    members: dict[str, Any] | None = decode_object(result)
    if members is None:
        return "a result that is no object"
    if method == methods.TASKS_GET and "taskId" not in members:
        return "a result without a task"
    if method != methods.TASKS_RESULT and "taskId" in members:  # there the result is the tool's own
        if find_string(members["taskId"]) != theirs:
            return "a result about another task than was asked for"
        members["taskId"] = Raw(encode_value(rename(theirs)))
    rename_related(members, rename)
    is_related = _MARK in bytes(members.get("result", b""))
    inner: dict[str, Any] | None = decode_object(members["result"]) if is_related else None
    if method != methods.TASKS_RESULT and inner is not None:
        rename_related(inner, rename)
        members["result"] = inner
    return members


def related_task(params: Raw | bytes) -> str | None:
    """Return the id of the task that a message belongs to according to its `_meta`. Return None if it names no task."""
    if _MARK not in bytes(params):
        return None
    return find_string(_inside(decode_object(params) or {}, "_meta", methods.META_TASK, "taskId"))


def rename_related(members: dict[str, Any], rename: Rename) -> None:
    """Replace the id of the related task in the `_meta` of these members, in place. Remove the key if the receiver does
    not know the task.
    """
    if (raw := members.get("_meta")) is None or _MARK not in bytes(raw):
        return
    meta: dict[str, Any] | None = decode_object(raw)
    if meta is None or methods.META_TASK not in meta:
        return
    if (named := renamed_related(meta[methods.META_TASK], rename)) is not None:
        meta[methods.META_TASK] = named
    else:
        del meta[methods.META_TASK]
    if meta:
        members["_meta"] = Raw(encode_value(meta))
    else:
        del members["_meta"]


def renamed_related(raw: Raw, rename: Rename) -> dict[str, Any] | None:
    """Return the value of the related-task key in `_meta`, with the id of the task as the receiver knows it. Return
    None if the value is malformed or the receiver does not know the task.
    """
    related: dict[str, Any] | None = decode_object(raw)
    task_id = find_string(related.get("taskId")) if related is not None else None
    other = rename(task_id) if task_id is not None else None
    return None if related is None or other is None else {**related, "taskId": other}


def renamed_in(params: Raw, rename: Rename) -> Raw:
    """Replace the id of the related task in encoded params or an encoded result. Everything else stays unchanged."""
    members: dict[str, Any] | None = decode_object(params) if _MARK in bytes(params) else None
    if members is None:
        return params
    rename_related(members, rename)
    return Raw(encode_value(members))


def find_seconds(raw: Raw | None) -> float | None:
    """Return an encoded number of milliseconds in seconds, or None if it is absent or not a usable number."""
    try:
        ms = decode_value(raw) if raw is not None else None
    except CodecError:
        return None
    return ms / 1000 if isinstance(ms, int | float) and not isinstance(ms, bool) and 0 <= ms < 1e15 else None


# Who offers tasks, and who takes them


def offers_tasks(capabilities: dict[str, Raw], era: Era) -> bool:
    """Return whether a server can run calls as tasks."""
    if era is Era.MODERN:
        return is_object(_inside(capabilities, "extensions", methods.TASKS_EXTENSION))
    return is_object(_inside(capabilities, "tasks", "requests", "tools", "call"))


def offers_cancelling(capabilities: dict[str, Raw]) -> bool:
    """Return whether a legacy server supports cancelling its tasks. Modern servers always do."""
    return is_object(_inside(capabilities, "tasks", "cancel"))


def declares_tasks(capabilities: Raw) -> bool:
    """Return whether a modern client declares that it accepts tasks."""
    if methods.TASKS_EXTENSION.encode() not in bytes(capabilities):
        return False
    return is_object(_inside(decode_object(capabilities) or {}, "extensions", methods.TASKS_EXTENSION))


def without_tasks(capabilities: Raw) -> Raw:
    """Return a modern client's capabilities without the tasks extension."""
    members: dict[str, Any] = decode_object(capabilities) or {}
    extensions = decode_object(members["extensions"]) if "extensions" in members else None
    if extensions is None or extensions.pop(methods.TASKS_EXTENSION, None) is None:
        return capabilities
    return Raw(encode_value({**members, "extensions": extensions}))


def requires_tasks(error: Raw) -> bool:
    """Return whether an error of a modern server means that the server handles the call only as a task, which the
    client does not support.
    """
    if methods.TASKS_EXTENSION.encode() not in bytes(error):
        return False
    members = decode_object(error) or {}
    code = bytes(members.get("code", b""))
    needed = _inside(members, "data", "requiredCapabilities", "extensions", methods.TASKS_EXTENSION)
    return code == b"%d" % refusal.FORMS[MISSING_CAPABILITY].number and needed is not None


# The questions of a legacy server that a client may answer with a task of its own, by the client's capability.
_AS_TASK: Final = {methods.CREATE_MESSAGE: ("sampling", "createMessage"), methods.ELICIT: ("elicitation", "create")}
# What a shared link declares to a legacy server: that some client may. One that does not is answered for.
TAKEN_AS_TASK: Final[dict[str, Any]] = {
    "cancel": {},
    "requests": {kind: {name: {}} for kind, name in _AS_TASK.values()},
}


def takes_as_task(capabilities: dict[str, Raw], method: str) -> bool:
    """Return whether a legacy client accepts this request of a server as a task."""
    path = _AS_TASK.get(method)
    return path is not None and is_object(_inside(capabilities, "tasks", "requests", *path))


def needs_task(item: dict[str, Raw]) -> bool:
    """Return whether a legacy server allows calls of a tool only as tasks."""
    execution = decode_object(item["execution"]) if "execution" in item else None
    return execution is not None and find_string(execution.get("taskSupport")) == "required"


def _inside(members: dict[str, Raw], *path: str) -> Raw | None:
    value: Raw | None = None
    for name in path:
        value = members.get(name)
        members = (decode_object(value) if value is not None else None) or {}
    return value


# Refusals

TASK_UNKNOWN: Final = Refusal(INVALID_PARAMS, "there is no such task", {"reason": "task_unknown"})
TASK_FORGOTTEN: Final = Refusal(
    INVALID_PARAMS,
    "this task id is not of this run of the node: the node was restarted since, and remembers no task from before; "
    "call the tool again",
    {"reason": "task_forgotten"},
)
TASK_REPLACED: Final = Refusal(
    INVALID_PARAMS,
    "the server gave this task's id to a newer task, so it can no longer be asked for; call the tool again",
    {"reason": "task_lost"},
)
TASK_PER_USER: Final = Refusal(
    METHOD_NOT_FOUND,
    'this server knows each user (auth per = "user"), so its tools do not run as tasks; call the tool without a task',
    {"reason": "task_per_user"},
)
NO_ROOM: Final = Refusal(refusal.UNAVAILABLE, "unavailable", {"reason": "too_many_tasks"})
NOT_DECLARED: Final = Refusal(
    MISSING_CAPABILITY,
    f"this needs the client to declare the extension {methods.TASKS_EXTENSION} on the request",
    {"requiredCapabilities": {"extensions": {methods.TASKS_EXTENSION: {}}}},
)


def bad_task(why: str) -> Refusal:
    return Refusal(refusal.INTERNAL_ERROR, f"the server's answer cannot be used: {why}", {"reason": "malformed_answer"})


def lost_task(reason: str) -> Refusal:
    text = f"the connection to this task's server was lost since, and the server no longer knows the task: {reason}"
    return Refusal(INVALID_PARAMS, text, {"reason": "task_lost"})


def tool_across_eras(client: Era) -> Refusal:
    """Return the refusal of a call to a tool that runs only as a task, at a server of another era than the client's."""
    text = "this tool runs only as a task of MCP {theirs}, which a client of {ours} cannot have; use one of {theirs}"
    return _across(client, text, METHOD_NOT_FOUND)


def call_across_eras(client: Era) -> Refusal:
    """Return the refusal of a call that asks for a task at a server of another era than the client's."""
    text = "a server of MCP {theirs} makes no task for a client of {ours}; call the tool without task"
    return _across(client, text, METHOD_NOT_FOUND)


def task_across_eras(client: Era) -> Refusal:
    """Return the refusal of a request about a task that was created by a client of the other era."""
    text = "this is a task of MCP {theirs}, and the client speaks {ours}; ask for it with a client of {theirs}"
    return _across(client, text, INVALID_PARAMS)


def _across(client: Era, text: str, code: RefusalCode) -> Refusal:
    other = Era.MODERN if client is Era.LEGACY else Era.LEGACY
    data = {"reason": "task_across_eras", "client_era": client.value, "server_era": other.value}
    return Refusal(code, text.format(ours=_REVISION[client], theirs=_REVISION[other]), data)
