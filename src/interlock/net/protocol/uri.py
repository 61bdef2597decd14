"""URIs as security decisions compare them: file URIs as paths, and the resource identifiers of OAuth (RFC 8707).

A file URI is only read where every reader would read the same path: one with a host, a query, a double encoding or a
control character is refused with a reason, because a server and this node could understand it differently.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote

import msgspec

_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}")


class Unreadable(msgspec.Struct, frozen=True):
    reason: str


def read_file_path(rest_untrusted: str) -> str | Unreadable:
    """Return the path of a file URI, or why it cannot be read. `rest_untrusted` is what follows `file:`."""
    rest = rest_untrusted
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host:
            return Unreadable("it names a host")
        rest = slash + path
    if not rest.startswith("/") or rest.startswith("//"):
        return Unreadable("its path is not absolute")
    if "?" in rest or "#" in rest:
        return Unreadable("a file has no query and no fragment")
    try:
        path = unquote(rest, errors="strict")
    except UnicodeDecodeError:
        return Unreadable("its path is not UTF-8")
    if _ESCAPE.search(path):
        return Unreadable("its path is encoded twice")
    if "\\" in path or any(ord(each) < 0x20 or ord(each) == 0x7F for each in path):
        return Unreadable("its path holds a backslash or a control character")
    return path


def file_uri(path: str) -> str:
    return "file://" + quote(path, safe="/~!$&'()*+,;=:@", errors="surrogateescape")


def without_dots(path: str) -> str:
    steps: list[str] = []
    for each in path.split("/"):
        if each == "..":
            del steps[-1:]
        elif each not in {"", "."}:
            steps.append(each)
    return "/" + "/".join(steps)


def is_within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def same_resource(uri: str, other: str) -> bool:
    """Return whether two URIs name the same resource. Only the case of scheme and host may differ (MCP, Canonical
    Server URI).
    """
    return uri == other or canonical_uri(uri) == canonical_uri(other)


def canonical_uri(uri: str) -> str:
    scheme, mark, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return scheme.lower() + mark + host.lower() + slash + path
