"""Is an entry Interlock itself? A client that was pointed at a node must not be imported into it (AIP-export-1)."""

from collections.abc import Collection
from urllib.parse import urlsplit

from interlock.interop.protocol.model import Entry
from interlock.interop.protocol.read.launchers import classify_command, program_name
from interlock.interop.protocol.read.remote_bridges import Unwrapped, unwrap_bridge
from interlock.net.protocol.address_scope import LOCALHOST, LOOPBACK_ADDRESSES

PROGRAM = "interlock"


def is_own(entry: Entry, addresses: Collection[str]) -> bool:
    """`addresses`: the URLs under which nodes of ours are known, without paths."""
    if entry.url is not None:
        return _same(entry.url, addresses)
    if entry.server is not None or not entry.command:
        return False
    if "serve" in entry.command and _starts_us(entry.command):
        return True
    carried = unwrap_bridge(classify_command(entry.command).server, entry.env)
    return isinstance(carried, Unwrapped) and _same(carried.url, addresses)


def _starts_us(command: tuple[str, ...]) -> bool:
    server = classify_command(command).server
    if program_name(command[0]) == PROGRAM or server.get("package", "").partition("==")[0] == PROGRAM:
        return True
    module = [index for index, each in enumerate(command[:-1]) if each == "-m"]
    return any(command[index + 1] == PROGRAM for index in module)


def _same(url: str, addresses: Collection[str]) -> bool:
    try:
        asked = urlsplit(url)
        known = [urlsplit(each) for each in addresses]
        return any(
            _host(each.hostname) == _host(asked.hostname) and each.port == asked.port and each.scheme == asked.scheme
            for each in known
        )
    except ValueError:
        return False


def _host(name: str | None) -> str | None:
    return LOCALHOST if name in LOOPBACK_ADDRESSES else name
