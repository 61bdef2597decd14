"""Conversion of values between Python and the JSON of MCP-AQL (4.7), and what a handler can report: `Context`, `fail`.

`plain` converts the result of a handler: an aware datetime to UTC with Z; an int beyond the safe range and a Decimal to
text with a `<name>_type` beside it; bytes to `<name>_content`, `<name>_encoding` and `<name>_mime_type`. A value that
JSON cannot hold is an error of the program and raises TypeError. A handler fails with one of the registered codes; any
other exception is reported as INTERNAL_ERROR.

Pages of collections are read by cursor (C.page-1). A cursor is the sort key of an item. So a client that reads page
after page, while items are added and removed, gets every item that existed throughout exactly once. A cursor is opaque;
a modified cursor, or one of another operation, is refused.
"""

import base64
import binascii
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar
from uuid import UUID

import msgspec

from interlock.aql.protocol import errors
from interlock.aql.protocol.envelope import WARNING_CODES, AnswerWarning, Severity
from interlock.aql.protocol.model import AqlParameter
from interlock.aql.protocol.validation import SAFE_INTEGER
from interlock.sdk.subserver import tools

OCTETS: Final = "application/octet-stream"
# RFC 3339 with seconds and offset; days and months are checked when it is read.
DATE_TIME: Final = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})$"
DATE: Final = r"^\d{4}-\d{2}-\d{2}$"
INTEGER: Final = r"^-?\d{1,1000}$"
DECIMAL: Final = r"^-?\d{1,1000}(\.\d{1,1000})?$"


class Binary(msgspec.Struct, frozen=True):
    """Bytes with their media type. A handler uses it as a file parameter or as a result."""

    content: bytes
    mime_type: str = OCTETS


class BigInt(int):
    """An integer of any size. Clients send a parameter of this type as a text of digits."""


def plain(value: Any) -> Any:
    """Convert the result of a handler to JSON values. Raise TypeError if JSON cannot represent it."""
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, int):
        return int(value) if -SAFE_INTEGER <= value <= SAFE_INTEGER else str(int(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} is no JSON number")
        return value
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        if value.tzinfo is None:  # AQL-4.7.2-3
            raise TypeError("a datetime without a time zone was returned; make it aware, as datetime.now(UTC) is")
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Binary | bytes):
        return _members({"data": value})
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        fields = {shown: getattr(value, name) for name, shown in names}
        return _members({shown: field for shown, field in fields.items() if field is not msgspec.UNSET})
    if isinstance(value, Mapping):
        return _members(value)
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _members(members: Mapping[Any, Any]) -> dict[str, Any]:
    """Convert the members of an object to JSON values. Some values add further members, for example for their encoding
    (4.7.3, 4.7.4).
    """
    result: dict[str, Any] = {}
    for key, value in members.items():
        name = str(key)
        if isinstance(value, Binary | bytes):
            binary = value if isinstance(value, Binary) else Binary(value)
            result[f"{name}_content"] = base64.b64encode(binary.content).decode()  # AQL-4.7.4-1
            result[f"{name}_encoding"] = "base64"  # AQL-4.7.4-1
            result[f"{name}_mime_type"] = binary.mime_type  # AQL-4.7.4-1
            continue
        result[name] = plain(value)
        if isinstance(value, Decimal):
            result[f"{name}_type"] = "decimal"
        elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > SAFE_INTEGER:
            result[f"{name}_type"] = "bigint"
    return result


def read_base64(param: str, text: str) -> bytes:
    """Decode base64 (RFC 4648) with the standard alphabet and padding. Raise OperationFailed if the text is invalid."""
    try:
        return base64.b64decode(text, validate=True)  # AQL-4.7.4-1
    except (binascii.Error, ValueError):
        why = "it must be base64 (RFC 4648) with the standard alphabet and padding, without white space"
        raise errors.OperationFailed(errors.invalid_value(param, why)) from None


def check_integers(param: str, value: Any) -> None:
    """Raise OperationFailed if `value` contains an integer that is too large for a JSON number and must be sent as text
    (4.7.3). The failure names the place of the integer.
    """
    left = [(param, value)]
    while left:
        place, item = left.pop()
        if isinstance(item, int) and not isinstance(item, bool) and abs(item) > SAFE_INTEGER:
            hint = f"Integers beyond {SAFE_INTEGER} are sent as text"
            raise errors.OperationFailed(errors.invalid_type(place, "string", "integer", hint=hint))
        if isinstance(item, dict):
            left += [(f"{place}.{key}", each) for key, each in item.items()]
        elif isinstance(item, list):
            left += [(f"{place}.{index}", each) for index, each in enumerate(item)]


