"""Checks that hold for the `server` block of every kind: unknown keys, placeholders, credentials, names.

The block fits its schema. What is specific to a kind is read by its class in `interlock.drivers.protocol.kinds`.
Findings name a field and never its value, which may be a secret.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.credential_scan import is_plaintext, plaintext_arguments
from interlock.drivers.protocol.files.placeholders import INVALID, NAME, USER_CONTEXT, fault, secret_names
from interlock.drivers.protocol.kinds import SERVERS
from interlock.drivers.protocol.kinds.server import Server, refuse_plaintext
from interlock.drivers.protocol.model import Extensions
from interlock.drivers.protocol.problems import FileFindings
from interlock.wire.jsontext.pointer import pointer_step, quoted

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Keys that decide what is started, together with the first key of every kind. A secret must not decide that.
_FIXED: Final = tuple(
    dict.fromkeys(
        (
            *("path", "package", "image", "url", "version", "entry", "cwd"),
            *(server.keys[0] for server in SERVERS.values()),
        )
    )
)


def read_server(
    block: Mapping[str, Any],
    transport: str,
    extensions: Extensions,
    found: FileFindings,
    insecure_hosts: Collection[str] = (),
) -> Server | None:
    server = SERVERS[block["kind"]]
    _unknown_keys(server, block, found)
    _placeholders(block, extensions, found)
    _plaintext(block, extensions.not_secret, found)
    _environment(block, found)
    if transport not in server.transports:  # AIP-server-12
        found.say(
            "/transport",
            "transport_server_mismatch",
            f"a server of kind {server.kind} does not speak {transport}",
            f"write {' or '.join(server.transports)}; a local program that serves HTTP is kind remote",
        )
    try:
        return server.read(block, transport, found, insecure_hosts)
    except msgspec.ValidationError:
        found.say("/server", "schema_invalid", "the server block cannot be read", "compare it with the documentation")
        return None


def secrets_taken(block: Mapping[str, Any]) -> tuple[str, ...]:
    """Every NAME the block asks for, once, in the order written."""
    names = [name for _, text in _texts(block) for name in secret_names(text)]
    auth = block.get("auth")
    if isinstance(auth, Mapping) and isinstance(auth.get("secret"), str):
        names.append(auth["secret"])
    return tuple(dict.fromkeys(names))


def _texts(block: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pointer and text of everything in the block that may hold a placeholder."""
    found = [(f"/server/{key}", block[key]) for key in _FIXED if isinstance(block.get(key), str)]
    for key in ("args", "volumes"):
        found += [(f"/server/{key}/{index}", text) for index, text in enumerate(block.get(key, ()))]
    for key in ("env", "headers", "query"):
        found += [(f"/server/{key}/{pointer_step(name)}", text) for name, text in block.get(key, {}).items()]
    return found


def _unknown_keys(server: type[Server], block: Mapping[str, Any], found: FileFindings) -> None:
    for key in block:
        if key != "kind" and key not in server.keys:
            found.say(
                f"/server/{pointer_step(key)}",
                "unknown_key",
                f"a server of kind {server.kind} has no key {quoted(key)}, so it is ignored",
                f"use {', '.join(server.keys)}",
                "warning",
            )


def _placeholders(block: Mapping[str, Any], extensions: Extensions, found: FileFindings) -> None:
    for pointer, text in _texts(block):
        code = fault(text)
        fixed = pointer.removeprefix("/server/").partition("/")[0] in {*_FIXED, "volumes"}
        if code == USER_CONTEXT and extensions.isolation == "driver":  # AIP-security-8
            found.say(
                pointer,
                USER_CONTEXT,
                "a value of the caller cannot be bound when a shared server is started",
                "pass it per call with implements[].metadata.interlock.context_arguments",
            )
        elif code is not None or (fixed and "${" in text):  # AIP-server-13
            found.say(
                pointer,
                INVALID,
                "a placeholder stands here that cannot be filled",
                "write ${secrets.NAME}, in capitals, and only in env, headers, query or args",
            )
        elif pointer.startswith("/server/args/") and secret_names(text):
            found.say(
                pointer,
                "secret_in_argv",
                "every local user can read the arguments of a running program",
                "pass the secret in server.env if the server takes it there",
                "warning",
            )
    auth = block.get("auth")
    if isinstance(auth, Mapping) and "secret" in auth and not NAME.fullmatch(auth["secret"]):
        found.say(
            "/server/auth/secret", INVALID, "this is not the name of a secret", "write the name alone: ACME_API_KEY"
        )


def _plaintext(block: Mapping[str, Any], not_secret: Collection[str], found: FileFindings) -> None:
    """AIP-19.plain-2: the key is named, the value is not."""
    for key in ("env", "headers", "query"):
        for name, text in block.get(key, {}).items():
            if name not in not_secret and is_plaintext(name, text):  # AIP-19.plain-2
                refuse_plaintext(found, f"/server/{key}/{pointer_step(name)}", name)
    for index, name in plaintext_arguments(tuple(block.get("args", ()))):
        if name not in not_secret and f"--{name}" not in not_secret:  # AIP-19.plain-2
            refuse_plaintext(found, f"/server/args/{index}", name or "an argument")
    for key in _FIXED:
        if key not in not_secret and is_plaintext("", block.get(key) or ""):
            refuse_plaintext(found, f"/server/{key}", key)


def _environment(block: Mapping[str, Any], found: FileFindings) -> None:
    for name in block.get("env", {}):
        if not _ENVIRONMENT_NAME.fullmatch(name):
            found.say(
                f"/server/env/{pointer_step(name)}",
                "schema_invalid",
                f"{quoted(name)} is no name of an environment variable",
                "use letters, digits and _",
            )
    for name, text in block.get("headers", {}).items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(text):
            found.say(
                f"/server/headers/{pointer_step(name)}",
                "schema_invalid",
                f"{quoted(name)} is no HTTP header",
                "use a plain name and a value of one line in ASCII",
            )
