"""The keys of a request's `_meta` that cross a hop (MCP-AX 1.1 (e)).

Each key has a fate. Keys of an era are written again for the era of the server; trace keys pass; keys that name a
credential, and keys of MCP-AX, are dropped; other vendors' keys pass as the bytes they came in if the server may have
them. The progress token is replaced by one of ours. A key names a credential if one of its words does: `refresh_token`
and `apiKey` are dropped, `tokenizer` and `authorName` are not (AX-10.1-1).

Clients send the same keys with every request, so the fate of a short key is remembered.
"""

import functools
import itertools
import re
from enum import Enum
from typing import Final

from msgspec import Raw

from interlock.mcp import methods
from interlock.mcp.methods import LATEST_MODERN, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_VERSION

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
_REMEMBERED_CHARS_MAX: Final = 256  # a client writes the keys; longer ones are judged anew each time
RAW_EMPTY: Final = Raw(b"{}")
RAW_MODERN: Final = Raw(b'"%b"' % LATEST_MODERN.encode())


# A modern request's `_meta` with nothing but these needs no rewriting on its way to a modern server.
UNCHANGED_KEYS: Final = frozenset((META_VERSION, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, *_TRACE_KEYS))


class Fate(Enum):
    """The rule by which the gateway treats a key of `_meta` when it forwards a request."""

    PASS = 1
    VENDOR = 2
    ERA = 3
    DROP = 4


def fate(key: str) -> Fate:
    """Return what a gateway does with this key of `_meta`."""
    return _remembered(key) if len(key) <= _REMEMBERED_CHARS_MAX else _judge(key)


def _judge(key: str) -> Fate:
    if key in ERA_KEYS:
        return Fate.ERA
    if key in _TRACE_KEYS:
        return Fate.PASS
    lowered = key.lower()
    # AX-7.2-6: a client's own
    if lowered.startswith("x-mcpax-") or lowered == "baggage" or key == methods.META_TASK:  # the link names a task anew
        return Fate.DROP
    return Fate.DROP if _names_credential(key) else Fate.VENDOR  # AX-10.1-1, AX-1.1-7


def _names_credential(key: str) -> bool:
    """Return whether one word of a key means a credential, as in `refresh_token`, but not in `tokenizer` or
    `authorName`.
    """
    words = [word.lower() for word in _WORD.findall(key)]
    if not _CREDENTIAL_WORDS.isdisjoint(word.removesuffix("s") for word in words):  # AX-10.1-1
        return True
    return any(first in _KEY_KINDS and second in ("key", "keys") for first, second in itertools.pairwise(words))


_remembered = functools.lru_cache(maxsize=4096)(_judge)


def crossing_keys(meta: dict[str, Raw], *, vendor: bool) -> dict[str, Raw]:
    """Return the keys of `meta` that may be forwarded to any server, in their order. `vendor` allows the keys of other
    vendors.

    Keys of an era and the progress token are not included; the calling code writes them.
    """
    crossing = {}
    for key, value in meta.items():
        what = fate(key)
        if what is Fate.PASS or (what is Fate.VENDOR and vendor):
            crossing[key] = value
    return crossing


def stamp_modern(
    crossed: dict[str, Raw], *, capabilities: Raw, client: Raw | None, log_level: Raw | None
) -> dict[str, Raw]:
    """Return the `_meta` for a 2026-07-28 server: the forwarded keys, and the keys that this era requires.
    `capabilities` are those of the client, not of the gateway.
    """
    crossed[META_VERSION] = RAW_MODERN
    crossed[META_CAPABILITIES] = capabilities
    if client is not None:
        crossed[META_CLIENT] = client
    if log_level is not None:
        crossed[META_LOG_LEVEL] = log_level
    return crossed
