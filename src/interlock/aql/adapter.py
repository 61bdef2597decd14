"""The automatic adapter, which presents the namespace as MCP-AQL operations. Each caller gets the operations of the
tools in its view. There is one adapter per node.
"""

import secrets
import uuid
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, Final

from msgspec import Raw
from msgspec.structs import asdict

from interlock.aql.lifted_servers import LiftedServers
from interlock.aql.loop_operations import LoopOperations
from interlock.aql.operation_index import (
    ENTRIES_SPARE,
    INTROSPECTION,
    LiveOperationNames,
    OperationEntry,
    OperationIndex,
    OperationNames,
)
from interlock.aql.protocol.classification import CategoryVerdict
from interlock.aql.protocol.envelope import AnswerWarning
from interlock.aql.protocol.families import LOOP_PROFILE, PROFILES, AqlEndpoints, Mode, Profile, custom_profile
from interlock.aql.protocol.introspection import protocol_types
from interlock.aql.protocol.model import SPEC_VERSION, AqlOperation, TypeDeclaration, operation_name, reserved_names
from interlock.aql.protocol.search import folded
from interlock.aql.protocol.tokens import ConfirmationTokens, TokenLives, TokenNote
from interlock.catalog.catalog import Catalog, Namespace
from interlock.catalog.routes import Route
from interlock.config.plan import AqlDangerPlan, Plan
from interlock.core.audit_record import AuditRecord, SessionVia
from interlock.core.calls.caller import Caller, ViewKey
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.dispatch.absent_tools import AbsentTool
from interlock.dispatch.dispatch import Dispatch
from interlock.links.link import Link
from interlock.safety.executions import STDIO
from interlock.wire.jsonrpc.codec import find_string


def token_lives(plan: AqlDangerPlan) -> TokenLives:
    """Return the configured lifetimes of confirmation tokens."""
    return TokenLives(**asdict(plan.token_s), skew_s=plan.skew_s)


INDEXES_MAX: Final = 64  # kinds of callers whose operations are kept; beyond, all are built again
WARNED_MAX: Final = 1000  # of one session; beyond, warnings are repeated
LABEL_META: Final = "dev.interlock/aql-label"
LABEL_CHARS_MAX: Final = 100


