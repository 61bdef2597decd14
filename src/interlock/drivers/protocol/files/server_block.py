"""The `server` block of a driver: the checks that hold for every kind, and server.json in its place (AIP-file-5).

A block has passed its schema before it is read here. What is specific to a kind is read by its class in
`interlock.drivers.protocol.kinds`. Findings name a field and never its value, which may be a secret.

A server.json beside DRIVER.md has one of two forms: the keys of the server block, or the description of an MCP
registry, of which the first package or remote is taken that this host can run and that fits the driver's transport. The
block that results still has to pass the schema.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.plaintext import (
    PLACEHOLDER_INVALID,
    SECRET_NAME,
    USER_CONTEXT,
    find_placeholder_fault,
    is_plaintext,
    plaintext_arguments,
    secret_names,
)
from interlock.drivers.protocol.kinds import SERVERS, ServerBlock, refuse_plaintext
from interlock.drivers.protocol.model import Extensions
from interlock.drivers.protocol.problems import FileFindings
from interlock.wire.jsontext.canonical import pointer_step, quoted

# `${secrets.NAME}` inside a value of a driver file: which secrets it takes, what is wrong with it, how it is filled.
#
# There is no other placeholder. `${context.X}` and `${user.X}` have an error of their own, because they would bind one
# caller to a process that all share (AIP-security-8).


# Does a text hold a credential in clear? Judged by the shape of the text and by the name it stands under.
#
# For files that must hold none (AIP-19.file-2, AIP-19.plain-2) and for importing files that do. A miss is possible, so
# is a false alarm; the person answers the latter with metadata.interlock.not_secret. The text is never repeated.


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
    findings: FileFindings,
    insecure_hosts: Collection[str] = (),
) -> ServerBlock | None:
    server = SERVERS[block["kind"]]
    _unknown_keys(server, block, findings)
    _placeholders(block, extensions, findings)
    _plaintext(block, extensions.not_secret, findings)
    _environment(block, findings)
    if transport not in server.transports:  # AIP-server-12
        findings.add(
            "/transport",
            "transport_server_mismatch",
            f"a server of kind {server.kind} does not speak {transport}",
            f"write {' or '.join(server.transports)}; a local program that serves HTTP is kind remote",
        )
    try:
        return server.read(block, transport, findings, insecure_hosts)
    except msgspec.ValidationError:
        findings.add_invalid("/server", "the server block cannot be read", "compare it with the documentation")
        return None


def secrets_taken(block: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the NAME of every secret that the block uses, once each, in the order written."""
    names = [name for _, text in _texts(block) for name in secret_names(text)]
    auth = block.get("auth")
    if isinstance(auth, Mapping) and isinstance(auth.get("secret"), str):
        names.append(auth["secret"])
    return tuple(dict.fromkeys(names))