def fail(code: errors.Code, message: str, details: Mapping[str, Any] | None = None) -> NoReturn:
    """Raise OperationFailed with an error code that the specification defines."""
    raise errors.OperationFailed(errors.failure(code, message, details))


def not_found(resource_type: str, resource_id: str) -> NoReturn:
    """Raise OperationFailed because a resource does not exist."""
    raise errors.OperationFailed(errors.resource_not_found(resource_type, resource_id))


def already_exists(resource_type: str, resource_id: str) -> NoReturn:
    """Raise OperationFailed because the resource to be created already exists."""
    details = {"resource_type": resource_type, "resource_id": resource_id}
    message = f"Resource '{resource_type}' exists already: '{resource_id}'"
    raise errors.OperationFailed(errors.failure(errors.Code.CONFLICT_ALREADY_EXISTS, message, details))


@dataclass(eq=False)
class Context:
    """The context of one call. A handler gets it in a parameter that is annotated `Context`, and may use it from any
    thread.
    """

    operation: str
    caller: str
    _call: tools.Context
    warnings: list[AnswerWarning] = field(default_factory=list)

    @property
    def cancelled(self) -> bool:
        """Return whether the caller no longer waits. Async handlers are cancelled automatically; other handlers should
        check this regularly.
        """
        return self._call.cancelled

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress if the caller requested it. `done` must increase with each call."""
        self._call.progress(done, total, message)

    def warn(
        self, code: str, message: str, details: Mapping[str, Any] | None = None, severity: Severity = "low"
    ) -> None:
        """Add a warning to the response. It is sent only if the operation succeeds and is not in a batch. Raise
        ValueError if the specification does not define the code.
        """
        if code not in WARNING_CODES:
            raise ValueError(f"'{code}' is none of {', '.join(sorted(WARNING_CODES))}")
        members = None if details is None else dict(details)
        self.warnings.append(AnswerWarning(code=code, message=message, details=members, severity=severity))


Item = TypeVar("Item")
Field = TypeVar("Field")
PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100
CHECK_BYTES: Final = 6  # of the hash that protects a cursor from changes

PAGE_PARAMETERS: Final = (
    AqlParameter(
        name="first", type="integer", minimum=0, default=PAGE_DEFAULT, description="How many, from the start."
    ),
    AqlParameter(name="after", type="string", description="Only with first: the endCursor of the page before."),
    AqlParameter(name="last", type="integer", minimum=0, description="How many, from the end."),
    AqlParameter(name="before", type="string", description="Only with last: the startCursor of the page behind."),
)


class Sort(msgspec.Struct, Generic[Field], forbid_unknown_fields=True):
    """The requested order of a collection. A parameter annotated `Sort[Literal["title", "created_at"]]` lets clients
    sort by these two fields.
    """

    field: Field
    order: Literal["asc", "desc"] = "asc"


class Listing(msgspec.Struct, Generic[Item]):
    """A page of a collection that a handler returns. `keys` are the sort keys of the items, from which their cursors
    are made.
    """

    items: Sequence[Item]
    keys: Sequence[Any] = ()
    has_next: bool = False
    has_previous: bool = False
    total: int | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The page of a collection that a client requests. A handler parameter of this type adds the parameters first,
    after, last and before to the operation.

    A page has `size` items: the first ones behind the key `after` or, with `from_end`, the last ones before the key
    `before`.
    """

    size: int = PAGE_DEFAULT
    after: Any = None
    before: Any = None
    from_end: bool = False
    clamped_from: int | None = None

    def of(self, items: Iterable[Item], key: Callable[[Item], Any], *, sort: Sort[Any] | None = None) -> Listing[Item]:
        """Return the requested page of a collection that is in memory. The items are sorted by `key`, which must differ
        for each item, in the direction of `sort`.
        """
        is_falling = sort is not None and sort.order == "desc"
        ordered = sorted(items, key=key, reverse=is_falling)
        keys = [key(item) for item in ordered]
        low, high = (self.before, self.after) if is_falling else (self.after, self.before)
        above = [index for index, item in enumerate(keys) if low is None or item > low]
        inside = [index for index in above if high is None or keys[index] < high]
        taken = inside[-self.size :] if self.from_end and self.size else inside[: self.size]
        start, end = (taken[0], taken[-1]) if taken else (0, -1)
        has_next, total = bool(taken) and end + 1 < len(ordered), len(ordered)
        shown, shown_keys = [ordered[index] for index in taken], [keys[index] for index in taken]
        return Listing(shown, shown_keys, has_next=has_next, has_previous=start > 0, total=total)

    def warnings(self) -> list[AnswerWarning]:
        """Return a warning if the client requested more than PAGE_MAX items, otherwise an empty list."""
        if self.clamped_from is None:
            return []
        details = {"field": "last" if self.from_end else "first", "original_count": self.clamped_from}
        details |= {"truncated_count": self.size, "limit": PAGE_MAX}
        message = f"A page has at most {PAGE_MAX} items; {self.clamped_from} were asked for"
        return [AnswerWarning(code="VALIDATION_TRUNCATED_WARNING", message=message, details=details, severity="low")]


