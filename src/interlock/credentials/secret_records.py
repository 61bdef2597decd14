"""The records of the audit log for secrets that are set and removed: which, by whom; never the value."""

from typing import Literal

import msgspec

from interlock.core.clock import rfc3339
from interlock.store.sqlite.secrets import Kind


def secret_line(event: Literal["set", "remove"], kind: Kind, name: str, by: str, now: float) -> bytes:
    outcome = "kept" if event == "set" else "removed"
    return msgspec.json.encode(
        {
            "at": rfc3339(now),
            "who": by,
            "via": "operator",
            "method": f"secrets/{event}",
            "tool": "",
            "args_sha256": None,
            "verdict": outcome,
            "outcome": outcome,
            "ms": 0.0,
            "secret_kind": kind,
            "secret_name": name,
        }
    )
