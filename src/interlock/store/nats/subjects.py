"""Names of streams and subjects on a NATS server: any text becomes a token that NATS takes.

Letters, digits and the hyphen stand for themselves, any other byte is an underscore and two hexadecimal digits. A text
that would be too long is replaced by its digest; what was meant is then said elsewhere.
"""

import hashlib
import re

TOKEN_MAX = 180  # characters: four tokens stay below the 4096 of a protocol line, a stream's name below 255 of a file's

_PLAIN = re.compile(rb"[^A-Za-z0-9-]")
_QUOTED = re.compile(rb"_([0-9A-F]{2})")


def token(text: str) -> str:
    quoted = _PLAIN.sub(lambda match: b"_%02X" % ord(match[0]), text.encode()).decode() or "__"
    return quoted if len(quoted) <= TOKEN_MAX else "_s" + hashlib.sha256(text.encode()).hexdigest()


def is_digest(quoted: str) -> bool:
    """Return whether the token is a digest, from which the text cannot be recovered."""
    return quoted.startswith("_s")


def text_of(quoted: str) -> str:
    if quoted == "__":
        return ""
    return _QUOTED.sub(lambda match: bytes.fromhex(match[1].decode()), quoted.encode()).decode()


class Names:
    """The names of streams and subjects that replicas of one node share."""

    def __init__(self, node: str) -> None:
        node = token(node)
        self.kv_stream = f"INTERLOCK-{node}-KV"
        self.entries = f"interlock.{node}.kv"
        self.parts = f"interlock.{node}.part"
        self.names_stream = f"INTERLOCK-{node}-NAMES"
        self.names = f"interlock.{node}.names"
        self._streams = f"INTERLOCK-{node}-S"
        self._records = f"interlock.{node}.stream"

    def entry(self, bucket: str, key: str) -> str:
        return f"{self.entries}.{token(bucket)}.{token(key)}"

    def stream(self, name: str) -> str:
        # Node names hold hyphens: without the length, "a" with stream "b-S-c" and "a-S-b" with "c" would be one.
        return f"{self._streams}{len(token(name))}-{token(name)}"

    def records(self, name: str) -> str:
        return f"{self._records}.{token(name)}"