@dataclass(eq=False)
class AqlAdapter:
    """The state that all AQL surfaces of a node share: operations and their names, sessions, and confirmation tokens.

    The operations of a caller depend on its view of the namespace. There is one index for each view, which is kept
    until the namespace, the native operations or the configuration change. Views share the entries of their indexes, so
    a second kind of caller costs little.

    `dispatch` asks AQL servers below this node for their operations; if it is None, they are not asked.
    """

    catalog: Catalog
    names: LiveOperationNames
    recorder: Recorder
    clock: Clock
    loop: LoopOperations
    dispatch: InitVar[Dispatch | None] = None
    _entries: dict[tuple[Route, str], OperationEntry] = field(default_factory=dict)
    _indexes: dict[ViewKey, tuple[Namespace, int, OperationIndex]] = field(default_factory=dict)
    _endpoints: dict[Mode, tuple[Plan, AqlEndpoints]] = field(default_factory=dict)

    def __post_init__(self, dispatch: Dispatch | None) -> None:
        self._current, self._native = self.names.current, self.names.native
        self._plan = self.plan
        lives = token_lives(self.plan.aql.danger)
        self.tokens = ConfirmationTokens(self.clock.wall, partial(secrets.token_urlsafe, 32), lives, self._record_token)
        self.lifted_servers = LiftedServers(dispatch, self.names.lifted)
        self._absent_tools = dispatch.absent_tools if dispatch is not None else None
        self.names.lifted.changed.subscribe(lambda _: self._forget_indexes())

    @property
    def plan(self) -> Plan:
        return self._current.plan

    def _record_token(self, event: TokenNote) -> None:
        """Record an event of a confirmation token in the audit log."""
        text = f"{event.event} {event.token} of {event.owner}" + (f": {event.reason}" if event.reason else "")
        via = SessionVia("aql", event.owner) if event.owner.startswith("aqls_") else "aql"
        is_refused = event.event in ("TOKEN_REJECTED", "TOKEN_REVOKED")
        self.record(event.principal, via, "aql/token", event.operation, text, is_refused=is_refused)

    def record(self, who: str, via: str, method: str, subject: str, text: str, *, is_refused: bool = False) -> None:
        """Record an event of the AQL surfaces in the audit log. `subject` is an operation or a session."""
        verdict, outcome = ("refused", "refused") if is_refused else ("admitted", "ok")
        at = self.clock.wall()
        self.recorder.add(AuditRecord(at, who, via, method, subject, None, verdict, outcome, reason=text))

    def _forget_indexes(self) -> None:
        self._entries.clear()
        self._indexes.clear()

    # Operations

    def index(self, caller: Caller) -> OperationIndex:
        """Return the operations that a caller may call. This runs for every call; the result is almost always
        cached.
        """
        plan = self._current.plan
        if plan is not self._plan:
            self._plan = plan
            self._forget_indexes()
            self.tokens.lives = token_lives(plan.aql.danger)
        namespace = self.catalog.namespace
        key = namespace.view(caller.key).key  # AQL-2.3.3-2: an index is not for callers with another view
        cached = self._indexes.get(key)
        if cached is not None and (cached[0] is not namespace or cached[1] != self._native.version):  # AQL-2.3.3-2
            cached = None
        if cached is None:
            if len(self._indexes) > INDEXES_MAX:
                self._indexes.clear()
            cached = self._indexes[key] = (namespace, self._native.version, self._make(namespace, caller))
        return cached[2]

    def find_absent(self, caller: Caller, name: str) -> AbsentTool | None:
        """Return the tool that a caller probably means by the operation name `name`, if the tool exists but cannot be
        called now. Otherwise return None.
        """
        if self._absent_tools is None:
            return None
        view, form = self.catalog.namespace.view(caller.key), folded(name)
        for tool in self._absent_tools.all(view):
            if tool.qualified is None:
                if name.startswith(operation_name(f"{tool.segment}.x").removesuffix("x")):
                    return tool
            elif name == operation_name(tool.qualified) or form in (
                folded(tool.original or ""),
                folded(tool.qualified),
            ):
                return tool
        return None

    def _make(self, namespace: Namespace, caller: Caller) -> OperationIndex:
        """Build the index of a caller: introspection, native operations, and the operations of the tools in
        its view.
        """
        names = self.names.names()
        routes = namespace.view(caller.key).tool_routes
        entries = self._native_entries(caller)
        if len(self._entries) > 2 * len(names.by_tool) + ENTRIES_SPARE:
            self._entries.clear()
        self.lifted_servers.look(routes)
        for route in routes:
            lifted, name = self.names.lifted.operations(route), names.by_tool[route.qualified]
            if lifted is None:
                entries.append(self._entry(names, route, name))
            else:
                for upstream, operation in lifted.items():
                    name = self.names.lifted.name(route, upstream, names.taken)
                    entries.append(self._entry(names, route, name, operation, upstream))
        return OperationIndex(entries, names.doubled)

    def _native_entries(self, caller: Caller) -> list[OperationEntry]:
        """Return the entries of `introspect` and of the node's own operations, as far as a caller may see them."""
        shown = (operation for operation in self._native if operation.is_shown(caller))  # AQL-X-5
        natives = (INTROSPECTION, *shown)
        return [OperationEntry(native.declaration.name, native=native, plan=self._plan) for native in natives]

    def _entry(
        self,
        names: OperationNames,
        route: Route,
        name: str,
        lifted: AqlOperation | None = None,
        upstream: str | None = None,
    ) -> OperationEntry:
        entry = self._entries.get((route, name))
        if entry is None:
            rule = names.rules.get(route.qualified)
            entry = OperationEntry(name, route=route, rule=rule, plan=self._plan, lifted=lifted, upstream=upstream)
            self._entries[route, name] = entry
        return entry

    def classified(self, route: Route) -> tuple[str, CategoryVerdict] | None:
        """Return the operation name of a tool, and its category with the rule that determined it.

        Return None for a tool without an operation name, and for an endpoint tool of an AQL server, which is replaced
        by the server's operations.
        """
        names = self.names.names()
        name = names.by_tool.get(route.qualified)
        if name is None or self.names.lifted.operations(route) is not None:
            return None
        return name, self._entry(names, route, name).classification[0]

    def look_below(self, link: Link) -> None:
        """Ask a server for its AQL operations if a person must approve calls of its tools.

        The node then knows which calls the server would refuse, and refuses them before a person is asked to approve
        them.
        """
        routes = self.catalog.tool_routes(link)
        if any(route.is_held for route in routes):
            self.lifted_servers.look(routes)

    # What introspection shows beside operations

    def endpoints(self, mode: Mode) -> AqlEndpoints:
        plan = self._current.plan
        cached = self._endpoints.get(mode)
        if cached is None or cached[0] is not plan:
            endpoints = AqlEndpoints(mode=mode, profile=profile_of(plan), prefix=plan.aql.tool_prefix)
            cached = self._endpoints[mode] = (plan, endpoints)
        return cached[1]

    def types(self) -> list[TypeDeclaration]:
        """Return the types that MCP-AQL itself and the enabled features define (9.1)."""
        aql = self.plan.aql
        return protocol_types(has_danger=aql.danger.enforce, has_fields=aql.field_selection, more=self.loop.types())

    def protocol(self, endpoints: AqlEndpoints, caller: Caller) -> dict[str, Any]:
        """Return the `_protocol` object, which tells a client what this node implements of MCP-AQL (10.2)."""
        aql = self.plan.aql
        is_full = aql.batch and aql.field_selection and aql.mode != "single"  # AQL-10.2-1: both modes (10.1), and these
        members: dict[str, Any] = {
            "version": SPEC_VERSION,
            "conformance": "level-2" if is_full else "level-1",  # AQL-10.2-1
            "mode": endpoints.mode,
            "profile": endpoints.profile.name,
            "capabilities": {
                "batch": aql.batch,
                "field_selection": aql.field_selection,
                **dict.fromkeys(("aggregations", "computed_fields", "pagination", "relationship_queries"), False),
                "warnings": True,
                "confirmation": aql.danger.enforce,
                "dangerous_operations": aql.danger.enforce,
                "execution_safety_loop": self.loop.mode(),  # AQL-8.6.1-3, AQL-8.6.7-2
            },
            "limits": aql.limits.shown(),  # AQL-4.7.5-8
            "concurrency": "fully-concurrent",
            "supports_etag": False,
            "max_concurrent_requests": self.plan.limits.calls_in_flight,
        }
        if caller.aql is not None:
            members["session_id"] = caller.aql
        if (safety := self.loop.protocol()) is not None:
            members["safety"] = safety
        return members

    # Sessions

    def session_of(self, caller: Caller, meta: Mapping[str, Raw] | None = None) -> str | None:
        """Return the session id of a client, and create the session on first use (2.3.5). Return None for a client
        without a session (stateless HTTP).

        `meta` is the `_meta` of the client's request, which may contain a label for the audit log.
        """
        if caller.aql is None and (caller.calls is not None or caller.via == STDIO):
            caller.begin_aql_session(f"aqls_{uuid.uuid4()}")
            label = find_string((meta or {}).get(LABEL_META))
            self._note_session(caller, "began" if label is None else f"began, labelled {label[:LABEL_CHARS_MAX]}")
        return caller.aql

    def owner(self, caller: Caller) -> str:
        """Return the id to which the caller's tokens are bound: its session or, without a session, its principal."""
        return self.session_of(caller) or f"principal:{caller.principal.name}"

    def end_session(self, caller: Caller, reason: str, *, is_graceful: bool) -> None:
        """End the AQL session of a caller and remove its state (2.3.3)."""
        if caller.aql is not None:
            self.tokens.end(caller.aql)
            self._note_session(caller, f"{'graceful' if is_graceful else 'abrupt'}: {reason}")

    def _note_session(self, caller: Caller, text: str) -> None:
        self.record(caller.principal.name, caller.via, "aql/session", caller.aql or "", text)

    def unsaid(self, caller: Caller, warnings: tuple[AnswerWarning, ...]) -> tuple[AnswerWarning, ...]:
        """Return the warnings that this session has not received yet. Without a session, return all of them (2.3.3)."""
        if caller.aql is None:
            return warnings
        sent = caller.warned
        fresh = tuple(warning for warning in warnings if (warning.code, warning.message) not in sent)  # AQL-2.3.3-4
        if len(sent) < WARNED_MAX:
            sent.update((warning.code, warning.message) for warning in fresh)  # AQL-2.3.3-4
        return fresh


class LoopAdapter(AqlAdapter):
    """An adapter that presents only the operations of the safety loop, and no tools of the namespace.

    A client that uses other servers directly can connect to this adapter in addition, so that its agent is monitored.
    """

    def _make(self, namespace: Namespace, caller: Caller) -> OperationIndex:
        """Build the index of a caller: introspection and the operations of the safety loop."""
        entries = [entry for entry in self._native_entries(caller) if entry.name in reserved_names()]
        return OperationIndex(entries, {})

    def endpoints(self, mode: Mode) -> AqlEndpoints:
        return AqlEndpoints(mode=mode, profile=LOOP_PROFILE, prefix=self.plan.aql.tool_prefix)


def profile_of(plan: Plan) -> Profile:
    """Return the configured profile, which assigns operations to endpoint tools. Raise ValueError if the profile is
    invalid; checking the configuration reports this earlier.
    """
    aql = plan.aql
    if not aql.families:
        return PROFILES.get(aql.profile, PROFILES["crude"])
    name = aql.profile if aql.profile not in PROFILES else "custom"
    profile = custom_profile(name, aql.families)
    if isinstance(profile, str):
        raise ValueError(profile)
    return profile
