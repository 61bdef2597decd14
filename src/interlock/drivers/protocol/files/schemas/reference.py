"""The REF value of AIP-27, which the published contracts refer to by its address: our own writing of its base kinds.

A value is a text, KIND:BODY, or an object with `kind`. Unknown kinds are refused, and paths that leave the workspace.
"""

from typing import Any, Final

REFERENCE_URI: Final = "https://agentproto.sh/docs/aip-27/REF.schema.json"

_TEXT: Final = {"type": "string", "minLength": 1}
_SHA256: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_INSIDE: Final = {"type": "string", "minLength": 1, "not": {"pattern": r"^/|\\|(^|/)\.\.(/|$)"}}
_WEB: Final = {"type": "string", "pattern": "^https?://"}
# kind -> what it must have, and what it may.
_FILES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "local": ({"path": _INSIDE}, {"sha256": _SHA256}),
    "url": ({"href": _WEB}, {"sha256": _SHA256}),
}
_KINDS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    **_FILES,
    "git": ({"url": _TEXT, "ref": _TEXT}, {"path": _TEXT}),
    "github": ({"owner": _TEXT, "repo": _TEXT}, {"ref": _TEXT, "path": _TEXT}),
    "ipfs": ({"cid": _TEXT}, {"path": _TEXT}),
    "email": ({"address": _TEXT}, {}),
    "operator": ({"slug": _TEXT}, {"workspace": _TEXT}),
    "user": ({"id": _TEXT}, {"workspace": _TEXT}),
    "persona": ({"id": _TEXT}, {}),
    "eth_tx": (
        {"chainId": {"type": "integer", "minimum": 1}, "txHash": {"type": "string", "pattern": "^0x[0-9a-f]{64}$"}},
        {},
    ),
}


def _kind(name: str, needed: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    shared = {"tags": {"type": "array", "items": {"type": "string"}}, "description": {"type": "string"}}
    return {
        "type": "object",
        "properties": {"kind": {"const": name}, **needed, **optional, **shared},
        "required": ["kind", *needed],
    }


_PROOF: Final = {"anyOf": [_kind(name, *fields) for name, fields in _FILES.items()]}
_COMPACT: Final = {
    "type": "string",
    "pattern": f"^({'|'.join((*_KINDS, 'ots'))}):.",
    "not": {"pattern": r"^(ots:)?local:(/|.*\\|(.*/)?\.\.(/|#|$))"},
}
REFERENCE: Final = {
    "description": "A reference (AIP-27): KIND:BODY, or an object with its kind.",
    "anyOf": [
        _COMPACT,
        *(_kind(name, *fields) for name, fields in _KINDS.items()),
        _kind("ots", {"proof": _PROOF}, {}),
    ],
}
