"""What travels with a request from a client to a server: keys of `_meta`, capabilities and roots.

Each key of `_meta` has a fate at a hop (MCP-AX 1.1 (e)). Keys of an era are written again for the era of the server;
trace keys pass, `baggage` among them unless one of its members names a credential or a claim of MCP-AX; keys that name
a credential, and keys of MCP-AX, are dropped; other vendors' keys pass as the bytes they came in if the server may have
them. The progress token is replaced by one of ours. A key names a credential if one
of its words does: `refresh_token` and `apiKey` are dropped, `tokenizer` and `authorName` are not (AX-10.1-1). Clients
send the same keys with every request, so the fate of a short key is remembered.

A client declares its capabilities at `initialize` (legacy) or with every request (2026-07-28). They are translated
between the two forms. A client's own capabilities travel to the servers; those of the gateway never do. A capability is
an object; any other value in its place declares nothing. Servers of an older revision report a missing capability as
text. `find_missing_capability` recognises the texts of the common SDKs, so that a modern client gets the error that its
revision defines.

Roots are folders that a client names to a server, restricted to the folders that an operator allows. A root passes if
its path leads into an allowed folder once symlinks are followed. This is checked twice: for the path as it is written,
and for the path after its dots are resolved as text, because servers differ in which of the two they do first. A root
that passes is rewritten to the resolved path, so that the server reads the path that was judged. All others are
withheld and recorded. The number of roots in a message, the length of a URI and the depth of a path are limited: each
step of each path is looked up on the disk.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.mcp import methods
from interlock.mcp.methods import ASKED_OF_CLIENT, ELICIT, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_VERSION
from interlock.net.protocol.uri import Unreadable, file_uri, is_within, read_file_path, without_dots
from interlock.wire.jsonrpc.codec import decode_array, decode_object, encode_value, find_string

PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105  (a correlation id, not a secret)

ERA_KEYS: Final = frozenset((META_VERSION, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, methods.META_SUBSCRIPTION))
_TRACE_KEYS: Final = frozenset(("traceparent", "tracestate"))
_CREDENTIAL_WORDS: Final = frozenset(
    (
        *("token", "accesstoken", "authtoken", "idtoken", "refreshtoken", "authorization", "cookie", "secret"),
        *("session", "sessionid", "password", "passwd", "passphrase", "credential", "bearer", "jwt"),
        *("apikey", "accesskey", "privatekey"),
    )
)
_KEY_KINDS: Final = frozenset(("api", "access", "private"))  # before the word "key"
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")  # apiKey, API-Key, HTTPCookie
BAGGAGE: Final = "baggage"
BAGGAGE_CHARS_MAX: Final = 8192  # W3C Baggage, 3.3.2
# The name of a member, its value, and its properties after semicolons (W3C Baggage, 3.3.1).
_BAGGAGE_MEMBER: Final = re.compile(r"[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+[ \t]*=[!-+\--~ \t]*")
_REMEMBERED_CHARS_MAX: Final = 256  # a client writes the keys; longer ones are judged anew each time
RAW_EMPTY: Final = Raw(b"{}")
RAW_MODERN: Final = Raw(b'"%b"' % methods.LATEST_MODERN.encode())


# A modern request's `_meta` with nothing but these needs no rewriting on its way to a modern server.
UNCHANGED_KEYS: Final = frozenset((META_VERSION, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, *_TRACE_KEYS))


class Fate(Enum):
    """The rule by which the gateway treats a key of `_meta` when it forwards a request."""

    PASS = 1
    VENDOR = 2
    ERA = 3
    DROP = 4
    BAGGAGE = 5  # its value decides


def fate(key: str) -> Fate:
    """Return the rule for a key of `_meta`: what the gateway does with it when it forwards a request."""
    return _remembered(key) if len(key) <= _REMEMBERED_CHARS_MAX else _judge(key)


def _judge(key: str) -> Fate:
    if key in ERA_KEYS:
        return Fate.ERA
    if key in _TRACE_KEYS:
        return Fate.PASS
    if key == BAGGAGE:
        return Fate.BAGGAGE
    lowered = key.lower()
    # AX-7.2-6: a client's own
    if lowered.startswith("x-mcpax-") or lowered == "baggage" or key == methods.META_TASK:  # the link names a task anew
        return Fate.DROP
    # A word of the key may mean a credential, as in `refresh_token`, but not in `tokenizer` or `authorName`.
    words = [word.lower() for word in _WORD.findall(key)]
    if not _CREDENTIAL_WORDS.isdisjoint(word.removesuffix("s") for word in words):  # AX-10.1-1
        return Fate.DROP
    is_key = any(first in _KEY_KINDS and second in ("key", "keys") for first, second in itertools.pairwise(words))
    return Fate.DROP if is_key else Fate.VENDOR  # AX-10.1-1, AX-1.1-7


_remembered = functools.lru_cache(maxsize=4096)(_judge)


def crossing_keys(meta: dict[str, Raw], *, vendor: bool) -> dict[str, Raw]:
    """Return the keys of `meta` that may be forwarded to any server, in their order. `vendor` allows keys that other
    vendors define.

    Keys of an era and the progress token are not included; the calling code writes them.
    """
    crossing = {}
    for key, value in meta.items():
        what = fate(key)
        if (
            what is Fate.PASS
            or (what is Fate.VENDOR and vendor)
            or (what is Fate.BAGGAGE and is_passing_baggage(value))
        ):
            crossing[key] = value
    return crossing


def is_passing_baggage(value: Raw) -> bool:
    """Return whether a value is W3C Baggage, and no name of a member or property means a credential or a claim of
    MCP-AX (AX-1.1-7).
    """
    text = find_string(value) if len(value) <= BAGGAGE_CHARS_MAX else None
    if not text:
        return False
    members = [_BAGGAGE_MEMBER.fullmatch(member) for member in text.split(",")]
    return all(member is not None and all(map(_is_passing_name, _baggage_names(member[0]))) for member in members)


def _baggage_names(member: str) -> Iterator[str]:
    """Yield the name of a member of W3C Baggage and the names of its properties."""
    for part in member.split(";"):
        yield part.partition("=")[0].strip()


def _is_passing_name(name: str) -> bool:
    return fate(name) in (Fate.VENDOR, Fate.PASS)


def stamp_modern(
    crossed: dict[str, Raw], *, capabilities: Raw, client: Raw | None, log_level: Raw | None
) -> dict[str, Raw]:
    """Return the `_meta` of a request to a 2026-07-28 server: the forwarded keys in `crossed` and the keys that this
    era requires. `capabilities` are those of the client, not of the gateway.
    """
    crossed[META_VERSION] = RAW_MODERN
    crossed[META_CAPABILITIES] = capabilities
    if client is not None:
        crossed[META_CLIENT] = client
    if log_level is not None:
        crossed[META_LOG_LEVEL] = log_level
    return crossed


def has(raw: Raw | None, member: str) -> bool:
    """Return whether a capability, an encoded JSON object, has the value true in `member`."""
    settings = decode_object(raw) if raw is not None else None
    return settings is not None and bytes(settings.get(member, b"")) == b"true"


def capabilities_to_modern(offered: dict[str, Raw]) -> Raw:
    """Translate the capabilities that a legacy client declared at `initialize` into their form in the `_meta` of a
    2026-07-28 request.
    """
    declared: dict[str, Any] = {}
    for name in ("sampling", "experimental"):
        if is_object(offered.get(name)):
            declared[name] = offered[name]
    if is_object(offered.get("roots")):
        declared["roots"] = {}  # listChanged has no meaning without a session
    if is_object(offered.get("elicitation")):
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
            if raw is not None and is_object(raw):
                common[name] = _common(inner, decode_object(raw) or {})
        elif raw is not None and bytes(raw) == encode_value(inner):
            common[name] = inner
    return common


def declares(capabilities: Raw, name: str, mode: str | None = None) -> bool:
    """Return whether a modern client declared the capability `name`. For elicitation, `mode` is the mode that must be
    declared too.
    """
    settings = (decode_object(capabilities) or {}).get(name)
    if not is_object(settings):
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
    """Return the capability that a client needs to answer a request of a server, in its 2026-07-28 form. Return None if
    no capability allows the request.
    """
    if (needed := ASKED_OF_CLIENT.get(method)) is None:
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
    if (match := _LACKED.match(text)) is None:
        return None
    name, mode = match["name"].lower(), (match["mode"] or "form").lower()
    return None if declares(capabilities, name, mode) else {name: {"url": {}} if mode == "url" else {}}


def _mode(params: Raw) -> str:
    return find_string((decode_object(params) or {}).get("mode")) or "form"


def is_object(raw: Raw | None) -> bool:
    """Return whether encoded JSON is an object, judged by its first byte."""
    return raw is not None and bytes(raw)[:1] == b"{"


ROOTS_MAX: Final = 32  # of one message; each is looked up on the disk, step by step
STEPS_MAX: Final = 64
URI_CHARS_MAX: Final = 1024
_SCHEME: Final = "file:"

Resolve = Callable[[str], str]  # an absolute path -> the same without symlinks


class HeldRoots(msgspec.Struct, frozen=True):
    """The roots in a client's answer, by URI: those that were forwarded to the server, and those that were removed."""

    passed: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()  # as the client wrote them, cut

    def __bool__(self) -> bool:
        return bool(self.passed or self.withheld)


