"""Executions of agents: the state, the current step, what the execution waits for, and notifications for the next
report.

Executions are kept in memory and written to disk within a second. After a restart no execution continues: running
executions have failed, and pending ones are cancelled. Blocks are stored separately (`agents`), because they must
survive a restart.

A person confirms dangerous operations inside an execution, and the agent never gets the token. Outside of an execution,
a caller receives a token and confirms the operation itself. Inside an execution, only operators see the token: the
operation waits as an approval, the next directives say so, and once a person has approved it, the agent repeats the
call and it runs. A CREATE operation with these parameters is approved for the execution, every other operation for one
call (C.gate-1, 8.7.3).

A step grant has the names that an agent may call after it reported a step, each once. A hint is prose, so only names in
it can be enforced. A call matches if any name of its tool is granted (alias, qualified, local, original or operation
name), or if every operation in it is granted. A grant that a person approved has the names of the calls that they were
shown. Every call is judged by its own name and arguments (`watch`), whoever approved its step.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from posixpath import normpath
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from interlock.aql.protocol.model import TERMINAL, Category, ExecutionStatus, may_move, state_answer
from interlock.aql.protocol.tokens import digest_of
from interlock.catalog.catalog import LiveNamespace, Namespace
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, ViewKey
from interlock.core.clock import Clock, rfc3339
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import PROMPTS_GET, RESOURCES_READ, TOOLS_CALL
from interlock.safety.agents import LOCAL, AgentKey, agent_key
from interlock.safety.protocol import evaluation as protocol
from interlock.safety.protocol.evaluation import Evaluation, Hint, normalise
from interlock.store.ports import KeyValue, StoreError
from interlock.wire.jsonrpc.codec import decode_array, decode_object, find_string

VIEWS_MAX: Final = 16
WATCHED: Final = frozenset((TOOLS_CALL, RESOURCES_READ, PROMPTS_GET))  # AQL-8.6.3-1: completion acts on nothing
_NO_ITEMS: Final = Raw(b"[]")

JsonObject = dict[str, Any]
CallIdentity = tuple[bytes, float]
OperationName = Callable[[Route], str | None]
LiftedNames = Callable[[Route], Mapping[str, str]]


def arguments_of(call: Call) -> Raw:
    arguments: Raw = call.params.get("arguments", RAW_EMPTY)
    return arguments


def identity_of(call: Call) -> CallIdentity:
    """Return a value that identifies a call, however often the guard checks it."""
    return call.client_id, call.started


class CallNames(NamedTuple):
    """Names by which a grant may refer to the target of one call."""

    of_tool: frozenset[str]
    of_items: tuple[frozenset[str], ...] = ()  # of each operation in it: all have to be granted

    @property
    def all(self) -> frozenset[str]:
        return self.of_tool.union(*self.of_items)


class StepGrant:
    """Permission that an agent gets by reporting a step: each name in the report may be called once."""

    __slots__ = ("_used", "digest", "is_approved", "names", "text")

    def __init__(
        self, names: frozenset[str], *, is_approved: bool = False, text: str = "", digest: str | None = None
    ) -> None:
        """Create a grant for `names`. `is_approved` means that a person was shown these names and approved them.

        `text` is the normalized hint that the person read. With `digest`, the person was shown the arguments too, and
        only a call with these arguments may pass.
        """
        self.names = names
        self.is_approved = is_approved
        self.text = text
        self.digest = digest
        self._used: set[CallIdentity] = set()

    def has_shown(self, run_text: str | None) -> bool:
        """Return whether the person who approved this grant has seen the text that the call runs, such as a command."""
        return self.digest is not None or (run_text is not None and protocol.has_words(self.text, run_text))

    def may(self, call: Call, names: "CallNames") -> bool:
        if identity_of(call) in self._used:
            return True
        if self.digest is not None and self.digest != digest_of(bytes(arguments_of(call))):
            return False
        if not self.names.isdisjoint(names.of_tool):
            return True
        left = self.names
        for item in names.of_items:
            if left.isdisjoint(item):
                return False
            left -= item  # once each, also within one call
        return bool(names.of_items)

    def use(self, call: Call, names: "CallNames") -> None:
        """Use up the names of a call in this grant. Using them up again for the same call changes nothing."""
        if identity_of(call) not in self._used:
            self._used.add(identity_of(call))  # AQL-8.6.2-1
            self.names -= names.all  # AQL-8.6.2-1


@dataclass(eq=False)
class CallableNames:
    """Lookup of the names that a caller can use in calls. The names are computed once per namespace and kind of caller.

    `operation` returns the name of a tool's operation on the AQL surfaces. `lifted` returns the names of the
    operations behind a tool of an AQL server, keyed by the names that the server uses.
    """

    live: LiveNamespace
    operation: OperationName
    lifted: LiftedNames
    _known: dict[ViewKey, tuple[Namespace, dict[str, tuple[str, ...]]]] = field(default_factory=dict, init=False)

    def forget(self) -> None:
        """Clear the cache, because the operations of an upstream server have changed."""
        self._known.clear()

    def of(self, caller: Caller) -> Mapping[str, tuple[str, ...]]:
        """Return every target that a caller can call, by normalized name. The targets are qualified names of tools and
        prompts, and operations of AQL servers.
        """
        namespace = self.live.current
        view = namespace.view(caller.key)
        cached = self._known.get(view.key)
        if cached is not None and cached[0] is namespace:
            return cached[1]
        names: dict[str, tuple[str, ...]] = {}
        for route in {id(route): route for table in (view.tools, view.prompts) for route in table.values()}.values():
            targets = [(route.qualified, self.of_route(route))]
            targets += [(pair[1], frozenset(map(normalise, pair))) for pair in self.lifted(route).items()]
            for target, spellings in targets:
                for spelling in spellings:
                    names[spelling] = (*names.get(spelling, ()), target)
        if len(self._known) >= VIEWS_MAX:
            self._known.clear()
        self._known[view.key] = namespace, names
        return self._known[view.key][1]

    def of_route(self, route: Route) -> frozenset[str]:
        operation = self.operation(route)
        spelled = (route.qualified, route.alias, route.local, route.original, *((operation,) if operation else ()))
        return frozenset(normalise(name, split=is_split) for name in spelled for is_split in (False, True))

    def of_call(self, call: Call) -> CallNames:
        """Return the names of the target of a call. If the target is a tool of an AQL server, the result also has the
        names of the operations in the call's arguments.
        """
        route = call.route
        if isinstance(route, Route) and (lifted := self.lifted(route)):
            arguments = decode_object(arguments_of(call)) or {}
            several = decode_array(arguments.get("operations", _NO_ITEMS)) or ()
            items = [arguments, *(decode_object(item) or {} for item in several)]
            called = [name for item in items if (name := find_string(item.get("operation"))) is not None]
            of_items = tuple(frozenset(map(normalise, (each, lifted.get(each, each)))) for each in called)
            return CallNames(self.of_route(route), of_items)
        if isinstance(route, Route):
            return CallNames(self.of_route(route))
        prompt = None
        if call.method == PROMPTS_GET:
            prompt = self.live.current.view(call.caller.key).find_prompt(call.target)
        if prompt is not None:
            return CallNames(self.of_route(prompt))
        return CallNames(frozenset((normalise(call.target), normalise(plain_uri(call.target)))))

    def named_by(self, hint: Hint, caller: Caller) -> frozenset[str]:
        """Return the names in an agent's report that the caller can call. URIs in the report are always included,
        because each may be the URI of a resource.
        """
        return (hint.names & self.of(caller).keys()) | frozenset(name for name in hint.names if "://" in name)

    def calls_in(self, hint: Hint, caller: Caller) -> tuple[str, ...]:
        """Return the targets that an agent's report names, as they are shown to the person who approves it: tools,
        prompts, operations and URIs.
        """
        callable_names = self.of(caller)
        calls = {call for name in self.named_by(hint, caller) for call in callable_names.get(name, (name,))}
        return tuple(sorted(calls))


def plain_uri(uri: str) -> str:
    """Return a URI without percent-encoding and dot segments, so that patterns match it."""
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri
    plain = unquote(unquote(rest))
    host, slash, path = plain.partition("/")
    return f"{scheme}{mark}{host}{normpath(slash + path) if slash else ''}"


SESSION: Final = "CONFIRM_SESSION"
SINGLE_USE: Final = "CONFIRM_SINGLE_USE"
HELD_MAX: Final = 50  # of one execution


class HeldOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of an agent that waits for a person. `digest` identifies its parameters, so that only the approved
    parameters can run.
    """

    operation: str
    digest: str
    category: Category
    danger: str
    reasons: tuple[str, ...]
    params: Any
    at: float

    @property
    def level(self) -> str:
        """Return the permission level that the operation needs (8.7.3)."""
        return {Category.READ: "AUTO_APPROVE", Category.CREATE: SESSION}.get(self.category, SINGLE_USE)

    @property
    def key(self) -> tuple[str, str]:
        return self.operation, self.digest


