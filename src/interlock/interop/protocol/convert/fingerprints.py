"""What an import remembers of what the source said: digests, by which a later import tells what changed.

No value is kept, because one that was not taken for a secret may be one. A list is one value.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def fingerprint_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with a digest in place of each value; what is a digest already stays one."""
    return {
        key: fingerprint_values(each) if isinstance(each, Mapping) else _fingerprint(each) for key, each in data.items()
    }


def recall_values(base: Mapping[str, Any], *known: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values that the known ones still have at their places; the rest stay digests, equal to none."""
    result: dict[str, Any] = {}
    for key, digest in base.items():
        here = [each[key] for each in known if key in each]
        if isinstance(digest, Mapping):
            result[key] = recall_values(digest, *(each for each in here if isinstance(each, Mapping)))
        else:
            result[key] = next((each for each in here if _is_of(each, digest)), digest)
    return result


def _is_of(value: Any, digest: Any) -> bool:
    return not isinstance(value, Mapping) and digest in (value, _digest(value))


def _fingerprint(value: Any) -> str:
    return value if isinstance(value, str) and _DIGEST.fullmatch(value) else _digest(value)


def _digest(value: Any) -> str:
    return f"sha256:{hashlib.sha256(msgspec.json.encode(value, order='sorted')).hexdigest()}"
