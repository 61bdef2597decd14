"""The service of an adapter: from the arguments of an endpoint tool to the envelope that answers them.

A request is handled in the order of 3.2: operation, endpoint, parameters, danger; then the handler runs. A failure at
one step is the answer, so a client always learns of the first mistake. Handlers fail with registered codes; any other
exception becomes INTERNAL_ERROR with a reference into the log.

A dangerous operation asks for a confirmation first (C.danger-3). The token is good for one call with exactly the same
arguments: it is bound to their digest.

The service is independent of the transport.
"""

import contextlib
import logging
import secrets
import time
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.protocol import errors, introspection
from interlock.aql.protocol.envelope import AnswerWarning, Halted, batch, failed, success
from interlock.aql.protocol.families import EndpointTool, discovery, input_schema, primary_categories
from interlock.aql.protocol.model import PERMISSIONS, SPEC_VERSION, AqlOperation, Category, Danger, Permissions
from interlock.aql.protocol.requests import BatchRequest, OperationRequest, read_item, read_request
from interlock.aql.protocol.search import SearchIndex, nearest, term_weights
from interlock.aql.protocol.tokens import ConfirmationTokens, TokenLives, TokenNote, digest_of
from interlock.aql.protocol.validation import Arguments
from interlock.sdk.aql.adapter import Adapter
from interlock.sdk.aql.operations import CONFIRMATION, AdapterOperation, Schedule
from interlock.sdk.aql.values import Context
from interlock.sdk.subserver import tools
from interlock.wire.jsonrpc.codec import find_string

log = logging.getLogger("interlock.aql")

LOCAL: Final = "local"  # who calls, over standard input or HTTP: callers are not told apart
NAMES_MAX: Final = 40  # operations that the description of a tool names


class OperationOutcome(msgspec.Struct, frozen=True):
    """The outcome of one operation: the response envelope, and the failure if there was one."""

    envelope: bytes
    failure: errors.AqlFailure | None = None