@dataclass(eq=False)
class HeldOperations:
    """The operations of one execution that need a person's approval: those that wait for it, by the id of the approval,
    and those that have it.
    """

    waiting: dict[str, HeldOperation] = field(default_factory=dict)
    _released: set[tuple[str, str]] = field(default_factory=set, init=False)

    def find_waiting(self, held: HeldOperation) -> str | None:
        """Return the id of the approval for which this operation already waits, or None if it does not wait."""
        return next((id for id, waiting in self.waiting.items() if waiting.key == held.key), None)

    def wait(self, id: str, held: HeldOperation) -> None:
        while len(self.waiting) >= HELD_MAX:
            del self.waiting[next(iter(self.waiting))]
        self.waiting[id] = held

    def settle(self, id: str, *, is_yes: bool) -> HeldOperation | None:
        """Remove and return the operation that waited for a decided approval, or return None for an unknown id. With
        `is_yes`, the operation may now run.
        """
        held = self.waiting.pop(id, None)
        if held is not None and is_yes:
            self._released.add(held.key)
        return held

    def is_released(self, held: HeldOperation) -> bool:
        """Return whether a person has approved the operation, and the approval is not used up."""
        return held.key in self._released

    def use(self, held: HeldOperation) -> None:
        """Use up a person's approval of an operation that now runs. An approval of the whole execution stays valid."""
        if held.level != SESSION:
            self._released.discard(held.key)


