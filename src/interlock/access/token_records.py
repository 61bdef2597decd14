"""The records of the audit log for tokens that are made and revoked: which, for whom, by whom; never the token."""

from typing import Any, Literal

import msgspec

from interlock.core.clock import rfc3339
from interlock.store.tokens import TokenRecord


def token_line(event: Literal["issue", "revoke"], token: TokenRecord, by: str, now: float) -> bytes:
    outcome = "made" if event == "issue" else "revoked"
    members: dict[str, Any] = {
        "at": rfc3339(now),
        "who": by,
        "via": "operator",
        "method": f"tokens/{event}",
        "tool": "",
        "args_sha256": None,
        "verdict": outcome,
        "outcome": outcome,
        "ms": 0.0,
        "token_id": token.id,
        "token_name": token.name,
        "token_for": token.audience,
        "scope": token.scope,
        "until": None if token.expires_at is None else rfc3339(token.expires_at),
    }
    if token.room is not None:
        room = token.room
        members |= {"room": room.topic, "participant": room.participant, "privilege": room.privilege}
    return msgspec.json.encode(members)
