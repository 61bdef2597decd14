"""The operator API about the audit log."""

from typing import Annotated, Final, Generic, TypeVar

from msgspec import Meta, Struct

from interlock.operator.operation import IntegerParameter, Operation, operations_in

Record = TypeVar("Record")


class AuditRecord(Struct, frozen=True, kw_only=True):
    """A record of the audit log. The event determines which further members it has."""

    seq: Annotated[int, Meta(description="Its place in the log.")]
    hash: Annotated[str, Meta(description="Its link in the chain of hashes.")]
    at: Annotated[str, Meta(description="When it happened.")] = ""
    who: Annotated[str, Meta(description="The principal.")] = ""
    via: Annotated[str, Meta(description="By which way: http, stdio, operator, ...")] = ""
    method: Annotated[str, Meta(description="What was asked.")] = ""
    tool: Annotated[str | None, Meta(description="Of which tool.")] = None
    args_sha256: Annotated[str | None, Meta(description="The digest of the arguments.")] = None
    verdict: Annotated[str, Meta(description="What was decided.")] = ""
    outcome: Annotated[str, Meta(description="How it ended.")] = ""
    reason: Annotated[str | None, Meta(description="Why.")] = None
    ms: Annotated[float | None, Meta(description="How long it took.")] = None
    anchor: Annotated[str | None, Meta(description="The name of the key that signed a decision.")] = None
    room: Annotated[str | None, Meta(description="The room that it is about.")] = None
    participant: Annotated[str | None, Meta(description="The participant of a room that it is about.")] = None
    privilege: Annotated[str | None, Meta(description="What a token lets its participant do: full or restricted.")] = (
        None
    )
    secret_kind: Annotated[str | None, Meta(description="What was kept or removed: secret, token or client.")] = None
    secret_name: Annotated[str | None, Meta(description="Its name; never its value.")] = None
    token_id: Annotated[str | None, Meta(description="The id of the token that was made or revoked.")] = None
    token_name: Annotated[str | None, Meta(description="Its name.")] = None
    token_for: Annotated[
        str | None, Meta(description="Who may use it: client, subserver, room, operator, browser.")
    ] = None


class AuditPage(Struct, Generic[Record], frozen=True, kw_only=True):
    """A page of consecutive records. The node fills it with the stored bytes of records, clients with `AuditRecord`
    objects.
    """

    records: Annotated[tuple[Record, ...], Meta(description="Oldest first.")]
    last: Annotated[int, Meta(description="The sequence of the newest record of the log.")]


# Query parameters

SEQUENCE_MAX: Final = 2**63 - 1  # what a store can count to

AFTER: Final = IntegerParameter(
    name="after", description="Records above this sequence.", default=0, minimum=0, maximum=SEQUENCE_MAX
)
LIMIT: Final = IntegerParameter(
    name="limit", description="At most so many; a reader goes on with after.", default=100, minimum=1, maximum=1_000
)


# Operations

READ_AUDIT: Final = Operation(
    "read_audit",
    "node",
    "GET /admin/audit",
    "A page of the audit log.",
    output=AuditPage[AuditRecord],
    query=(AFTER, LIMIT),
)

OPERATIONS: Final = operations_in(globals())
