"""The audit record: one value for everything that the audit log says, and how it is written.

Calls are recorded with the digest of their arguments and the time they took. Events (a decision, a login, a change of a
room) have details of their own instead. Both have the same first members, so that one query reads the whole log.
"""

import functools
import hashlib
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.clock import rfc3339

_encode: Final = msgspec.json.Encoder().encode


class Digest(str):
    """The SHA-256 digest of a call's arguments. A call whose arguments are no longer in memory has it in
    their place.
    """

    __slots__ = ()


class SessionVia(str):
    """The name of a client's transport, such as `http`, as a text that also carries the id of the client's MCP-AQL
    session. The audit log records both.

    Compares equal to the transport's name.
    """

    __slots__ = ("session_id",)

    def __new__(cls, via: str, session_id: str) -> "SessionVia":
        return super().__new__(cls, via)

    def __init__(self, via: str, session_id: str) -> None:
        self.session_id = session_id


class AuditRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of the audit log.

    `at` is a Unix timestamp, or an RFC 3339 string for events that carry their time as text.
    """

    at: float | str
    who: str
    via: str
    method: str
    tool: str
    arguments: Raw | Digest | None
    verdict: str
    outcome: str
    seconds: float = 0.0
    reason: str | None = None
    details: dict[str, Any] | None = None  # of an event, or where a refused caller was

    @classmethod
    def event(
        cls,
        at: float | str,
        who: str,
        via: str,
        method: str,
        tool: str = "",
        *,
        verdict: str,
        outcome: str | None = None,
        args_sha256: str | None = None,
        **details: Any,
    ) -> bytes:
        """Encode the record of an event. If `outcome` is None, the verdict is recorded as the outcome too."""
        members = {
            "at": at if isinstance(at, str) else rfc3339(at),
            "who": who,
            "via": via,
            "method": method,
            "tool": tool,
            "args_sha256": args_sha256,
            "verdict": verdict,
            "outcome": verdict if outcome is None else outcome,
            "ms": 0.0,
        }
        return _encode({**members, **details})

    def encode(self) -> bytes:
        """Encode the record of a call. Most records have this form, so the JSON is built directly, which is faster."""
        digest = self.arguments if isinstance(self.arguments, Digest) else digest_of(self.arguments)
        at, via = int(self.at), self.via
        before, after = _frame(at, self.who, via, self.method, self.tool, self.verdict, self.outcome)
        more = "" if self.reason is None else f',"reason":{_quote(self.reason)}'
        if isinstance(via, SessionVia):
            more += f',"session_id":{_quote(via.session_id)}'
        if self.details is not None:
            more += f",{_encode(self.details).decode()[1:-1]}"
        return f"{before}{digest}{after}{self.seconds * 1000:.3f}{more}}}".encode()


def digest_of(arguments: Raw | None) -> Digest:
    """Return the digest that an audit record contains for these arguments."""
    return _NO_ARGUMENTS if arguments is None else Digest(hashlib.sha256(arguments).hexdigest())


@functools.lru_cache(maxsize=128)
def _frame(at: int, who: str, via: str, method: str, tool: str, verdict: str, outcome: str) -> tuple[str, str]:
    """Return the two parts of an encoded audit record: the text before the digest of the arguments, and the text after
    it.

    It is cached, because calls of one second share it.
    """
    before = (
        f'{{"at":"{rfc3339(at)}","who":{_quote(who)},"via":"{via}","method":"{method}"'
        f',"tool":{_quote(tool)},"args_sha256":"'
    )
    return before, f'","verdict":"{verdict}","outcome":"{outcome}","ms":'


def _quote(text: str) -> str:
    return _encode(text).decode()


_NO_ARGUMENTS: Final = Digest(hashlib.sha256(b"{}").hexdigest())