class Service:
    """The service behind the endpoint tools of an adapter. It performs the adapter's operations."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._schedule = Schedule(adapter.concurrency, adapter.max_concurrent_requests)
        declared = {name: native.declaration for name, native in adapter.operations.items()}
        self._operations = {introspection.DECLARATION.name: introspection.DECLARATION, **declared}
        self._names = sorted(self._operations)
        operations = [self._operations[name] for name in self._names]
        self._index = SearchIndex([term_weights(each.name, each.description, each.by_name) for each in operations])

        def log_token(note: TokenNote) -> None:
            log.info("%s %s for %s", note.event, note.token, note.operation)

        self._tokens = ConfirmationTokens(time.time, partial(secrets.token_urlsafe, 32), TokenLives(), log_token)

    # tools/list

    def definitions(self) -> list[dict[str, Any]]:
        """Return the definitions of the endpoint tools for tools/list."""
        definitions = []
        for tool in self._adapter.endpoints.tools:
            permissions = self._permissions(tool)
            hints = {"readOnlyHint": permissions.read_only, "destructiveHint": permissions.destructive}
            head = {"name": tool.name, "description": self._description(tool)}
            definitions.append({**head, "inputSchema": input_schema(has_batch=True), "annotations": hints})
        return definitions

    def _operations_of(self, tool: EndpointTool) -> list[AqlOperation]:
        """Return the operations that clients can call through an endpoint tool."""
        profile = self._adapter.endpoints.profile
        every = [self._operations[name] for name in self._names]
        return [each for each in every if tool.family is None or profile.family_of(each) == tool.family]

    def _permissions(self, tool: EndpointTool) -> Permissions:
        """Return the permissions of an endpoint tool, which are those of its riskiest operation (C.tool-4)."""
        if tool.family is None:
            return Permissions(False, True)
        profile = self._adapter.endpoints.profile
        held = [each.permissions for each in self._operations_of(tool)]
        every = held or [PERMISSIONS[each] for each in profile.categories(tool.family)]
        return Permissions(all(each.read_only for each in every), any(each.destructive for each in every))

    def _description(self, tool: EndpointTool) -> str:
        """Return the description of an endpoint tool: its purpose, operations and effects, and example requests."""
        where, request = discovery(self._adapter.endpoints)
        operations = self._operations_of(tool)
        names = ", ".join(operation.name for operation in operations[:NAMES_MAX]) or "none yet"
        more = f" and {len(operations) - NAMES_MAX} more" if len(operations) > NAMES_MAX else ""
        effect = "Changes nothing." if self._permissions(tool).read_only else "Changes what is stored or runs things."
        if any(operation.category is Category.DELETE for operation in operations):
            effect += " Use caution: removal cannot be undone."
        lines = [self._adapter.description or f"The operations of {self._adapter.name}."]
        lines += [f"Supported operations: {names}{more}.", effect, *primary_categories(self._adapter.endpoints, tool)]
        if operations:
            shown = introspection.operation_details(operations[0], self._adapter.endpoints)["examples"][0]["request"]
            lines.append(f"Example: {msgspec.json.encode(shown).decode()}")
        to = "" if tool.name == where else f" (send to {where})"
        lines.append(f"Find operations with introspect{to}: {request}")
        return "\n".join(lines)

    # tools/call

    async def answer(self, tool: str, arguments: Raw | bytes | None, call: tools.Context) -> tuple[bytes, bool]:
        """Perform a call of the endpoint tool `tool`. Return the response envelope, and whether the MCP result is
        marked as an error.
        """
        endpoint = self._adapter.endpoints.by_name[tool]
        read = read_request(arguments, self._adapter.limits)
        if isinstance(read, errors.AqlFailure):
            return failed(read, bare=read.code == errors.Code.BATCH_VALIDATION_ERROR.value), read.is_error
        if isinstance(read, BatchRequest):
            return await self._batch(read, endpoint, call), False
        outcome = await self._perform(read, endpoint, call, in_batch=False)
        return outcome.envelope, outcome.failure is not None and outcome.failure.is_error

    async def _batch(self, read: BatchRequest, endpoint: EndpointTool, call: tools.Context) -> bytes:
        """Run the items of a batch in order. An item that needs a confirmation stops the batch (C.batch-6)."""
        results: list[tuple[str, bytes, bool]] = []
        for index, item in enumerate(read.items):
            request = read_item(item)
            if isinstance(request, errors.AqlFailure):
                results.append(("", failed(request), False))
                continue
            outcome = await self._perform(request, endpoint, call, in_batch=True)
            failure = outcome.failure
            if failure is not None and failure.code == errors.Code.CONFIRMATION_REQUIRED.value:
                later = enumerate(read.items[index + 1 :], index + 1)
                pending = tuple({"index": place, **msgspec.json.decode(later_item)} for place, later_item in later)
                halted = Halted(index=index, operation=request.operation, failure=failure, pending=pending)
                return batch(results, halted)
            results.append((request.operation, outcome.envelope, failure is None))
        return batch(results)

    async def _perform(
        self, request: OperationRequest, endpoint: EndpointTool, call: tools.Context, *, in_batch: bool
    ) -> OperationOutcome:
        """Perform one operation, with the checks in the order of 3.2. Every exception of the handler becomes a
        failure.
        """
        if (operation := self._operations.get(request.operation)) is None:
            similar = nearest(request.operation, self._names)
            return self._failed(errors.unknown_operation(request.operation, similar), in_batch)
        endpoints = self._adapter.endpoints
        family = endpoints.profile.family_of(operation)
        if endpoint.family is not None and family != endpoint.family:
            right_tool = endpoints.tool_of(operation)
            mismatch = errors.endpoint_mismatch(operation.name, family, right_tool, endpoint.family, endpoint.name)
            return self._failed(mismatch, in_batch)
        if operation is introspection.DECLARATION:
            return self._introspect(request)
        native = self._adapter.operations[request.operation]
        context = Context(request.operation, LOCAL, call)
        try:
            read = native.validator.validate(request, strict=self._adapter.strict_mode)
            if isinstance(read, errors.AqlFailure):
                return self._failed(read, in_batch, request)
            arguments = msgspec.json.decode(read.text)
            self._confirm(operation, request, read)
            for name in read.ignored:
                context.warn("DEPRECATION_WARNING", f"The parameter '{name}' is unknown and was left out")
            data = await native.run(arguments, read.own, context, self._schedule, self._adapter.executions)
        except errors.OperationFailed as refused:
            return self._failed(refused.failure, in_batch, request)
        except Exception:
            ref = secrets.token_hex(4)
            log.exception("the operation %s failed (ref %s)", request.operation, ref)
            return self._failed(errors.internal_error(f"the operation failed (ref {ref})"), in_batch, request)
        return self._succeeded(data, context, request, native, in_batch)

    def _confirm(self, operation: AqlOperation, request: OperationRequest, read: Arguments) -> None:
        """Raise OperationFailed if a dangerous operation is requested without the confirmation token for exactly this
        call (C.danger-3).
        """
        danger = operation.danger_level
        if danger < Danger.DESTRUCTIVE or not self._adapter.danger_levels:
            return
        digest = digest_of(bytes(read.text))
        tokens = {*_texts(request.confirmation), *_texts(read.own.get(CONFIRMATION.name))}
        if not tokens:
            token, expires_at = self._tokens.issue(LOCAL, LOCAL, operation.name, digest, danger)
            # The question to the caller names the values of parameters.
            message = operation.confirmation_message
            members = msgspec.json.decode(read.text).items()
            values = {name: value for name, value in members if isinstance(value, str | int)}
            with contextlib.suppress(KeyError, ValueError, IndexError, AttributeError):
                message = message.format_map(values)
            message = message or f"'{operation.name}' is {danger.word}. Send it again with the token."
            issued = {"token": token, "expires_at": expires_at, "message": message}
            refused = errors.confirmation_required(
                operation.name, danger.word, **issued, reasons=operation.danger_reasons
            )
            raise errors.OperationFailed(refused)
        token = tokens.pop() if len(tokens) == 1 else ""
        if (wrong := self._tokens.redeem(token, LOCAL, LOCAL, operation.name, digest)) is not None:
            raise errors.OperationFailed(wrong)

    def _succeeded(
        self, data: Any, context: Context, request: OperationRequest, native: AdapterOperation, in_batch: bool
    ) -> OperationOutcome:
        """Return the response envelope of a successful operation. If it exceeds the size limit, return a failure that
        says that the operation was performed.
        """
        warnings: tuple[AnswerWarning, ...] = () if in_batch else tuple(context.warnings)
        envelope = success(data, warnings, request_id=None if in_batch else request.request_id)
        most = self._adapter.limits.response_bytes
        if len(envelope) > most:
            hint = {"hint": "Ask for less with fields, first or a filter"} if native.is_read else {}
            large = errors.too_large("response_size", most, len(envelope), executed=True, **hint)
            return self._failed(large, in_batch, request)
        return OperationOutcome(envelope)

    def _failed(
        self, failure: errors.AqlFailure, in_batch: bool, request: OperationRequest | None = None
    ) -> OperationOutcome:
        """Return the response envelope of a failure. Within a batch, the envelope does not ask for a confirmation,
        because the answer to the batch does that.
        """
        if request is not None and request.request_id is not None:
            details = {**(failure.details or {}), "request_id": request.request_id}
            failure = errors.AqlFailure(failure.code, failure.message, details, confirmation=failure.confirmation)
        alone = errors.AqlFailure(failure.code, failure.message, failure.details) if in_batch else failure
        return OperationOutcome(failed(alone), failure)

    # introspect

    def _introspect(self, request: OperationRequest) -> OperationOutcome:
        """Answer the operation `introspect`, which asks for operations or for the types of their parameters."""
        query = introspection.read_query(request, strict=self._adapter.strict_mode)
        if isinstance(query, errors.AqlFailure):
            return OperationOutcome(failed(query, bare=True), query)
        if query.query == "operations":
            return OperationOutcome(success(self._operations_data(query)))
        more = {each.name: each for operation in self._operations.values() for each in operation.types}.values()
        has_danger = self._adapter.danger_levels
        every = introspection.protocol_types(has_danger=has_danger, has_fields=True, more=more)
        types = {declaration.name: declaration for declaration in every}
        if query.name is None:
            return OperationOutcome(success({"types": [declaration.info() for declaration in types.values()]}))
        match = types.get(query.name)
        return OperationOutcome(success({"type": None if match is None else match.details()}))

    def _operations_data(self, query: introspection.IntrospectQuery) -> dict[str, Any]:
        """Return the details of the requested operation, or a page of the list of all operations."""
        if query.name is not None:
            match = self._operations.get(query.name)
            endpoints = self._adapter.endpoints
            return {"operation": None if match is None else introspection.operation_details(match, endpoints)}
        names = self._names
        if query.search is not None:
            names = [self._names[place] for place in self._index.search(query.search, len(self._names))]
        names = [name for name in names if name.startswith(query.prefix)]
        total = len(names)
        if query.after is not None:
            names = names[names.index(query.after) + 1 :] if query.after in names else []
        default = introspection.PAGE if query.is_paged or total > introspection.WHOLE_MAX else total
        first = default if query.first is None else query.first
        protocol = self._protocol()
        if len(names) > first:
            protocol["page_info"] = {"total": total, "next": names[first - 1]}
        family_of, describe = self._adapter.endpoints.profile.family_of, introspection.operation_info
        shown = [self._operations[name] for name in names[:first]]
        operations = [describe(each.name, each.category, family_of(each), each.summary) for each in shown]
        return {"_protocol": protocol, "operations": operations}

    def _protocol(self) -> dict[str, Any]:
        """Return the object `_protocol`, which describes the parts of MCP-AQL that this adapter implements."""
        adapter = self._adapter
        levels = {name: operation.danger_level for name, operation in self._operations.items()}
        dangers = {name: level.word for name, level in levels.items() if level >= Danger.DESTRUCTIVE}
        members: dict[str, Any] = {
            "version": SPEC_VERSION,
            "conformance": "level-2",
            "mode": adapter.endpoints.mode,
            "profile": adapter.endpoints.profile.name,
            "capabilities": {
                **dict.fromkeys(("batch", "field_selection", "pagination", "warnings"), True),
                "confirmation": adapter.danger_levels,
                "dangerous_operations": adapter.danger_levels,
                "execution_safety_loop": "disabled",  # AQL-8.6.1-3: an adapter has none; a node in front of it may
            },
            "limits": adapter.limits.shown(),
            "concurrency": adapter.concurrency,
            "supports_etag": bool(adapter.versioned),
        }
        if adapter.max_concurrent_requests is not None:
            members["max_concurrent_requests"] = adapter.max_concurrent_requests
        if dangers and adapter.danger_levels:
            members["danger_levels"] = dangers
        return members


def _texts(value: Any) -> list[str]:
    """Return a list with the text of a confirmation token, or an empty list if the request has no token."""
    if isinstance(value, Raw):
        value = find_string(value) or ""
    return [] if value is None else [str(value)]