log = logging.getLogger("interlock.safety")

BUCKET: Final = "executions"
FLUSH_S: Final = 1.0
ENDED_MAX: Final = 10_000
NOTICES_MAX: Final = 100  # that one agent is still to be told; the oldest is dropped

_S = ExecutionStatus
_LOST: Final = {"code": "INTERNAL_ERROR", "message": "The node stopped while the execution was running"}

Owner = tuple[str, int]  # the principal, and the session of its client where it has one
STDIO: Final = "stdio"


def find_owner(caller: Caller) -> Owner | None:
    """Return the owner of a caller's executions: its principal, and its session if it has one. Return None if the
    caller cannot be identified (AQL-X-3).
    """
    name = caller.principal.name
    if caller.calls is not None:  # AQL-2.3.5-2: of this session, which copies of the caller share
        return name, id(caller.calls)
    if name != LOCAL and not caller.principal.stranger:
        return name, 0
    return (name, id(caller)) if caller.via == STDIO else None


class StoredExecution(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of an execution."""

    id: str
    principal: str
    name: str
    status: ExecutionStatus
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    error: dict[str, Any] | None = None
    steps: int = 0
    result: dict[str, Any] | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of an agent that lasts until a step is approved or a challenge is answered. `approval_id` is empty until
    a person is asked.
    """

    evaluation: Evaluation
    shown: JsonObject  # to the person, however often they are asked
    grant: StepGrant | None = None  # what the agent may do after the approval
    approval_id: str = ""
    is_verified_by_code: bool = False
    at: float = 0.0


class Execution:
    """A run of an agent, from start to end. The owner is a principal, with its session if it has one."""

    def __init__(self, owner: Owner, name: str, now: float, caller: Caller | None) -> None:
        self.id = f"exec_{secrets.token_hex(16)}"
        self.owner = owner
        self.caller = caller  # kept, so that the number of a session is not given to another
        self.session_id = None if caller is None else caller.aql
        self.result: dict[str, Any] | None = None  # of a completed one
        self.name = name
        self.agent = agent_key(owner[0], name)
        self.status = _S.PENDING
        self.created_at = self.seen_at = now
        self.started_at: float | None = None
        self.finished_at: float | None = None
        self.error: dict[str, Any] | None = None
        self.ended_because: str | None = None
        self.is_refused = False  # its start was denied, or not approved in time
        self.start_id: str | None = None  # of the approval of its start
        self.steps = 0  # reported
        self.pause: Pause | None = None
        self.grants: list[StepGrant] = []
        self.held = HeldOperations()
        self.notices: list[protocol.AgentNotification] = []  # to be told once

    @property
    def approval_ids(self) -> list[str]:
        """Return the ids of all approvals of this execution that may wait for a person."""
        paused = self.pause.approval_id if self.pause is not None else None
        return [id for id in (self.start_id, paused, *self.held.waiting) if id]

    @property
    def principal(self) -> str:
        return self.agent.principal

    @property
    def is_live(self) -> bool:
        return self.status not in TERMINAL

    def move(
        self, to: ExecutionStatus, now: float, *, error: JsonObject | None = None, result: JsonObject | None = None
    ) -> bool:
        """Change the status. Return False if the current status does not allow this change."""
        if not may_move(self.status, to):  # AQL-8.4.2-2
            return False
        self.status = to
        if to is _S.RUNNING:
            self.started_at = now
        else:
            self.finished_at, self.error, self.result = now, error, result
            self.grants, self.notices, self.pause, self.caller = [], [], None, None
        return True

    def tell(
        self, type: protocol.NotificationType, message: str, now: float, metadata: protocol.Metadata | None = None
    ) -> None:
        self.notices.append(protocol.AgentNotification(type, message, rfc3339(now), metadata))
        del self.notices[:-NOTICES_MAX]

    def answer(self) -> dict[str, Any]:
        started_at = None if self.started_at is None else rfc3339(self.started_at)
        finished_at = None if self.finished_at is None else rfc3339(self.finished_at)
        answer = state_answer(self.id, self.status, started_at=started_at, finished_at=finished_at, error=self.error)
        return answer if self.result is None else {**answer, "result": self.result}


@dataclass(eq=False)
class Executions:
    """The executions of a node, by owner and id. Ended executions are kept for `keep_s` seconds, so that clients can
    still query them.
    """

    kv: KeyValue
    clock: Clock
    keep_s: float
    by_owner: dict[Owner, list[Execution]] = field(default_factory=dict, init=False)  # live ones
    _by_id: dict[str, Execution] = field(default_factory=dict, init=False)
    _last: dict[tuple[Owner, AgentKey], Execution] = field(default_factory=dict, init=False)  # also one that is over
    _changed: dict[str, Execution] = field(default_factory=dict, init=False)

    async def open(self) -> None:
        """Load the executions from the store, and end those that were still running or pending. Raise StoreError if the
        store fails.
        """
        now = self.clock.wall()
        for entry in await self.kv.entries(BUCKET, now):
            try:
                stored = msgspec.json.decode(entry.value, type=StoredExecution)
            except msgspec.DecodeError:
                log.error("an execution cannot be read and is left out: %s", entry.key)
                continue
            execution = Execution((stored.principal, 0), stored.name, stored.created_at, None)
            execution.id, execution.status, execution.steps = stored.id, stored.status, stored.steps
            execution.started_at, execution.finished_at = stored.started_at, stored.finished_at
            execution.error, execution.result = stored.error, stored.result
            if execution.move(_S.FAILED, now, error=_LOST) or execution.move(_S.CANCELLED, now):
                self._changed[execution.id] = execution
            self._by_id[execution.id] = execution
        await self.flush()

    def add(self, execution: Execution) -> None:
        self._by_id[execution.id] = execution
        self.by_owner.setdefault(execution.owner, []).append(execution)
        self._last[execution.owner, execution.agent] = execution
        self.note(execution)
        if len(self._by_id) > ENDED_MAX:
            ended = [candidate for candidate in self._by_id.values() if not candidate.is_live]
            for old in ended[: ENDED_MAX // 10]:
                self._by_id.pop(old.id)
                self._last.pop((old.owner, old.agent), None)

    def note(self, execution: Execution) -> None:
        """Mark an execution as changed, so that it is written to the store within a second."""
        self._changed[execution.id] = execution
        if not execution.is_live and execution in (mine := self.by_owner.get(execution.owner, [])):
            mine.remove(execution)
            if not mine:
                del self.by_owner[execution.owner]

    def find(self, id: str) -> Execution | None:
        """Return an execution by its id, whoever owns it. Return None if the id is unknown or the
        retention time is over.
        """
        execution = self._by_id.get(id)
        finished_at = None if execution is None else execution.finished_at
        is_kept = finished_at is None or self.clock.wall() < finished_at + self.keep_s
        return execution if is_kept else None

    def find_last(self, owner: Owner, agent: AgentKey) -> Execution | None:
        return self._last.get((owner, agent))

    def find_by_approval(self, id: str) -> Execution | None:
        return next((execution for execution in self.live() if id in execution.approval_ids), None)

    def live(self) -> list[Execution]:
        return [execution for mine in self.by_owner.values() for execution in mine]

    def all(self) -> list[Execution]:
        return sorted(self._by_id.values(), key=lambda execution: (execution.created_at, execution.id))

    def live_of(self, agent: AgentKey) -> list[Execution]:
        return [execution for execution in self.live() if execution.agent == agent]

    async def flush(self) -> None:
        changed, self._changed = self._changed, {}
        for id, execution in changed.items():
            ttl_s = None if execution.is_live else self.keep_s
            stored = msgspec.convert(execution, StoredExecution, from_attributes=True)
            try:
                await self.kv.put(BUCKET, id, msgspec.json.encode(stored), self.clock.wall(), ttl_s=ttl_s)
            except StoreError as refused:
                log.warning("an execution cannot be written down: %s; tried again", refused)
                self._changed.setdefault(id, execution)
                return
