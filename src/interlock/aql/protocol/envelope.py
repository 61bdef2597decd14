"""The answers of MCP-AQL (5): success and failure envelopes, batches, and the MCP tool result that contains them.

Envelopes are JSON text. Data that arrives as JSON text is inserted unchanged, so that big integers and the order of
keys survive.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.aql.protocol.errors import AqlFailure

WARNINGS_MAX: Final = 10
_RANK: Final = {"high": 0, "medium": 1, "low": 2}
_encode: Final = msgspec.json.Encoder().encode

Severity = Literal["low", "medium", "high"]


class AnswerWarning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A warning in a success envelope. Its code is one of `WARNING_CODES` (C.warn-1)."""

    code: str
    message: str
    details: dict[str, Any] | None = None
    severity: Severity | None = None


def medium_warning(code: str, message: str, details: dict[str, Any]) -> AnswerWarning:
    return AnswerWarning(code=code, message=message, details=details, severity="medium")


WARNING_CODES: Final = frozenset(
    {
        "RATE_LIMIT_QUOTA_WARNING",
        "DEPRECATION_WARNING",
        "VALIDATION_TRUNCATED_WARNING",
        "PERFORMANCE_SLOW_QUERY_WARNING",
    }
)


def success(
    data: Any, warnings: Sequence[AnswerWarning] = (), *, request_id: str | None = None, duration_ms: int | None = None
) -> bytes:
    """Encode a success envelope. `data` is any JSON value or Raw text.

    `_meta` is present only if a request id or a duration is given (C.meta-1).
    """
    text = bytes(data) if isinstance(data, Raw) else _encode(data)
    if not warnings and request_id is None and duration_ms is None:
        return b'{"success":true,"data":%b}' % text  # AQL-5.1-1
    parts = [b'{"success":true,"data":', text]
    if warnings:
        # Remove repeated warnings. If more than ten are left, drop the least severe ones.
        distinct = [each for place, each in enumerate(warnings) if each not in warnings[:place]]
        if len(distinct) > WARNINGS_MAX:
            ranked = sorted(distinct, key=lambda each: _RANK.get(each.severity or "low", 2))[:WARNINGS_MAX]
            distinct = [each for each in distinct if each in ranked]
        parts += [b',"warnings":', _encode(distinct)]
    if request_id is not None or duration_ms is not None:
        meta = {"request_id": request_id, "duration_ms": duration_ms}
        parts += [b',"_meta":', _encode({key: value for key, value in meta.items() if value is not None})]
    return b"".join((*parts, b"}"))


def error_object(failure: AqlFailure, *, bare: bool = False) -> dict[str, Any]:
    """Return the `error` member of a failure envelope.

    With `bare` it has no details, because the closed schemas of introspection and batches allow none.
    """
    members: dict[str, Any] = {"code": failure.code, "message": failure.message}
    if failure.details and not bare:
        members["details"] = failure.details
    return members


def failed(failure: AqlFailure, *, bare: bool = False) -> bytes:
    """Encode a failure envelope. With `bare` it has neither details nor a confirmation."""
    members: dict[str, Any] = {"success": False, "error": error_object(failure, bare=bare)}  # AQL-5.1-1
    if failure.confirmation is not None and not bare:
        members["confirmation"] = failure.confirmation
    return _encode(members)


class Halted(msgspec.Struct, frozen=True, kw_only=True):
    """The position at which a batch stopped for a confirmation, and the items that did not run (C.batch-6)."""

    index: int
    operation: str
    failure: AqlFailure
    pending: tuple[Any, ...]  # {index, operation, params?} each


def batch(results: Sequence[tuple[str, bytes, bool]], halted: Halted | None = None) -> bytes:
    """Encode the answer to a batch of operations.

    `results` contains, for each item in order, the operation, the encoded envelope, and whether the item succeeded.
    """
    items = b",".join(
        b'{"index":%d,"operation":%b,"result":%b}' % (index, _encode(operation), text)
        for index, (operation, text, _) in enumerate(results)
    )
    done = sum(1 for _, _, is_good in results if is_good)
    summary: dict[str, int] = {"total": len(results), "succeeded": done, "failed": len(results) - done}
    more = b""
    if halted is not None:
        summary |= {"total": len(results) + 1 + len(halted.pending), "halted": 1, "pending": len(halted.pending)}
        result = {"success": False, "error": error_object(halted.failure)}
        stop = {"index": halted.index, "operation": halted.operation, "result": result}
        more = b',"halted_at":%b,"pending_operations":%b' % (_encode(stop), _encode(halted.pending))
    return b'{"success":true,"data":null,"results":[%b]%b,"summary":%b}' % (items, more, _encode(summary))


def tool_result(
    envelope: bytes,
    *,
    is_error: bool,
    is_modern: bool,
    is_structured: bool = True,
    blocks: Iterable[Raw] = (),
    meta: Raw | None = None,
    annotations: Raw | None = None,
) -> bytes:
    """Return the MCP result with the envelope as text in content[0] and, if the client's revision has it, as
    structuredContent.

    `blocks` is content that cannot be JSON (images, audio, resources); it follows the text unchanged (C.map-11).
    `annotations` are the annotations of the text block from which the data was read.
    """
    text = _encode(envelope.decode())
    parts = [b'{"resultType":"complete",' if is_modern else b"{", b'"content":[{"type":"text","text":', text]
    if annotations is not None:
        parts += [b',"annotations":', bytes(annotations)]
    parts.append(b"}")
    for block in blocks:
        parts += [b",", bytes(block)]
    parts.append(b"]")
    if is_structured:
        parts += [b',"structuredContent":', envelope]
    parts.append(b',"isError":true' if is_error else b',"isError":false')
    if meta is not None:
        parts += [b',"_meta":', bytes(meta)]
    return b"".join((*parts, b"}"))
