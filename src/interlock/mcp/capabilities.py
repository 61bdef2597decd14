"""A client's capabilities, said in the other era: the client's own travel, never the gateway's. And what they let a
server ask. A capability is an object; whatever else stands in its place declares nothing.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw

from interlock.mcp.methods import ASKED_OF_CLIENT, ELICIT
from interlock.wire.jsonrpc.codec import decode_object, encode_value, maybe_string


def capabilities_to_modern(offered: dict[str, Raw]) -> Raw:
    """What a legacy client declared at `initialize`, for the `_meta` of a 2026-07-28 request."""
    said: dict[str, Any] = {}
    for name in ("sampling", "experimental"):
        if _is_object(offered.get(name)):
            said[name] = offered[name]
    if _is_object(offered.get("roots")):
        said["roots"] = {}  # listChanged has no meaning without a session
    if _is_object(offered.get("elicitation")):
        modes = decode_object(offered["elicitation"])
        said["elicitation"] = modes or {"form": {}}  # before 2025-11-25 there was only the form
    return Raw(encode_value(said))


def common_capabilities(known: Mapping[str, Any], offered: Mapping[str, Raw]) -> dict[str, Any]:
    """What a client of either era offers of what is known, in one form, so that equal offers are equal bytes."""
    common = _common(known, offered)
    if common.get("elicitation") == {} and not decode_object(offered["elicitation"]):
        common["elicitation"] = {"form": {}}  # before 2025-11-25 there was only the form
    return common


def _common(known: Mapping[str, Any], offered: Mapping[str, Raw]) -> dict[str, Any]:
    common: dict[str, Any] = {}
    for name, inner in known.items():
        raw = offered.get(name)
        if isinstance(inner, Mapping):
            if raw is not None and _is_object(raw):
                common[name] = _common(inner, decode_object(raw) or {})
        elif raw is not None and bytes(raw) == encode_value(inner):
            common[name] = inner
    return common


def declares(capabilities: Raw, name: str, mode: str | None = None) -> bool:
    """Whether a modern client declared `name` (and, for elicitation, the mode)."""
    settings = (decode_object(capabilities) or {}).get(name)
    if not _is_object(settings):
        return False
    if name != "elicitation" or mode is None:
        return True
    modes = decode_object(settings or b"") or {}
    return mode in modes or (mode == "form" and not modes)


def may_be_asked(capabilities: Raw, method: str, params: Raw) -> bool:
    """Whether a client that declared these, in the words of 2026-07-28, can answer this question of a server."""
    needed = ASKED_OF_CLIENT.get(method)
    return needed is not None and declares(capabilities, needed, _mode(params) if method == ELICIT else None)


def question_capability(method: str, params: Raw) -> dict[str, Any] | None:
    """The capability that question needs, as 2026-07-28 names what is required; None where none would do."""
    needed = ASKED_OF_CLIENT.get(method)
    if needed is None:
        return None
    return {needed: {"url": {}} if method == ELICIT and _mode(params) == "url" else {}}


# How the SDKs put it where a tool of an older revision needs what its client did not declare.
_LACKED: Final = re.compile(
    r"Client does not support (?:(?P<mode>form|url) )?(?:listing )?(?P<name>elicitation|sampling|roots)\b", re.I
)


def capability_said_lacking(said: str, capabilities: Raw) -> dict[str, Any] | None:
    """The capability that a failure's text says the client lacks, and that it did not declare, as 2026-07-28 names what
    is required."""
    found = _LACKED.match(said)
    if found is None:
        return None
    name, mode = found["name"].lower(), (found["mode"] or "form").lower()
    return None if declares(capabilities, name, mode) else {name: {"url": {}} if mode == "url" else {}}


def _mode(params: Raw) -> str:
    return maybe_string((decode_object(params) or {}).get("mode")) or "form"


def _is_object(raw: Raw | None) -> bool:
    return raw is not None and bytes(raw)[:1] == b"{"
