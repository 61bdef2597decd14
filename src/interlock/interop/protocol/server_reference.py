"""What a person names to have it added: `npm:PACKAGE`, `pypi:PACKAGE`, `docker:IMAGE`, an address, or a command."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from interlock.drivers.protocol.kinds import SERVERS
from interlock.interop.protocol.launchers import classify_command, is_interpreter, program_name
from interlock.interop.protocol.model import ServerEntry

PACKAGED: Final = {each.kind: each for each in SERVERS.values() if each.registry_type is not None}
_ADDRESS: Final = re.compile(r"https?://\S+", re.I)
_EMPTY_WORDS: Final = frozenset(("mcp", "server", "servers", "modelcontextprotocol"))
_HOST_WORDS: Final = frozenset(("mcp", "api", "www", "app", "server"))


class UnknownReference(Exception):
    """Error for a reference that names nothing to install or run. Its text says what would be valid."""


def entry_of(
    reference: str | None,
    args: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    passed: Sequence[str] = (),
    asked: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    egress: Sequence[str] = (),
) -> ServerEntry:
    """Return the entry for a reference, or for the command in `args` if `reference` is None.

    `passed` are variables of the environment. `asked` are variables whose values are stored as secrets. Raise
    UnknownReference.
    """
    name, how = _what(reference, tuple(args))
    return ServerEntry(
        name=name,
        env=dict(env or {}),
        env_passed=tuple(passed),
        env_unset=tuple(asked),
        headers=dict(headers or {}),
        egress=tuple(egress),
        **how,
    )


def _what(reference: str | None, args: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    if reference is None:
        if not args:
            raise UnknownReference("there is no command after --")
        return name_of_command(args), {"command": args}
    if _ADDRESS.fullmatch(reference):
        if args:
            raise UnknownReference("a server at an address takes no arguments")
        return name_of_address(reference), {"url": reference, "transport": "http"}
    kind, colon, named = reference.partition(":")
    if colon and kind in PACKAGED:
        if not named:
            raise UnknownReference(f"{reference} names no {PACKAGED[kind].keys[0]}")
        server = {"kind": kind, PACKAGED[kind].keys[0]: named, "args": list(args)}
        return name_of_package(kind, named), {"server": server}
    if reference.startswith("@"):
        raise UnknownReference(f"{reference} looks like an npm package, which is written npm:{reference}")
    if "/" in reference:
        command = (reference, *args)
        return name_of_command(command), {"command": command}
    raise UnknownReference(
        f"{reference} is not npm:PACKAGE, pypi:PACKAGE, docker:IMAGE, https://…, ./program or a draft; "
        "a command goes after --"
    )


def name_of_package(kind: str, named: str) -> str:
    """Return a short name for a package: filesystem for @modelcontextprotocol/server-filesystem."""
    scope, last = PACKAGED[kind].name_parts(named)
    return _without_empty_words(last) or _without_empty_words(scope) or last


def name_of_address(address: str) -> str:
    """Return a short name for an address: linear for https://mcp.linear.app/mcp.

    The name of an IP address or of this machine is the host itself.
    """
    host = urlsplit(address).hostname or "remote"
    labels = host.split(".")
    if len(labels) < 2 or labels[-1].isdigit() or ":" in host:
        return host
    telling = [label for label in labels[:-1] if label not in _HOST_WORDS]
    return telling[-1] if telling else labels[0]


def name_of_command(command: Sequence[str]) -> str:
    server = classify_command(tuple(command)).server
    kind = server.get("kind")
    if kind in PACKAGED:
        return name_of_package(kind, server[PACKAGED[kind].keys[0]])
    program = program_name(command[0])
    if is_interpreter(command[0]):
        rest = list(command[1:])
        if "-m" in rest[:-1]:
            return _without_empty_words(rest[rest.index("-m") + 1]) or program
        script = next((each for each in rest if not each.startswith("-")), None)
        if script is not None:
            stem, parent = program_name(script).partition(".")[0], program_name(script.rpartition("/")[0])
            return _without_empty_words(stem) or _without_empty_words(parent) or stem or program
    return _without_empty_words(program.partition(".")[0]) or program


def _without_empty_words(name: str) -> str:
    words = re.split(r"[^A-Za-z0-9]+", name)
    return "-".join(word for word in words if word and word.lower() not in _EMPTY_WORDS)