NONE: Final = HeldRoots()


def encode_roots(folders: Sequence[str]) -> bytes:
    """Encode the result of `roots/list` for these folders."""
    roots = [{"uri": file_uri(folder), "name": folder.rpartition("/")[2] or folder} for folder in folders]
    return encode_value({"roots": roots})


def hold_roots_untrusted(
    answer: Raw, allowed: Sequence[str], resolve: Resolve, most: int = ROOTS_MAX
) -> tuple[Raw, HeldRoots]:
    """Remove the roots that are not allowed from a client's answer to `roots/list`. An answer without roots stays
    unchanged.

    `allowed` are paths without symlinks. Roots after the first `most` are withheld without being checked, and the
    returned record names only one of them.
    """
    members: dict[str, Any] | None = decode_object(answer)
    if members is None or "roots" not in members:
        return answer, NONE
    passed: list[dict[str, Any]] = []
    withheld: list[str] = []
    for index, raw in enumerate((decode_array(members["roots"]) or ())[: most + 1]):
        root: dict[str, Any] | None = decode_object(raw)
        uri = find_string(root.get("uri")) if root is not None else None
        path = _find_allowed_path(uri, allowed, resolve) if uri is not None and index < most else None
        if root is not None and path is not None:
            passed.append({**root, "uri": file_uri(path)})
        else:
            withheld.append((uri or "no URI")[:URI_CHARS_MAX])
    held = HeldRoots(tuple(root["uri"] for root in passed), tuple(withheld))
    return Raw(encode_value({**members, "roots": passed})), held


