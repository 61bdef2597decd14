"""From the answer of a call to the envelope its client gets. Sits between the call and the client's own sink."""

import logging
import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.aql.operation_index import Entry
from interlock.aql.protocol.envelope import Warn, failed, success, tool_result
from interlock.aql.protocol.errors import Failure, internal_error, too_large
from interlock.aql.protocol.field_selection import Selection, known_fields, select, unmatched
from interlock.aql.protocol.model import Category
from interlock.aql.protocol.results import Read, maybe_envelope_data, read_error, read_result
from interlock.core.calls.caller import Caller, Sink
from interlock.core.calls.client_request import ClientRequest
from interlock.mcp.methods import MODERN
from interlock.wire.jsonrpc.codec import decode_value, encode_result, encode_value

log = logging.getLogger("interlock.aql")

FIELDS_NAMED_MAX: Final = 20
SESSION_META: Final = "dev.interlock/aql-session"
STRUCTURED_SINCE: Final = "2025-06-18"


class _Message(msgspec.Struct):
    result: Raw | msgspec.UnsetType = msgspec.UNSET
    error: Raw | msgspec.UnsetType = msgspec.UNSET


_decode: Final = msgspec.json.Decoder(_Message).decode


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one operation. `message` is the whole answer if the call has not ended with it."""

    data: Any = None
    failure: Failure | None = None
    blocks: tuple[Raw, ...] = ()
    meta: Raw | None = None
    warnings: tuple[Warn, ...] = ()
    annotations: Raw | None = None
    message: bytes | None = None
    status: int = 200


Deliver = Callable[[Answered], None]


class Acknowledging(Protocol):
    failure: Failure | None


class Help(Protocol):
    """Additions of a surface to answers about routes and budgets."""

    @property
    def has_quotas(self) -> bool: ...

    def quota_warnings(self, caller: Caller, entry: Entry) -> tuple[Warn, ...]: ...

    def complete(self, failure: Failure) -> Failure:
        """Add what the client can do about a failure on this surface."""


def unexpected(what: str) -> Failure:
    """Turn a fault of the node into a failure. The log has the trace, under the reference that the client gets."""
    ref = secrets.token_hex(6)
    log.exception("%s cannot be served, reference %s", what, ref)
    return internal_error("something went wrong here", ref=ref)


class OperationSink:
    """The Sink of the call that an operation became."""

    __slots__ = ("_ack", "_caller", "_deliver", "_entry", "_help", "_selection", "_sink", "_warnings")

    def __init__(
        self,
        sink: Sink,
        deliver: Deliver,
        entry: Entry,
        selection: Selection | None,
        *,
        caller: Caller,
        help: Help,
        ack: Acknowledging | None = None,
        warnings: tuple[Warn, ...] = (),
    ) -> None:
        """Create a sink. If `ack` has a failure, that failure is the answer."""
        self._caller = caller
        self._help = help
        self._sink = sink
        self._deliver = deliver
        self._entry = entry
        self._selection = selection
        self._ack = ack
        self._warnings = warnings

    def emit(self, message: bytes) -> None:
        self._sink.emit(message)

    def drop(self) -> None:
        self._sink.drop()

    def answer(self, message: bytes, status: int = 200) -> None:
        try:
            answered = self._read(message, status)
        except Exception:
            answered = Answered(failure=unexpected(f"the answer of {self._entry.name}"))
        self._deliver(answered)

    def _read(self, message: bytes, status: int) -> Answered:
        if self._ack is not None and self._ack.failure is not None:
            return Answered(failure=self._ack.failure)
        entry = self._entry
        tool = entry.route.qualified if entry.route is not None else entry.name
        answer = _decode(message)
        if answer.error is not msgspec.UNSET:
            failure = read_error(answer.error, tool=tool, operation=entry.name)
            return Answered(failure=self._help.complete(failure))
        if answer.result is msgspec.UNSET:
            return Answered(failure=internal_error("the answer cannot be read"))
        read = read_result(answer.result, tool=tool, operation=entry.name, danger=entry.danger_word)
        if read.passes:
            return Answered(message=message, status=status)
        if entry.upstream is not None and read.failure is None:
            read = maybe_envelope_data(read.data) or read
        return self._selected(read)

    def _selected(self, read: Read) -> Answered:
        data, warnings = read.data, self._warnings
        if self._selection is not None and read.failure is None and self._selection != "full":
            whole = decode_value(data) if isinstance(data, Raw) else data
            data = select(whole, self._selection)
            if missed := unmatched(whole, self._selection):
                warnings = (*warnings, _unmatched_warning(missed, known_fields(whole)))
        if self._help.has_quotas and read.failure is None:
            warnings = (*warnings, *self._help.quota_warnings(self._caller, self._entry))
        return Answered(
            data=data,
            failure=read.failure,
            blocks=read.blocks,
            meta=read.meta,
            warnings=warnings,
            annotations=read.annotations,
        )


def _unmatched_warning(missed: list[str], valid: list[str]) -> Warn:
    return Warn(
        code="VALIDATION_TRUNCATED_WARNING",
        message=f"fields names nothing in the data: {', '.join(missed[:FIELDS_NAMED_MAX])}",
        details={"unknown_fields": missed[:FIELDS_NAMED_MAX], "valid_fields": valid},
        severity="medium",
    )


class Delivery:
    """Writes what came of a single operation to the client."""

    __slots__ = ("_caller", "_client_id", "_entry", "_is_bare", "_limit", "_request_id", "_sink", "_started_ms")

    def __init__(
        self,
        request: ClientRequest,
        limit: int,
        *,
        request_id: str | None = None,
        is_bare: bool = False,
        started_ms: Callable[[], int] | None = None,
    ) -> None:
        """Create a delivery. `is_bare` marks an answer of introspection, whose schemas are closed."""
        self._caller = request.caller
        self._client_id = request.client_id
        self._sink = request.sink
        self._limit = limit
        self._request_id = request_id
        self._is_bare = is_bare
        self._started_ms = started_ms
        self._entry: Entry | None = None

    def serve(self, entry: Entry) -> None:
        """Set the operation that is served, once it is known."""
        self._entry = entry

    def __call__(self, answered: Answered) -> None:
        if answered.message is not None:
            self._sink.answer(answered.message, answered.status)
            return
        self._sink.answer(encode_result(self._client_id, self.result(answered)))

    def result(self, answered: Answered) -> bytes:
        failure = answered.failure
        blocks = answered.blocks
        if failure is None:
            if self._is_bare:
                envelope = success(answered.data)
            else:
                took = None if self._started_ms is None else self._started_ms()
                envelope = success(answered.data, answered.warnings, request_id=self._request_id, duration_ms=took)
            if len(envelope) > self._limit:
                failure, blocks = self._too_large(len(envelope)), ()
        meta = answered.meta
        if failure is not None:
            if self._request_id is not None and not self._is_bare:
                details = {**(failure.details or {}), "request_id": self._request_id}
                failure = msgspec.structs.replace(failure, details=details)
            envelope = failed(failure, bare=self._is_bare)
            meta = self._session_meta(meta)
        caller = self._caller
        return tool_result(
            envelope,
            is_error=failure is not None and failure.is_error,
            is_modern=caller.era is MODERN,
            is_structured=caller.era is MODERN or caller.version >= STRUCTURED_SINCE,
            blocks=blocks,
            meta=meta,
            annotations=answered.annotations,
        )

    def _session_meta(self, meta: Raw | None) -> Raw | None:
        """Add the session to a failed operation, for logs and support (2.3.5, X-16)."""
        session = self._caller.aql
        if session is None or meta is not None:
            return meta
        return Raw(encode_value({SESSION_META: session}))

    def _too_large(self, size: int) -> Failure:
        more: dict[str, Any] = {"executed": True}
        if self._entry is not None and self._entry.category is Category.READ:
            more["hint"] = "ask for less with fields, or in pages"
        return too_large("response_size", self._limit, size, **more)
