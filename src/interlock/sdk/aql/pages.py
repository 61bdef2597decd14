"""Pages of collections by cursor (C.page-1), sorting, and the etags of resources (9.3.2).

A cursor is the sort key of an item. So a client that reads page after page, while items are added and removed, gets
every item that existed throughout exactly once. A cursor is opaque; a modified cursor, or one of another operation, is
refused.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from interlock.aql.protocol.envelope import AnswerWarning
from interlock.aql.protocol.errors import AqlFailure, OperationFailed, invalid_type
from interlock.aql.protocol.model import AqlParameter
from interlock.sdk.aql.values import plain

Item = TypeVar("Item")
Field = TypeVar("Field")
PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100
CHECK_BYTES: Final = 6  # of the hash that protects a cursor from changes

PARAMETERS: Final = (
    AqlParameter(
        name="first", type="integer", minimum=0, default=PAGE_DEFAULT, description="How many, from the start."
    ),
    AqlParameter(name="after", type="string", description="Only with first: the endCursor of the page before."),
    AqlParameter(name="last", type="integer", minimum=0, description="How many, from the end."),
    AqlParameter(name="before", type="string", description="Only with last: the startCursor of the page behind."),
)


class Sort(msgspec.Struct, Generic[Field], forbid_unknown_fields=True):
    """The order of a collection. A parameter `sort: Sort[Literal["title", "created_at"]]` names the possible fields."""

    field: Field
    order: Literal["asc", "desc"] = "asc"


class Listing(msgspec.Struct, Generic[Item]):
    """A page of a collection, as a handler returns it. `keys` are the sort keys of the items, for their cursors."""

    items: Sequence[Item]
    keys: Sequence[Any] = ()
    has_next: bool = False
    has_previous: bool = False
    total: int | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The requested page: a handler's parameter of this type takes first, after, last and before.

    A page has `size` items: the first ones behind the key `after` or, with `from_end`, the last ones before the key
    `before`.
    """

    size: int = PAGE_DEFAULT
    after: Any = None
    before: Any = None
    from_end: bool = False
    clamped_from: int | None = None

    def of(self, items: Iterable[Item], key: Callable[[Item], Any], *, sort: Sort[Any] | None = None) -> Listing[Item]:
        """Return the page of a collection in memory. Keys are unique; items are in their order, or in reverse by
        `sort`.
        """
        is_falling = sort is not None and sort.order == "desc"
        ordered = sorted(items, key=key, reverse=is_falling)
        keys = [key(item) for item in ordered]
        low, high = (self.before, self.after) if is_falling else (self.after, self.before)
        inside = [
            index for index, item in enumerate(keys) if (low is None or item > low) and (high is None or item < high)
        ]
        taken = inside[-self.size :] if self.from_end and self.size else inside[: self.size]
        start, end = (taken[0], taken[-1]) if taken else (0, -1)
        return Listing(
            [ordered[index] for index in taken],
            [keys[index] for index in taken],
            has_next=end + 1 < len(ordered) if taken else False,
            has_previous=start > 0,
            total=len(ordered),
        )

    def warnings(self) -> list[AnswerWarning]:
        if self.clamped_from is None:
            return []
        details = {"field": "last" if self.from_end else "first", "original_count": self.clamped_from}
        details |= {"truncated_count": self.size, "limit": PAGE_MAX}
        message = f"A page has at most {PAGE_MAX} items; {self.clamped_from} were asked for"
        return [AnswerWarning(code="VALIDATION_TRUNCATED_WARNING", message=message, details=details, severity="low")]


def read_page(arguments: dict[str, Any], operation: str) -> Page:
    """Remove the four page parameters from the arguments and return the page. Raise OperationFailed."""
    first, after, last, before = (arguments.pop(name, None) for name in ("first", "after", "last", "before"))
    for parameter, other, wrong in (
        ("first", "last", first is not None and last is not None),
        ("first", "before", first is not None and before is not None),
        ("last", "after", last is not None and after is not None),
    ):
        if wrong:
            raise OperationFailed(_combination(other, f"'{other}' does not go with '{parameter}'"))
    if after is not None and first is None:
        raise OperationFailed(_combination("after", "'after' goes with 'first'"))
    if before is not None and last is None:
        raise OperationFailed(_combination("before", "'before' goes with 'last'"))
    wanted = last if last is not None else first if first is not None else PAGE_DEFAULT
    return Page(
        size=min(wanted, PAGE_MAX),
        after=None if after is None else read_cursor("after", after, operation),
        before=None if before is None else read_cursor("before", before, operation),
        from_end=last is not None,
        clamped_from=wanted if wanted > PAGE_MAX else None,
    )


def _combination(param: str, why: str) -> AqlFailure:
    return invalid_type(param, "absent", "present", hint=why)


def listing_data(listing: Listing[Any], items: list[Any], operation: str) -> dict[str, Any]:
    info: dict[str, Any] = {"hasNextPage": listing.has_next, "hasPreviousPage": listing.has_previous}
    if listing.keys:
        info |= {
            "startCursor": make_cursor(listing.keys[0], operation),
            "endCursor": make_cursor(listing.keys[-1], operation),
        }
    if listing.total is not None:
        info["totalCount"] = listing.total
    return {"items": items, "pageInfo": info}


def make_cursor(key: Any, operation: str) -> str:
    text = msgspec.json.encode(key)
    return base64.urlsafe_b64encode(_check(text, operation) + text).rstrip(b"=").decode()


def read_cursor(param: str, cursor: str, operation: str) -> Any:
    try:
        read = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        if read[:CHECK_BYTES] == _check(read[CHECK_BYTES:], operation):
            return msgspec.json.decode(read[CHECK_BYTES:])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        pass
    problem = invalid_type(param, "cursor", "string", hint="Send a cursor of pageInfo of this operation, unchanged")
    raise OperationFailed(problem) from None


def _check(text: bytes, operation: str) -> bytes:
    return hashlib.sha256(operation.encode() + b"\0" + text).digest()[:CHECK_BYTES]


def etag_of(resource: Any) -> str:
    """Return the etag of a resource's content, whatever the order of its keys."""
    members = {key: value for key, value in plain(resource).items() if key != "_etag"}
    text = msgspec.json.encode(members, order="deterministic")
    return f'W/"{hashlib.sha256(text).hexdigest()[:16]}"'
