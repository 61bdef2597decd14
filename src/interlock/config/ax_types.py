"""The kinds of value that name a node's place in the tree: its parents, its children, whose word is proof."""

import re
from typing import Any, Final
from urllib.parse import urlsplit

from interlock.config.location import WRONG, At, Wrong
from interlock.config.plan import ChildPlan, ParentPlan
from interlock.config.table_type import Record
from interlock.config.value_types import Command, FilePath, Kind, Many, Segment, Table, Text, read_text
from interlock.protocol.net.address_scope import is_loopback

TREE: Final = Text(pattern=r"[a-z0-9][a-z0-9._-]{0,62}", what="1 to 63 of the characters a-z 0-9 . _ -")
_SOCKET_URL: Final = r"wss?://[!-~]+"
ENVIRONMENT: Final = Table(  # of a program that the node starts
    names=r"[^=\x00]+",
    names_are="a name an environment variable can have",
    item=Text(references=True, empty=True, stored=True),
    reserved="INTERLOCK_",  # a node started as a server would take them for its own settings
)
AUTHORITY: Final = Text(
    pattern=r"dns:(?=.{1,253}$)(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?",
    what='a DNS name after "dns:"',
    hint='for instance "dns:edge01.example.com"',
)


class SocketUrl(Kind, frozen=True, kw_only=True):
    """Where a parent takes registrations: /ax of its public door."""

    def read(self, value: object, at: At) -> str | Wrong:
        text = read_text(value, at, "a URL")
        if isinstance(text, Wrong):
            return WRONG
        try:
            parts = urlsplit(text)
            host = parts.hostname
        except ValueError:
            host = None
        if not re.fullmatch(_SOCKET_URL, text) or not host:
            return at.wrong(f"{at.name} must begin with wss:// or ws://", 'for instance "wss://hub.example.com/ax"')
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            return at.wrong(f"{at.name} must have no credentials, query or fragment", "give the token as 'secret'")
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{_SOCKET_URL}$"}


class _Parent(Record, frozen=True, kw_only=True):
    def read(self, value: object, at: At) -> Any:
        read = super().read(value, at)
        if isinstance(read, ParentPlan):
            parts = urlsplit(read.url)
            if parts.scheme == "ws" and not is_loopback(parts.hostname or "") and read.secure_by is None:
                hint = 'dial wss://, or say secure_by = "why it is secure" if something else protects the way'
                return at.wrong(f"{at.name} is beyond this machine without TLS", hint)
            if parts.scheme == "ws" and (read.ca_file is not None or read.tls_cert is not None):
                return at.wrong(f"{at.name} has certificates and dials without TLS", "dial wss://, or leave them out")
        return read


PARENT: Final = _Parent(
    what="a parent",
    where="[[ax.parents]]",
    fields={
        "url": SocketUrl(),
        "segment": Segment(),
        "tree": TREE,
        "secret": Text(references=True),
        "authority": AUTHORITY,
        "secure_by": Text(),
        "ca_file": FilePath(),
        "tls_cert": FilePath(),
        "tls_key": FilePath(),
    },
    needed=("url", "segment"),
    beside={"tls_cert": ("tls_key",), "tls_key": ("tls_cert",)},
    make=ParentPlan,
)
CHILD: Final = Record(
    what="a child",
    where="[[ax.children]]",
    fields={"command": Command(), "segment": Segment(), "env": ENVIRONMENT},
    needed=("command", "segment"),
    make=ChildPlan,
)
GLOB_URLS: Final = Many(
    item=Text(pattern=r"https?://[!-~]+", what="an http:// or https:// URL, * standing for any part")
)