def read_page(arguments: dict[str, Any], operation: str) -> Page:
    """Remove the four page parameters from the arguments and return the requested page. Raise OperationFailed if they
    are invalid.
    """
    requested = {name: arguments.pop(name, None) for name in ("first", "after", "last", "before")}
    first, after, last, before = requested.values()
    names = {name for name, value in requested.items() if value is not None}
    for name, other in (("first", "last"), ("first", "before"), ("last", "after")):
        if names >= {name, other}:
            why = f"'{other}' does not go with '{name}'"
            raise errors.OperationFailed(errors.invalid_type(other, "absent", "present", hint=why))
    for name, other in (("after", "first"), ("before", "last")):
        if name in names and other not in names:
            why = f"'{name}' goes with '{other}'"
            raise errors.OperationFailed(errors.invalid_type(name, "absent", "present", hint=why))
    wanted = last if last is not None else first if first is not None else PAGE_DEFAULT
    return Page(
        size=min(wanted, PAGE_MAX),
        after=None if after is None else read_cursor("after", after, operation),
        before=None if before is None else read_cursor("before", before, operation),
        from_end=last is not None,
        clamped_from=wanted if wanted > PAGE_MAX else None,
    )


def listing_data(listing: Listing[Any], items: list[Any], operation: str) -> dict[str, Any]:
    """Return a page as clients receive it, with the cursors of its first and last item."""
    info: dict[str, Any] = {"hasNextPage": listing.has_next, "hasPreviousPage": listing.has_previous}
    if listing.keys:
        info["startCursor"] = make_cursor(listing.keys[0], operation)
        info["endCursor"] = make_cursor(listing.keys[-1], operation)
    if listing.total is not None:
        info["totalCount"] = listing.total
    return {"items": items, "pageInfo": info}


def make_cursor(key: Any, operation: str) -> str:
    """Return the cursor of an item: its sort key, and a hash of the key and the operation. The hash has no secret, so
    it detects mistakes but not forgery.
    """
    text = msgspec.json.encode(key)
    return base64.urlsafe_b64encode(_check(text, operation) + text).rstrip(b"=").decode()


def read_cursor(param: str, cursor: str, operation: str) -> Any:
    """Return the sort key in a cursor. Raise OperationFailed if the cursor was modified or belongs to another
    operation.
    """
    try:
        read = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        if read[:CHECK_BYTES] == _check(read[CHECK_BYTES:], operation):
            return msgspec.json.decode(read[CHECK_BYTES:])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        pass
    hint = "Send a cursor of pageInfo of this operation, unchanged"
    raise errors.OperationFailed(errors.invalid_type(param, "cursor", "string", hint=hint)) from None


def _check(text: bytes, operation: str) -> bytes:
    return hashlib.sha256(operation.encode() + b"\0" + text).digest()[:CHECK_BYTES]


def etag_of(resource: Any) -> str:
    """Return the etag of a resource: a hash of its content that does not depend on the order of keys."""
    members = {key: value for key, value in plain(resource).items() if key != "_etag"}
    text = msgspec.json.encode(members, order="deterministic")
    return f'W/"{hashlib.sha256(text).hexdigest()[:16]}"'
