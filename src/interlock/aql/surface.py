"""The surface that AQL clients use instead of the flat namespace: a few endpoint tools that take operations.

A tools/call of an endpoint tool names an operation. The surface turns it into the tools/call of the tool behind the
operation, in the order that MCP-AQL 3.2 prescribes:

1. read the request,
2. find the operation among those that the caller may call,
3. check that the operation belongs to this endpoint,
4. validate its parameters (check 3 in the order of the guard),
5. demand a confirmation if the operation is dangerous,
6. make the same call that a flat client would make: through the same guard, and with the same argument bytes wherever
   no name needs to be mapped.

There is no second way to a link. Native operations of the node, batches and introspection are answered here. The fronts
also ask the surface for lists, in place of the lists of the flat namespace.
"""

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.adapter import AqlAdapter
from interlock.aql.answers import (
    AnswerDelivery,
    BatchCall,
    Deliver,
    Guidance,
    OperationSink,
    OwnCall,
    native_answer,
    unexpected,
)
from interlock.aql.loop_operations import DECLARATIONS, Acknowledgement, PersonHold
from interlock.aql.operation_index import NativeOperation, OperationContext, OperationEntry, OperationIndex
from interlock.aql.protocol import errors, introspection
from interlock.aql.protocol.classification import LEAST_TRUST
from interlock.aql.protocol.envelope import AnswerWarning, failed, medium_warning, tool_result
from interlock.aql.protocol.errors import AqlFailure, Code
from interlock.aql.protocol.families import INTROSPECT, AqlEndpoints, EndpointTool, Mode, endpoint_tools
from interlock.aql.protocol.field_selection import Selection, read_selection
from interlock.aql.protocol.model import SPEC_VERSION, Danger, TypeDeclaration
from interlock.aql.protocol.requests import BatchRequest, OperationRequest, read_request
from interlock.aql.protocol.results import OperationAnswer
from interlock.aql.protocol.tokens import digest_of
from interlock.aql.protocol.validation import Arguments
from interlock.catalog.catalog import View
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, ClientRequest, ViewKey
from interlock.dispatch.availability import ArrivingCall
from interlock.dispatch.dispatch import Dispatch
from interlock.fronts.lists import SERVER_META, ListCache
from interlock.mcp.meta import PROGRESS_TOKEN
from interlock.mcp.methods import TOOLS_CALL, TOOLS_LIST, Era
from interlock.safety.executions import HeldOperation
from interlock.wire.jsonrpc.codec import decode_object, decode_value, encode_result, encode_value, find_string
from interlock.wire.refusal import Refusal

log = logging.getLogger("interlock.aql")

NAME_SHOWN_MAX: Final = 100
SUGGESTED_MAX: Final = 3
# Keys, quotes and the category of an operation in a list.
ITEM_FRAME_BYTES: Final = 75
# Left for `_protocol` beside the operations of a first page.
PROTOCOL_BYTES: Final = 1500
# Shown with a cut list: the three ways to the rest.
HOW: Final = 'more by {"query":"operations","search":"WORDS"}, "prefix":"SERVER__", or "after":"..." of page_info.next'


def _start(entries: list[OperationEntry], after: str | None) -> int:
    """Return the index at which a page starts: after the last operation of the previous page, even if that operation
    has moved.
    """
    if after is None:
        return 0
    for place, entry in enumerate(entries):
        if entry.name == after:
            return place + 1
    return next((place for place, entry in enumerate(entries) if entry.name > after), len(entries))


# The endpoints change only with the configuration.
LIST_TTL_MS: Final = 3_600_000

INTRODUCTION: Final = (
    "Interlock gathers several MCP servers behind a few tools. Every tool takes an operation and its params; the"
    " operation introspect finds operations by words and shows how each is called."
)
_LOOP_OPERATIONS: Final = frozenset(declaration.name for declaration in DECLARATIONS)
_LOOP_OFF: Final = "The safety loop is disabled here"


