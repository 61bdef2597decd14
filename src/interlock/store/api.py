"""The operator API about the audit log."""

from typing import Final, Generic, TypeVar

from msgspec import Struct

from interlock.operator.operation import IntegerParameter, Operation, operations_in

Record = TypeVar("Record")


class AuditRecord(Struct, frozen=True, kw_only=True):
    """A record of the audit log. The event determines which further members it has.

    Members:
        seq: Its place in the log.
        hash: Its link in the chain of hashes.
        at: When it happened.
        who: The principal.
        via: By which way: http, stdio, operator, ...
        method: What was asked.
        tool: Of which tool.
        args_sha256: The digest of the arguments.
        verdict: What was decided.
        outcome: How it ended.
        reason: Why.
        ms: How long it took.
        anchor: The name of the key that signed a decision.
        room: The room that it is about.
        participant: The participant of a room that it is about.
        privilege: What a token lets its participant do: full or restricted.
        secret_kind: What was kept or removed: secret, token or client.
        secret_name: Its name; never its value.
        token_id: The id of the token that was made or revoked.
        token_name: Its name.
        token_for: Who may use it: client, subserver, room, operator, browser.
    """

    seq: int
    hash: str
    at: str = ""
    who: str = ""
    via: str = ""
    method: str = ""
    tool: str | None = None
    args_sha256: str | None = None
    verdict: str = ""
    outcome: str = ""
    reason: str | None = None
    ms: float | None = None
    anchor: str | None = None
    room: str | None = None
    participant: str | None = None
    privilege: str | None = None
    secret_kind: str | None = None
    secret_name: str | None = None
    token_id: str | None = None
    token_name: str | None = None
    token_for: str | None = None


class AuditPage(Struct, Generic[Record], frozen=True, kw_only=True):
    """A page of consecutive records. The node fills it with the stored bytes of records, clients with `AuditRecord`
    objects.

    Members:
        records: Oldest first.
        last: The sequence of the newest record of the log.
    """

    records: tuple[Record, ...]
    last: int


# Query parameters

SEQUENCE_MAX: Final = 2**63 - 1  # what a store can count to

AFTER: Final = IntegerParameter("after", "Records above this sequence.", default=0, minimum=0, maximum=SEQUENCE_MAX)
LIMIT: Final = IntegerParameter(
    "limit", "At most this many; continue with after.", default=100, minimum=1, maximum=1_000
)


# Operations

READ_AUDIT: Final = Operation(
    "GET /admin/audit", "A page of the audit log.", output=AuditPage[AuditRecord], query=(AFTER, LIMIT)
)

OPERATIONS: Final = operations_in(globals(), "node")
