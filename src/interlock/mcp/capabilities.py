"""The capabilities of a client in both eras, and what they allow a server to ask.

A client declares its capabilities at `initialize` (legacy) or with every request (2026-07-28). They are translated
between the two forms. A client's own capabilities travel to the servers; those of the gateway never do. A capability is
an object; any other value in its place declares nothing.

Servers of an older revision report a missing capability as text. `find_missing_capability` recognises the texts of the
common SDKs, so that a modern client gets the error that its revision defines.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw

from interlock.mcp.methods import ASKED_OF_CLIENT, ELICIT
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string


def has(raw: Raw | None, member: str) -> bool:
    """Return whether a capability contains a setting with the value true."""
    settings = decode_object(raw) if raw is not None else None
    return settings is not None and bytes(settings.get(member, b"")) == b"true"


def capabilities_to_modern(offered: dict[str, Raw]) -> Raw:
    """Translate the capabilities that a legacy client declared at `initialize` into their form in the `_meta` of a
    2026-07-28 request.
    """
    declared: dict[str, Any] = {}
    for name in ("sampling", "experimental"):
        if _is_object(offered.get(name)):
            declared[name] = offered[name]
    if _is_object(offered.get("roots")):
        declared["roots"] = {}  # listChanged has no meaning without a session
    if _is_object(offered.get("elicitation")):
        modes = decode_object(offered["elicitation"])
        declared["elicitation"] = modes or {"form": {}}  # before 2025-11-25 there was only the form
    return Raw(encode_value(declared))


def common_capabilities(supported: Mapping[str, Any], offered: Mapping[str, Raw]) -> dict[str, Any]:
    """Return the capabilities in `supported` that a client of either era also offers.

    The result has one form for both eras, so that two clients that offer the same capabilities yield equal bytes.
    """
    common = _common(supported, offered)
    if common.get("elicitation") == {} and not decode_object(offered["elicitation"]):
        common["elicitation"] = {"form": {}}  # before 2025-11-25 there was only the form
    return common


def _common(supported: Mapping[str, Any], offered: Mapping[str, Raw]) -> dict[str, Any]:
    common: dict[str, Any] = {}
    for name, inner in supported.items():
        raw = offered.get(name)
        if isinstance(inner, Mapping):
            if raw is not None and _is_object(raw):
                common[name] = _common(inner, decode_object(raw) or {})
        elif raw is not None and bytes(raw) == encode_value(inner):
            common[name] = inner
    return common


def declares(capabilities: Raw, name: str, mode: str | None = None) -> bool:
    """Return whether a modern client declared the capability `name`. For elicitation, `mode` is the mode that must be
    declared too.
    """
    settings = (decode_object(capabilities) or {}).get(name)
    if not _is_object(settings):
        return False
    if name != "elicitation" or mode is None:
        return True
    modes = decode_object(settings or b"") or {}
    return mode in modes or (mode == "form" and not modes)


def may_be_asked(capabilities: Raw, method: str, params: Raw) -> bool:
    """Return whether a client with these 2026-07-28 capabilities can answer a request that a server sends it."""
    needed = ASKED_OF_CLIENT.get(method)
    return needed is not None and declares(capabilities, needed, _mode(params) if method == ELICIT else None)


def question_capability(method: str, params: Raw) -> dict[str, Any] | None:
    """Return the capability that a client needs to answer a server's request, in its 2026-07-28 form. Return None if no
    capability allows the request.
    """
    needed = ASKED_OF_CLIENT.get(method)
    if needed is None:
        return None
    return {needed: {"url": {}} if method == ELICIT and _mode(params) == "url" else {}}


# How the SDKs put it where a tool of an older revision needs what its client did not declare.
_LACKED: Final = re.compile(
    r"Client does not support (?:(?P<mode>form|url) )?(?:listing )?(?P<name>elicitation|sampling|roots)\b", re.I
)


def find_missing_capability(text: str, capabilities: Raw) -> dict[str, Any] | None:
    """Find the capability that a server's error text reports as missing.

    Return None if the text names no capability, or if the client did declare it.
    """
    match = _LACKED.match(text)
    if match is None:
        return None
    name, mode = match["name"].lower(), (match["mode"] or "form").lower()
    return None if declares(capabilities, name, mode) else {name: {"url": {}} if mode == "url" else {}}


def _mode(params: Raw) -> str:
    return find_string((decode_object(params) or {}).get("mode")) or "form"


def _is_object(raw: Raw | None) -> bool:
    return raw is not None and bytes(raw)[:1] == b"{"