class AqlSurface:
    """The dispatcher and the lists for AQL clients, which see a few endpoint tools instead of all tools. There is one
    surface for each mode.

    Prompts, resources, completion and confirmation have no counterpart in MCP-AQL and are passed on unchanged: calls to
    the dispatcher, lists to those of the flat namespace (`flat`).
    """

    unchanging = frozenset({"tools"})

    def __init__(self, dispatch: Dispatch, adapter: AqlAdapter, mode: Mode, flat: ListCache) -> None:
        self.dispatch = dispatch
        self.adapter = adapter
        self._mode: Mode = mode
        self._flat = flat
        self._tasks = BackgroundTasks()  # of native operations
        self._guidance = Guidance(adapter, mode, dispatch.budgets)
        self._listed: tuple[object, bytes] | None = None
        self.view: Callable[[ViewKey], View] = dispatch.view
        self.get_prompt = dispatch.get_prompt
        self.read_resource = dispatch.read_resource
        self.complete = dispatch.complete
        self.confirm = dispatch.confirm

    # Calls

    def call_tool(self, client_request: ClientRequest) -> Call:
        """Start the operation or the batch that a `tools/call` requests, and return the running call.

        The call runs an operation or a batch of an endpoint tool, or refuses an unknown tool.
        """
        caller, meta = client_request.caller, client_request.meta
        name = find_string(client_request.params.get("name"))
        endpoints = self.adapter.endpoints(self._mode)
        tool = endpoints.by_name.get(name or "")
        if tool is None:
            nameless = msgspec.structs.replace(client_request, params={"name": Raw(b'""')}, headers=None)
            return self.dispatch.call_tool(nameless)
        aql = self.adapter.plan.aql
        if caller.aql is None:
            self.adapter.session_of(caller, meta)
        request = read_request(client_request.params.get("arguments"), aql.limits, has_batch=aql.batch)
        if isinstance(request, BatchRequest):
            return BatchCall.start(self, client_request, request, tool)
        if isinstance(request, AqlFailure):
            is_bare = request.code == Code.BATCH_VALIDATION_ERROR.value
            delivery = AnswerDelivery(client_request, aql.limits.response_bytes, is_bare=is_bare)
            return self._fail(client_request, request, delivery)
        is_introspection = request.operation == INTROSPECT
        stopwatch: Callable[[], int] | None = None
        if aql.response_meta and not is_introspection:
            clock, started = self.adapter.clock, self.adapter.clock.now()

            def stopwatch() -> int:
                return int((clock.now() - started) * 1000)

        limit = aql.limits.response_bytes
        deliver = AnswerDelivery(client_request, limit, request.request_id, is_introspection, stopwatch)
        return self.begin(client_request, request, tool, deliver)

    def begin(
        self, client_request: ClientRequest, request: OperationRequest, tool: EndpointTool, deliver: Deliver
    ) -> Call:
        """Start an operation. Its answer is passed to `deliver`, either before this method returns or later.

        An unexpected exception is answered here, because the front has already accepted the request, and a client
        without an answer would wait forever.
        """
        try:
            return self._begin(client_request, request, tool, deliver)
        except Exception:
            return self._fail(client_request, unexpected(f"a request for {request.operation!r}"), deliver)

    def _begin(
        self, client_request: ClientRequest, request: OperationRequest, tool: EndpointTool, deliver: Deliver
    ) -> Call:
        """Find the operation, compare its endpoint, validate its parameters, ask for a confirmation and make the call,
        in this order (3.2).
        """
        caller, meta = client_request.caller, client_request.meta
        index = self.adapter.index(caller)
        entry = index.by_name.get(request.operation)
        if entry is None or request.operation == INTROSPECT:
            later = ArrivingCall(*self.dispatch.call_fields(client_request))
            make = partial(self.begin, client_request, request, tool, deliver)
            if self.dispatch.arrivals.postpone(later, make):
                return later
        if entry is None:  # AQL-8.5.2-1
            because = _LOOP_OFF if request.operation in _LOOP_OPERATIONS else ""
            absent = self.adapter.find_absent(caller, request.operation)
            if absent is not None and absent.qualified is not None:
                members = {"reason": absent.reason, "retry_after_ms": absent.retry_after_ms}
                return self._fail(client_request, errors.internal_error(absent.text, **members), deliver)
            near = index.near(request.operation)
            if absent is not None:  # what is like the name is probably not what was meant
                near, because = [], f"The operations of {absent.segment} are not known: {absent.text}"
            unknown = errors.unknown_operation(request.operation, near, because=because)
            return self._fail(client_request, unknown, deliver)
        if tool.family is not None:
            wrong = self._find_wrong_endpoint(entry, tool)
            if wrong is not None:
                return self._fail(client_request, wrong, deliver)
        if isinstance(deliver, AnswerDelivery):
            deliver.entry = entry
        if request.operation == INTROSPECT:
            if self.adapter.lifted_servers.is_asking:
                call = self._new(client_request, INTROSPECT)
                call.answer_later(self._tasks, self._introspect_settled(caller, request), deliver)
                return call
            return self._answer_at_once(client_request, self._introspect(caller, request), deliver, INTROSPECT)
        checked = self._check(caller, entry, request)
        if isinstance(checked, AqlFailure):
            return self._fail(client_request, checked, deliver, entry.name)
        arguments, selection = checked
        ack = self._acknowledgement(caller, entry, arguments, request)
        if isinstance(ack, AqlFailure):
            return self._fail(client_request, ack, deliver, entry.name)
        if PROGRESS_TOKEN not in meta and request.meta is not None:
            inner = decode_object(request.meta) or {}
            if PROGRESS_TOKEN in inner:
                meta = {**meta, PROGRESS_TOKEN: inner[PROGRESS_TOKEN]}
                client_request = msgspec.structs.replace(client_request, meta=meta)
        if entry.native is not None:
            return self._begin_native(client_request, entry, entry.native, arguments, ack, deliver)
        warnings: tuple[AnswerWarning, ...] = ()
        if arguments.ignored:
            ignored = ", ".join(arguments.ignored)[:200]
            log.warning("%s: strict_mode is off, left out or renamed: %s", entry.name, ignored)
            warnings = self.adapter.unsaid(caller, _warnings(arguments.ignored))
        sink = OperationSink(client_request, deliver, entry, self._guidance, selection, ack, warnings)
        text = arguments.text
        if entry.upstream is not None:
            # The endpoint tool of an AQL server takes the name of the server's own operation.
            text = Raw(b'{"operation":%b,"params":%b}' % (encode_value(entry.upstream), bytes(text)))
        sent = {**client_request.params, "name": entry.tool_name, "arguments": text}
        inner_request = ClientRequest(caller, client_request.client_id, TOOLS_CALL, sent, meta, sink)
        return self.dispatch.call_tool(inner_request, ack=ack)

    async def _introspect_settled(self, caller: Caller, request: OperationRequest) -> OperationAnswer:
        """Answer `introspect` once the AQL servers below this node have listed their operations."""
        await self.adapter.lifted_servers.settle()
        return self._introspect(caller, request)

    def _introspect(self, caller: Caller, request: OperationRequest) -> OperationAnswer:
        """Answer `introspect` (7), which lists and describes the operations that a caller may call. Operations that the
        caller may not see are never mentioned.

        The list of a large catalogue would fill the context of a model before its first call. Therefore a request
        without parameters gets the complete list only up to `WHOLE_MAX` operations. Beyond that, it gets a first page
        that explains how to get the rest. Servers that are still connecting are named, because their operations cannot
        be listed.
        """
        query = introspection.read_query(request, strict=self.adapter.plan.aql.strict_mode)
        if isinstance(query, AqlFailure):
            return OperationAnswer(failure=query)
        endpoints = self.adapter.endpoints(self._mode)
        index = self.adapter.index(caller)
        if query.query == "types":  # AQL-9.2-1
            return OperationAnswer(data=self._types(index, query.name))
        if query.name is not None:
            entry = index.by_name.get(query.name)
            if entry is not None:
                return OperationAnswer(data={"operation": introspection.operation_details(entry.operation, endpoints)})
            near = ", ".join(index.near(query.name)[:SUGGESTED_MAX])
            # The schema of the answer has no place for suggestions, so they are content beside it.
            text = f"There is no operation '{query.name[:NAME_SHOWN_MAX]}'. Did you mean {near}?"
            if (absent := self.adapter.find_absent(caller, query.name)) is not None:
                whose = "" if absent.qualified is not None else f"The operations of {absent.segment} are not known: "
                text = f"The operation '{query.name[:NAME_SHOWN_MAX]}' is not there now. {whose}{absent.text}."
            blocks = (Raw(encode_value({"type": "text", "text": text})),) if near or absent is not None else ()
            return OperationAnswer(data={"operation": None}, blocks=blocks)
        data = self._operations(caller, index, query, endpoints)
        if missing := self.dispatch.arrivals.missing(self.view(caller.key)):
            servers = [{"server": server.server, "state": server.state} for server in missing]
            data["_protocol"]["missing_servers"] = servers
        return OperationAnswer(data=data)

    def _operations(
        self, caller: Caller, index: OperationIndex, query: introspection.IntrospectQuery, endpoints: AqlEndpoints
    ) -> dict[str, Any]:
        """Return one page of the operations that match the query, together with the object `_protocol`."""
        # AQL-X-22: the list itself describes the protocol; pages and searches only say what they add
        is_first = query.search is None and not query.prefix and query.after is None
        protocol: dict[str, Any] = {"version": SPEC_VERSION}
        if is_first:
            protocol = self.adapter.protocol(endpoints, caller)
        entries = index.entries
        if query.prefix:
            entries = [entry for entry in entries if entry.name.startswith(query.prefix)]
        if query.search is not None:
            fitting = index.search(query.search, len(index.entries))
            with_prefix = set(entries) if query.prefix else None
            entries = [entry for entry in fitting if with_prefix is None or entry in with_prefix]
        total = len(entries)
        is_cut = not query.is_paged and total > introspection.WHOLE_MAX
        start = _start(entries, query.after)
        most = query.first or (introspection.PAGE if query.is_paged or is_cut else total)
        page: list[dict[str, str]] = []
        size = 0
        for entry in entries[start : start + most]:
            family = endpoints.profile.family(entry.name, entry.category, entry.family)
            shown = introspection.operation_info(entry.name, entry.category, family, entry.operation.summary)
            size += len(shown["name"]) + len(shown["description"]) + len(shown["endpoint"]) + ITEM_FRAME_BYTES
            if is_cut and page and size > introspection.FIRST_PAGE_BYTES - PROTOCOL_BYTES:
                break
            page.append(shown)
        listed = [index.by_name[shown["name"]] for shown in page]
        levels = {entry.name: entry.danger_word for entry in listed if entry.danger.level >= Danger.DESTRUCTIVE}
        if levels and self.adapter.plan.aql.danger.enforce:
            protocol["danger_levels"] = levels
        surfaces = {  # what the registry of tool surface names says about the tool of an operation (REG-4.2-9)
            entry.name: entry.route.surface.meta
            for entry in listed
            if entry.route is not None and entry.route.surface is not None
        }
        if surfaces:
            protocol["surfaces"] = surfaces
        if query.is_paged or is_cut:
            end = start + len(page)
            info: dict[str, Any] = {"total": total, "returned": len(page)}
            info["next"] = page[-1]["name"] if page and end < total else None
            if is_cut:
                info["how"] = HOW
            protocol["page_info"] = info
        return {"_protocol": protocol, "operations": page}

    def _types(self, index: OperationIndex, name: str | None) -> dict[str, Any]:
        """Return the list of all types, or the details of one type if `name` is set.

        For a large catalogue only the types of the protocol are listed; types of operations can still be requested by
        name.
        """
        types: dict[str, TypeDeclaration] = {declared.name: declared for declared in self.adapter.types()}
        for entry in index.entries if name not in types else ():
            # The types of a tool begin with the name of its operation. Other tools need not be read.
            if name is None:
                is_read = len(index.entries) <= introspection.WHOLE_MAX
            else:
                is_read = entry.native is not None or name.lower().startswith(entry.name.replace("_", ""))
            for declared in entry.operation.types if is_read else ():
                types.setdefault(declared.name, declared)
        if name is None:
            return {"types": [declared.info() for declared in types.values()]}
        return {"type": types[name].details() if name in types else None}  # AQL-9.2-1

    def _find_wrong_endpoint(self, entry: OperationEntry, tool: EndpointTool) -> AqlFailure | None:
        """Return the failure for an operation that was sent to the endpoint of another family. Return None if the
        endpoint is right.
        """
        endpoints = self.adapter.endpoints(self._mode)
        family = endpoints.profile.family(entry.name, entry.category, entry.family)
        if family == tool.family:  # AQL-6.2-2 and -3
            return None
        expected = endpoints.tool_of_family(family)
        return errors.endpoint_mismatch(entry.name, family, expected, tool.family, tool.name)  # AQL-6.2-3

    def _check(
        self, caller: Caller, entry: OperationEntry, request: OperationRequest
    ) -> tuple[Arguments, Selection | None] | AqlFailure:
        """Return the validated arguments and the selected fields, or the failure if the request is invalid."""
        aql = self.adapter.plan.aql
        if entry.treatment == "deny":
            level, reasons = entry.danger.level, entry.danger.reasons
            self._note_danger(caller, entry, "denied")
            return errors.danger_denied(entry.name, level.word, entry.trust, LEAST_TRUST[level], reasons)
        arguments = entry.validator.validate(request, strict=aql.strict_mode)
        if isinstance(arguments, AqlFailure):
            return arguments
        if "fields" not in arguments.own:
            return arguments, None
        selection = read_selection(arguments.own["fields"])
        return selection if isinstance(selection, AqlFailure) else (arguments, selection)

    def _acknowledgement(
        self, caller: Caller, entry: OperationEntry, arguments: Arguments, request: OperationRequest
    ) -> Acknowledgement | PersonHold | AqlFailure | None:
        """Return the hold that refuses a dangerous call until it is confirmed. Return None if the call needs no
        confirmation, and a failure if its token is invalid.

        A call that the gate holds is confirmed there and needs no token (C.danger-3).
        """
        if entry.treatment != "confirm" or (entry.route is not None and entry.route.gated):
            if entry.danger.level >= Danger.DESTRUCTIVE:
                self._note_danger(caller, entry, "allowed" if entry.treatment != "confirm" else "left to the gate")
            return None
        has_secret = any(parameter.sensitive for parameter in entry.operation.parameters)
        digest = digest_of(bytes(arguments.text))
        held = HeldOperation(
            operation=entry.name,
            digest=digest,
            category=entry.category,
            danger=entry.danger.level.word,
            reasons=entry.danger.reasons,
            params=None if has_secret else arguments.text,
            at=self.adapter.clock.wall(),
        )
        person = self.adapter.loop.find_person_hold(caller, entry.route, held)
        if person is not None:
            self._note_danger(caller, entry, "confirmed by a person" if not person.is_asked_first else "denied, held")
            return person
        note = partial(self._note_danger, caller, entry)
        token = _token(arguments, request)
        if isinstance(token, AqlFailure):
            note(f"denied, {token.code}")
            return token
        owner, principal = self.adapter.owner(caller), caller.principal.name
        return Acknowledgement(self.adapter.tokens, entry, owner, principal, digest, token, note)

    def _note_danger(self, caller: Caller, entry: OperationEntry, outcome: str) -> None:
        """Record an attempt to run a dangerous operation in the audit log, with its outcome (C.danger-5)."""
        text = f"danger {entry.danger.level.word}, trust {entry.trust}: {outcome}"
        who, is_refused = caller.principal.name, outcome.startswith("denied")
        self.adapter.record(who, caller.via, "aql/danger", entry.name, text, is_refused=is_refused)

    def _begin_native(
        self,
        client_request: ClientRequest,
        entry: OperationEntry,
        native: NativeOperation,
        arguments: Arguments,
        ack: Acknowledgement | PersonHold | None,
        deliver: Deliver,
    ) -> Call:
        """Start an operation of the node itself. The audit log gets no arguments if one of them is secret."""
        if ack is not None and ack.acknowledge() is not None:
            return self._fail(client_request, ack.failure, deliver, entry.name)
        has_secret = any(parameter.sensitive for parameter in entry.operation.parameters)
        params = {"name": client_request.params.get("name"), "arguments": None if has_secret else arguments.text}
        call = self._new(msgspec.structs.replace(client_request, params=params), entry.name)
        context = OperationContext(
            operation=native.declaration,
            caller=call.caller,
            session_id=self.adapter.session_of(call.caller),
            tell_progress=call.tell_progress,
        )
        if call.caller.calls is not None:
            call.caller.calls[call.client_id] = call
        call.answer_later(self._tasks, native_answer(native, context, decode_value(arguments.text)), deliver)
        return call

    # Answers of our own

    def _new(self, client_request: ClientRequest, target: str) -> OwnCall:
        return OwnCall(*self.dispatch.call_fields(client_request, target))

    def _answer_at_once(
        self, client_request: ClientRequest, answered: OperationAnswer, deliver: Deliver, target: str = "mcp_aql"
    ) -> Call:
        """Answer a call for which the node already has the answer, and record its outcome like that
        of any other call.
        """
        call = self._new(client_request, target)
        call.end(answered.failure)
        deliver(answered)
        return call

    def _fail(
        self, client_request: ClientRequest, failure: AqlFailure | None, deliver: Deliver, target: str = "mcp_aql"
    ) -> Call:
        return self._answer_at_once(client_request, OperationAnswer(failure=failure), deliver, target)

    # The lists of a client, its introduction, and the answers to messages that cannot be read

    def tools(self) -> bytes:
        """Return the JSON array for tools/list. The bytes change only when the configuration changes."""
        plan = self.adapter.plan
        version = (id(plan.aql), self.adapter.loop.mode())
        if self._listed is None or self._listed[0] != version:
            rule = self.adapter.loop.instructions()
            listed = endpoint_tools(self.adapter.endpoints(self._mode), has_batch=plan.aql.batch, rule=rule)
            self._listed = (version, listed)
        return self._listed[1]

    def list(self, method: str, key: ViewKey, params: dict[str, Raw], era: Era) -> bytes | Refusal:
        """Return one of the lists that a client sees. The tools are the endpoint tools; prompts and resources are those
        of the flat namespace.
        """
        if method != TOOLS_LIST:
            return self._flat.list(method, key, params, era)
        items = self.tools()
        if era is Era.LEGACY:
            return b'{"tools":%b}' % items
        values = (items, LIST_TTL_MS, SERVER_META)
        return b'{"resultType":"complete","tools":%b,"ttlMs":%d,"cacheScope":"public","_meta":%b}' % values

    def when_fresh(self, method: str, then: Callable[[], None]) -> None:
        if method == TOOLS_LIST:
            then()
        else:
            self._flat.when_fresh(method, then)

    def introduction(self, view: View, only: str | None) -> str:
        return f"{INTRODUCTION} {self.adapter.loop.instructions()}".rstrip()

    def find_unreadable_answer(self, data: bytes, *, is_modern: bool) -> bytes | None:
        """Return the answer to a tools/call of an endpoint tool that is not UTF-8 (AQL 4.7.1). Return None for other
        messages.
        """
        if (fault := errors.find_invalid_encoding(data)) is None:
            return None
        try:
            message = json.loads(data.decode("utf-8", "replace"))
            is_call = message["method"] == TOOLS_CALL and isinstance(message["id"], int | str)
            tool = message["params"]["name"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if not is_call or not isinstance(tool, str) or tool not in self.adapter.endpoints(self._mode).by_name:
            return None
        result = tool_result(failed(fault), is_error=False, is_modern=is_modern)
        return encode_result(encode_value(message["id"]), result)


def _token(arguments: Arguments, request: OperationRequest) -> str | AqlFailure | None:
    """Return the confirmation token of a request, or None if it has none.

    Return a failure if it has two different ones, or one that is not a string.

    A client may send the token as the parameter `confirmation_token` or as `_confirmation` beside the parameters.
    """
    tokens = [] if request.confirmation is None else [find_string(request.confirmation)]
    if "confirmation_token" in arguments.own:
        tokens.append(arguments.own["confirmation_token"])
    if not tokens:
        return None
    if any(not isinstance(each, str) for each in tokens) or len(set(tokens)) > 1:
        return errors.failure(Code.TOKEN_INVALID, "Invalid confirmation token", {"token": str(tokens[0])[:80]})
    return tokens[0]


def _warnings(ignored: tuple[str, ...]) -> tuple[AnswerWarning, ...]:
    """Return a warning for each parameter that was ignored because strict_mode is off (AQL 4.6.2)."""
    text, details = "Unknown parameter '{}' was ignored or taken under its new name", {"type": "parameter"}
    return tuple(
        medium_warning("DEPRECATION_WARNING", text.format(name), {**details, "deprecated_item": name})
        for name in ignored
    )
