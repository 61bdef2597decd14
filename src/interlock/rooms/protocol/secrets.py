"""Detection of secrets in a proposal, which everyone in the room would read (X-7.2-1).

The arguments are searched for what looks like a credential, by patterns of the room's configuration and by built-in
ones. The result is the places as JSON pointers; the text itself is never repeated. Misses and false alarms are
possible.
"""

import re
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.server_block import is_plaintext
from interlock.rooms.protocol.errors import EnvelopeRefusal

FOUND_MAX: Final = 10  # places that are named
TEXT_CHARS_MAX: Final = 16 * 1024  # of one text that are looked at
VALUES_MAX: Final = 5000  # that are looked at, and
CHARS_MAX: Final = 128 * 1024  # of all texts among them: what is more is no call that a person would read
_BETWEEN: Final = re.compile(r"[\s\"'`=,;&?()<>\[\]{}]+")


def secret_refusal(arguments: bytes, patterns: tuple[str, ...], id: str | None = None) -> EnvelopeRefusal | None:
    """Refuse arguments that seem to hold a secret. Nothing is published before the sender has read this."""
    places = secret_places(arguments, patterns)
    if not places:
        return None
    message = (
        "nothing was sent: the arguments seem to hold a secret, and everyone in the room would see it, now and in its"
        " history; leave it out, or use rooms.propose with despite_secrets if everyone may know it"
    )
    return EnvelopeRefusal("secret_found", message, {"at": places}, id=id)


def secret_places(arguments: bytes, patterns: tuple[str, ...]) -> list[str]:
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []  # what is no JSON is refused elsewhere
    places: list[str] = []
    waiting: list[tuple[str, str, Any]] = [("", "", value)]
    values, chars = VALUES_MAX, CHARS_MAX
    while waiting and len(places) < FOUND_MAX and values > 0 and chars > 0:
        pointer, name, item = waiting.pop()
        values -= 1
        if isinstance(item, dict):
            waiting += [
                (f"{pointer}/{_escaped(key)}", key, each) for key, each in reversed([*islice(item.items(), VALUES_MAX)])
            ]
        elif isinstance(item, list):
            waiting += [(f"{pointer}/{at}", name, each) for at, each in reversed([*enumerate(item[:VALUES_MAX])])]
        elif isinstance(item, str):
            chars -= min(len(item), TEXT_CHARS_MAX)
            if _is_secret(name, item[:TEXT_CHARS_MAX], patterns):
                places.append(pointer)
    return places


def _is_secret(name: str, text: str, patterns: tuple[str, ...]) -> bool:
    if is_plaintext(name, text):
        return True
    words = _BETWEEN.split(text) if patterns else []
    return any(fnmatchcase(word, pattern) for word in words for pattern in patterns)


def _escaped(key: str) -> str:
    """RFC 6901."""
    return key[:100].replace("~", "~0").replace("/", "~1")
