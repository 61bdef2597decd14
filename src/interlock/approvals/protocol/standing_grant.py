"""A standing grant: a person's signed yes to calls of one tool by one caller, within limits, for some time.

It is signed once, over its canonical JSON (RFC 8785), which has the digest of the tool's definition in it: another
definition is another tool. What it lets through is said by `argument_rules`. It stands for the yes to a held call
(MCP-AX 11.3) at the node that it names, and at no other.
"""

import hashlib
import re
from typing import Any, Final

import msgspec

from interlock.approvals.protocol.argument_rules import ArgumentRule, BadRules, check_rules
from interlock.wire.jsontext.canonical import NotCanonical, canonical

KIND: Final = "standing_grant"  # what is signed, and the type of the proof that a call under it has
VERSION: Final = 1
CALLS_MAX: Final = 10_000
LIFETIME_S_MAX: Final = 90 * 86_400  # what was agreed to longer ago is forgotten
SIGNING_S_MAX: Final = 300  # between the draft and its signature
BYTES_MAX: Final = 32 * 1024  # of the canonical JSON: a person reads it
TEXT_CHARS_MAX: Final = 1000
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class StandingGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are UNIX seconds. `calls`: how many; `until`: up to when; null: the other one is the limit."""

    id: str
    aggregator_id: str
    tool: str
    tool_digest: str
    who: str  # as `requested_by` of an approval: a caller, or a parent and the mark of its caller
    rules: tuple[ArgumentRule, ...]
    calls: int | None
    until: int | None
    issued_at: int
    reason: str | None = None


def canonical_grant(grant: StandingGrant) -> bytes:
    """What is signed. Raises BadRules where it has no canonical form."""
    members: dict[str, Any] = msgspec.to_builtins(grant)
    try:
        return canonical({**members, "kind": KIND, "v": VERSION})
    except NotCanonical as error:
        raise BadRules(str(error)) from None


def grant_digest(grant: StandingGrant) -> str:
    """SHA-256 in hex; what a proof has as its call_digest."""
    return hashlib.sha256(canonical_grant(grant)).hexdigest()


def check_grant(grant: StandingGrant, now: float) -> None:
    """Whether it can be signed at this moment. Raises BadRules."""
    if not _UUID.fullmatch(grant.id):
        raise BadRules("the id of a grant is a UUID")
    if grant.calls is None and grant.until is None:
        raise BadRules("a grant ends: after a number of calls, or at a time")
    if grant.calls is not None and not 1 <= grant.calls <= CALLS_MAX:
        raise BadRules(f"a grant is for 1 to {CALLS_MAX} calls")
    if grant.until is not None and not 0 < grant.until - now <= LIFETIME_S_MAX:
        raise BadRules(f"a grant ends in the future, and within {LIFETIME_S_MAX // 86_400} days")
    if abs(now - grant.issued_at) > SIGNING_S_MAX:
        raise BadRules("it was drafted too long ago, or the clocks differ; draft it again")
    if not 0 < len(grant.who) <= TEXT_CHARS_MAX or len(grant.reason or "") > TEXT_CHARS_MAX:
        raise BadRules(f"a grant names its caller, and its reason has at most {TEXT_CHARS_MAX} characters")
    check_rules(grant.rules)
    if len(canonical_grant(grant)) > BYTES_MAX:
        raise BadRules(f"it is longer than {BYTES_MAX} bytes; let long arguments be anything, or leave them out")
