"""Advice for a server that did not come up when it was added: what the person does next, by what failed.

Installers and servers say why in their own words only, so the words are what is looked at. What is not recognised
gets the general advice, never that of another failure.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from interlock.drivers.interfaces import DriverState
from interlock.drivers.protocol.kinds import SERVERS
from interlock.drivers.trial import TrialResult

NOTHING: Final = "nothing was written"

_UNREACHABLE: Final = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|getaddrinfo|name resolution"
    r"|NewConnectionError|ConnectTimeout|ReadTimeout|Max retries|Network is unreachable|Connection refused"
    r"|Connection broken|ProxyError|SSLError|took longer than|no such host",
    re.IGNORECASE,
)
_NO_VERSION: Final = re.compile(
    r"ETARGET|notarget|No matching version|from versions: (?!none)|manifest unknown|manifest for", re.IGNORECASE
)
_NO_PACKAGE: Final = re.compile(
    r"E404|404 Not Found|found no version of|from versions: none|No matching distribution|repository does not exist"
    r"|pull access denied",
    re.IGNORECASE,
)
_NO_PROGRAM: Final = re.compile(r"^present: .*(does not exist|is not executable|no program )")
_STARTED: Final = re.compile(
    r"spawn (?P<node>[\w.+-]+) ENOENT|No such file or directory: '(?P<python>[\w.+-]+)'"
    r"|(?:^|\s)(?P<shell>[\w.+-]+): (?:command )?not found"
)
_READ_ONLY: Final = re.compile(
    r"EROFS|EACCES|Read-only file system|Permission denied|unable to open database file|readonly database"
)


def advice(stood: TrialResult, server: Mapping[str, Any], beside: Sequence[str] = ()) -> str:
    """The advice for a failure. `server`: the block of the driver that did not come up; `beside`: what was installed
    with it."""
    if stood.installed is None:
        return f"{_of_install(stood.reason or '', str(server.get('kind')))}; {NOTHING}"
    if stood.denied:
        place = stood.denied[0]
        return f"it tried to reach {place}, which its sandbox does not allow: --egress {place} allows it"
    if stood.state is DriverState.UNAUTHED:
        return "--secret NAME, or --header 'Authorization=Bearer …', gives it a credential; it is kept in the store"
    if server.get("kind") in SERVERS and SERVERS[server["kind"]].confinement == "elsewhere":
        return f"check the address, and that an MCP server answers there; {NOTHING}"
    return f"{_of_start(' | '.join(stood.last_words), server, beside)}; {NOTHING}"


def _of_install(reason: str, kind: str) -> str:
    registry = SERVERS[kind].registry_name if kind in SERVERS else None
    if registry is None or _NO_PROGRAM.search(reason):
        return "there is no such program here: install it, or write its path"
    if _UNREACHABLE.search(reason):
        return f"{registry} is not reachable from here: check the network and its proxy, then try again"
    if _NO_VERSION.search(reason):
        return f"{registry} has no such version: name one that exists, or none for the newest"
    if _NO_PACKAGE.search(reason):
        return f"{registry} has nothing of this name and version: check how it is written"
    return "the installer's words say what it lacks"


def _of_start(words: str, server: Mapping[str, Any], beside: Sequence[str]) -> str:
    for each in server.get("args", ()):
        if each.startswith("/") and each in words and not Path(each).exists():
            return f"{each} is not there: check the path"
    kind = SERVERS.get(str(server.get("kind")))
    if kind is not None and (advice := kind.advise_on_start(words, has_extra_packages=bool(beside))) is not None:
        return advice
    if (found := _STARTED.search(words)) is not None:
        name = found["node"] or found["python"] or found["shell"]
        return f"it may not start {name}: --program {name} allows it"
    if _READ_ONLY.search(words):
        return "it may not write there: --write FOLDER opens a folder to it"
    return "its own words say why; a variable is given with --env, an argument after --, a folder with --write"