def hold_answers_untrusted(
    answers: Raw | Mapping[str, Raw], allowed: Sequence[str], resolve: Resolve
) -> tuple[Raw, HeldRoots]:
    """Remove the roots that are not allowed from a modern client's answers to questions (`inputResponses`)."""
    if isinstance(answers, Raw):
        text = bytes(answers)
        if b"roots" not in text and b"\\u" not in text:  # nor spelled with escapes
            return answers, NONE
        # What cannot be read as an object answers nothing.
        responses: Mapping[str, Raw] = decode_object(answers) or {}
    else:
        responses = answers
    answered: dict[str, Raw] = {}
    all_held = NONE
    for key, answer in responses.items():
        seen = len(all_held.passed) + len(all_held.withheld)
        answered[key], held = hold_roots_untrusted(answer, allowed, resolve, max(0, ROOTS_MAX - seen))
        if held and seen <= ROOTS_MAX:
            all_held = HeldRoots(all_held.passed + held.passed, all_held.withheld + held.withheld)
    return Raw(encode_value(answered)), all_held


def _find_allowed_path(uri: str, allowed: Sequence[str], resolve: Resolve) -> str | None:
    if len(uri) > URI_CHARS_MAX or not allowed or uri[: len(_SCHEME)].lower() != _SCHEME:
        return None
    path = read_file_path(uri[len(_SCHEME) :])
    if isinstance(path, Unreadable) or path.count("/") > STEPS_MAX:
        return None
    real = resolve(path)
    return real if real == resolve(without_dots(path)) and is_within(real, allowed) else None