def _texts(block: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return pointer and text of everything in the block that may hold a placeholder."""
    texts = [(f"/server/{key}", block[key]) for key in _FIXED if isinstance(block.get(key), str)]
    for key in ("args", "volumes"):
        texts += [(f"/server/{key}/{index}", text) for index, text in enumerate(block.get(key, ()))]
    for key in ("env", "headers", "query"):
        texts += [(f"/server/{key}/{pointer_step(name)}", text) for name, text in block.get(key, {}).items()]
    return texts


def _unknown_keys(server: type[ServerBlock], block: Mapping[str, Any], findings: FileFindings) -> None:
    for key in block:
        if key != "kind" and key not in server.keys:
            findings.add(
                f"/server/{pointer_step(key)}",
                "unknown_key",
                f"a server of kind {server.kind} has no key {quoted(key)}, so it is ignored",
                f"use {', '.join(server.keys)}",
                "warning",
            )


def _placeholders(block: Mapping[str, Any], extensions: Extensions, findings: FileFindings) -> None:
    for pointer, text in _texts(block):
        code = find_placeholder_fault(text)
        fixed = pointer.removeprefix("/server/").partition("/")[0] in {*_FIXED, "volumes"}
        if code == USER_CONTEXT and extensions.isolation == "driver":  # AIP-security-8
            findings.add(
                pointer,
                USER_CONTEXT,
                "a value of the caller cannot be bound when a shared server is started",
                "pass it per call with implements[].metadata.interlock.context_arguments",
            )
        elif code is not None or (fixed and "${" in text):  # AIP-server-13
            findings.add(
                pointer,
                PLACEHOLDER_INVALID,
                "a placeholder stands here that cannot be filled",
                "write ${secrets.NAME}, in capitals, and only in env, headers, query or args",
            )
        elif pointer.startswith("/server/args/") and secret_names(text):
            findings.add(
                pointer,
                "secret_in_argv",
                "every local user can read the arguments of a running program",
                "pass the secret in server.env if the server takes it there",
                "warning",
            )
    auth = block.get("auth")
    if isinstance(auth, Mapping) and "secret" in auth and not SECRET_NAME.fullmatch(auth["secret"]):
        findings.add(
            "/server/auth/secret",
            PLACEHOLDER_INVALID,
            "this is not the name of a secret",
            "write the name alone: ACME_API_KEY",
        )


def _plaintext(block: Mapping[str, Any], not_secret: Collection[str], findings: FileFindings) -> None:
    """Refuse credentials in clear text. The message names the key, never the value (AIP-19.plain-2)."""
    for key in ("env", "headers", "query"):
        for name, text in block.get(key, {}).items():
            if name not in not_secret and is_plaintext(name, text):  # AIP-19.plain-2
                refuse_plaintext(findings, f"/server/{key}/{pointer_step(name)}", name)
    for index, name in plaintext_arguments(tuple(block.get("args", ()))):
        if name not in not_secret and f"--{name}" not in not_secret:  # AIP-19.plain-2
            refuse_plaintext(findings, f"/server/args/{index}", name or "an argument")
    for key in _FIXED:
        if key not in not_secret and is_plaintext("", block.get(key) or ""):
            refuse_plaintext(findings, f"/server/{key}", key)


def _environment(block: Mapping[str, Any], findings: FileFindings) -> None:
    for name in block.get("env", {}):
        if not _ENVIRONMENT_NAME.fullmatch(name):
            findings.add_invalid(
                f"/server/env/{pointer_step(name)}",
                f"{quoted(name)} is no name of an environment variable",
                "use letters, digits and _",
            )
    for name, text in block.get("headers", {}).items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(text):
            findings.add_invalid(
                f"/server/headers/{pointer_step(name)}",
                f"{quoted(name)} is no HTTP header",
                "use a plain name and a value of one line in ASCII",
            )


SERVER_JSON: Final = "server.json"
BYTES_MAX: Final = 256 * 1024

_SERVER_JSON_INVALID = "server_json_invalid"
_KINDS: Final = {each.registry_type: each for each in SERVERS.values() if each.registry_type is not None}
_REMOTES: Final = {"streamable-http": "http", "sse": "sse"}


def server_from_json(data_untrusted: bytes, transport: Any, findings: FileFindings) -> dict[str, Any] | None:
    """Return the server block that a server.json describes, or None if it is refused; `findings` then says why."""
    try:
        data = msgspec.json.decode(data_untrusted) if len(data_untrusted) <= BYTES_MAX else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    if not isinstance(data, dict):
        _refuse(findings, "server.json holds no JSON object", "write the keys of the server block as JSON")
        return None
    if "kind" in data:  # AIP-file-5
        return data
    if "packages" in data or "remotes" in data:
        for server in _runnable(data):
            if not isinstance(transport, str) or transport in SERVERS[server["kind"]].transports:
                return server
        _refuse(
            findings,
            "server.json describes no package or remote that this host can run with the transport of DRIVER.md",
            "write the server block into DRIVER.md",
        )
        return None
    # AIP-file-5
    _refuse(findings, "server.json is neither a server block nor a registry's description", "begin it with kind")
    return None


def _refuse(findings: FileFindings, message: str, hint: str) -> None:
    findings.add("/server", _SERVER_JSON_INVALID, message, hint)


def _runnable(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for package in _objects(data.get("packages")):
        if (server := _from_package(package)) is not None:
            yield server
    for remote in _objects(data.get("remotes")):
        if remote.get("type") in _REMOTES and isinstance(remote.get("url"), str) and "{" not in remote["url"]:
            headers = _settings(remote.get("headers"))
            if headers is not None:
                yield {"kind": "remote", "url": remote["url"]} | ({"headers": headers} if headers else {})


def _from_package(package: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = _KINDS.get(str(package.get("registryType")))
    identifier = package.get("identifier")
    env = _settings(package.get("environmentVariables"))
    args = _arguments(package.get("packageArguments"))
    speaks = package.get("transport")
    stdio = not isinstance(speaks, Mapping) or speaks.get("type") == "stdio"
    # What a runtime needs besides (mounts, flags) has no place in a server block.
    if kind is None or not isinstance(identifier, str) or env is None or args is None or not stdio:
        return None
    if package.get("runtimeArguments"):
        return None
    server: dict[str, Any] = {"kind": kind.kind, kind.keys[0]: identifier}
    version = package.get("version")
    if isinstance(version, str) and "version" in kind.keys:
        server["version"] = version
    return server | ({"env": env} if env else {}) | ({"args": args} if args else {})


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _settings(value: Any) -> dict[str, str] | None:
    """Return names and values, with a placeholder for each secret, or None if a required setting has no value."""
    settings: dict[str, str] = {}
    for each in _objects(value):
        name = each.get("name")
        if not isinstance(name, str):
            return None
        if each.get("isSecret") is True:
            settings[name] = f"${{secrets.{name.upper().replace('-', '_')}}}"
            continue
        text = _text(each)
        if text is not None:
            settings[name] = text
        elif each.get("isRequired") is True:
            return None
    return settings


def _arguments(value: Any) -> list[str] | None:
    args: list[str] = []
    for each in _objects(value):
        text = _text(each)
        if text is None:
            if each.get("isRequired") is True:
                return None
            continue
        named = each.get("type") == "named" and isinstance(each.get("name"), str)
        args += [each["name"], text] if named else [text]
    return args


def _text(setting: Mapping[str, Any]) -> str | None:
    """Return the fixed or default value, or None if there is none or it has {curly} parts to fill in."""
    for key in ("value", "default"):
        text = setting.get(key)
        if isinstance(text, str) and not ("{" in text and setting.get("variables")):
            return text
    return None
