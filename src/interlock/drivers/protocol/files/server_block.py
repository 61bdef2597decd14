"""The `server` block of a driver: the checks for every kind, and server.json as its replacement (AIP-file-5).

A block is converted only after it has passed its schema. The class of each kind in `interlock.drivers.protocol.kinds`
reads the keys that are specific to the kind. Findings name a field and never its value, which may be a secret.

A server.json in the folder of DRIVER.md contains either the keys of a server block or the description of an MCP
registry. From a description, the first package or remote is used that this host can run and that fits the driver's
transport. The resulting block must still pass the schema.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files import plaintext
from interlock.drivers.protocol.kinds import SERVERS, BlockContext, ServerBlock, refuse_plaintext
from interlock.drivers.protocol.model import Extensions
from interlock.drivers.protocol.problems import FileFindings
from interlock.wire.jsontext.canonical import pointer_step, quoted

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Keys that decide what is started, with the first key of every kind. A secret must not decide that.
_FIXED: Final = tuple(
    dict.fromkeys(
        ["path", "package", "image", "url", "version", "entry", "cwd", *(each.keys[0] for each in SERVERS.values())]
    )
)
SERVER_JSON: Final = "server.json"
BYTES_MAX: Final = 256 * 1024

_KINDS: Final = {each.registry_type: each for each in SERVERS.values() if each.registry_type is not None}
_REMOTES: Final = {"streamable-http": "http", "sse": "sse"}


def read_server(block: Mapping[str, Any], extensions: Extensions, context: BlockContext) -> ServerBlock | None:
    """Check the server block of a DRIVER.md, and return it as an object. Return None if it cannot be converted."""
    findings = context.findings
    server = SERVERS[block["kind"]]
    for key in block:
        if key != "kind" and key not in server.keys:
            message = f"a server of kind {server.kind} has no key {quoted(key)}, so it is ignored"
            hint = f"use {', '.join(server.keys)}"
            findings.add(f"/server/{pointer_step(key)}", "unknown_key", message, hint, "warning")
    _check_placeholders(block, extensions, findings)
    _check_plaintext(block, extensions.not_secret, findings)
    for name in block.get("env", {}):
        if not _ENVIRONMENT_NAME.fullmatch(name):
            message = f"{quoted(name)} is no name of an environment variable"
            findings.add_invalid(f"/server/env/{pointer_step(name)}", message, "use letters, digits and _")
    for name, text in block.get("headers", {}).items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(text):
            hint = "use a plain name and a value of one line in ASCII"
            findings.add_invalid(f"/server/headers/{pointer_step(name)}", f"{quoted(name)} is no HTTP header", hint)
    if context.transport not in server.transports:  # AIP-server-12
        message = f"a server of kind {server.kind} does not speak {context.transport}"
        hint = f"write {' or '.join(server.transports)}; a local program that serves HTTP is kind remote"
        findings.add("/transport", "transport_server_mismatch", message, hint)
    try:
        return server.read(block, context)
    except msgspec.ValidationError:
        findings.add_invalid("/server", "the server block cannot be read", "compare it with the documentation")
        return None


def secrets_taken(block: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of all secrets that a server block uses, without repetitions."""
    names = [name for _, text in _texts(block) for name in plaintext.secret_names(text)]
    auth = block.get("auth")
    if isinstance(auth, Mapping) and isinstance(auth.get("secret"), str):
        names.append(auth["secret"])
    return tuple(dict.fromkeys(names))


def _texts(block: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return all texts of a server block in which a placeholder may be written, each with its JSON pointer."""
    texts = [(f"/server/{key}", block[key]) for key in _FIXED if isinstance(block.get(key), str)]
    for key in ("args", "volumes"):
        texts += [(f"/server/{key}/{index}", text) for index, text in enumerate(block.get(key, ()))]
    for key in ("env", "headers", "query"):
        texts += [(f"/server/{key}/{pointer_step(name)}", text) for name, text in block.get(key, {}).items()]
    return texts


def _check_placeholders(block: Mapping[str, Any], extensions: Extensions, findings: FileFindings) -> None:
    """Refuse placeholders that cannot be filled, and warn about secrets that other programs could read."""
    for pointer, text in _texts(block):
        code = plaintext.find_placeholder_fault(text)
        fixed = pointer.removeprefix("/server/").partition("/")[0] in {*_FIXED, "volumes"}
        if code == plaintext.USER_CONTEXT and extensions.isolation == "driver":  # AIP-security-8
            message = "a value of the caller cannot be bound when a shared server is started"
            hint = "pass it per call with implements[].metadata.interlock.context_arguments"
            findings.add(pointer, plaintext.USER_CONTEXT, message, hint)
        elif code is not None or (fixed and "${" in text):  # AIP-server-13
            message = "there is a placeholder here that cannot be filled"
            hint = "write ${secrets.NAME}, in capitals, and only in env, headers, query or args"
            findings.add(pointer, plaintext.PLACEHOLDER_INVALID, message, hint)
        elif pointer.startswith("/server/args/") and plaintext.secret_names(text):
            message = "every local user can read the arguments of a running program"
            hint = "pass the secret in server.env if the server takes it there"
            findings.add(pointer, "secret_in_argv", message, hint, "warning")
    auth = block.get("auth")
    if isinstance(auth, Mapping) and "secret" in auth and not plaintext.SECRET_NAME.fullmatch(auth["secret"]):
        message, hint = "this is not the name of a secret", "write the name alone: ACME_API_KEY"
        findings.add("/server/auth/secret", plaintext.PLACEHOLDER_INVALID, message, hint)


def _check_plaintext(block: Mapping[str, Any], not_secret: Collection[str], findings: FileFindings) -> None:
    """Report credentials in clear text as errors of the file. The messages name the keys and never show the values
    (AIP-19.plain-2).
    """
    for key in ("env", "headers", "query"):
        for name, text in block.get(key, {}).items():
            if name not in not_secret and plaintext.is_plaintext(name, text):  # AIP-19.plain-2
                refuse_plaintext(findings, f"/server/{key}/{pointer_step(name)}", name)
    for index, name in plaintext.plaintext_arguments(tuple(block.get("args", ()))):
        if name not in not_secret and f"--{name}" not in not_secret:  # AIP-19.plain-2
            refuse_plaintext(findings, f"/server/args/{index}", name or "an argument")
    for key in _FIXED:
        if key not in not_secret and plaintext.is_plaintext("", block.get(key) or ""):
            refuse_plaintext(findings, f"/server/{key}", key)


def server_from_json(data_untrusted: bytes, transport: Any, findings: FileFindings) -> dict[str, Any] | None:
    """Return the server block that a server.json describes. Return None if it cannot be used, and add the reason to
    `findings`.

    `transport` is the transport that the driver declares.
    """
    data = None
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = msgspec.json.decode(data_untrusted) if len(data_untrusted) <= BYTES_MAX else None
    if not isinstance(data, dict):
        message = "server.json holds no JSON object"
        hint = "write the keys of the server block as JSON"
    elif "kind" in data:  # AIP-file-5
        return data
    elif "packages" in data or "remotes" in data:
        for server in _runnable_servers(data):
            if not isinstance(transport, str) or transport in SERVERS[server["kind"]].transports:
                return server
        message = "server.json describes no package or remote that this host can run with the transport of DRIVER.md"
        hint = "write the server block into DRIVER.md"
    else:  # AIP-file-5
        message = "server.json is neither a server block nor a registry's description"
        hint = "begin it with kind"
    findings.add("/server", "server_json_invalid", message, hint)
    return None


def _runnable_servers(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a server block for each package and address in an MCP registry's description of a server that this node can
    run.
    """
    for package in _objects(data.get("packages")):
        kind = _KINDS.get(str(package.get("registryType")))
        identifier, transport = package.get("identifier"), package.get("transport")
        env = _settings(package.get("environmentVariables"))
        args = _arguments(package.get("packageArguments"))
        # A server block has no key for what a runtime needs besides, such as mounts and flags.
        is_foreign = isinstance(transport, Mapping) and transport.get("type") != "stdio"
        is_foreign = is_foreign or bool(package.get("runtimeArguments"))
        if kind is None or not isinstance(identifier, str) or env is None or args is None or is_foreign:
            continue
        server: dict[str, Any] = {"kind": kind.kind, kind.keys[0]: identifier}
        version = package.get("version")
        if isinstance(version, str) and "version" in kind.keys:
            server["version"] = version
        yield server | ({"env": env} if env else {}) | ({"args": args} if args else {})
    for remote in _objects(data.get("remotes")):
        if remote.get("type") in _REMOTES and isinstance(remote.get("url"), str) and "{" not in remote["url"]:
            headers = _settings(remote.get("headers"))
            if headers is not None:
                yield {"kind": "remote", "url": remote["url"]} | ({"headers": headers} if headers else {})


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _settings(value: Any) -> dict[str, str] | None:
    """Return the environment variables or headers that a server.json describes, by name. A secret gets a placeholder as
    its value.

    Return None if a required setting has no value, or any setting has no name.
    """
    settings: dict[str, str] = {}
    for each in _objects(value):
        name = each.get("name")
        if not isinstance(name, str):
            return None
        is_secret = each.get("isSecret") is True
        text = f"${{secrets.{name.upper().replace('-', '_')}}}" if is_secret else _text(each)
        if text is not None:
            settings[name] = text
        elif each.get("isRequired") is True:
            return None
    return settings


def _arguments(value: Any) -> list[str] | None:
    """Return the command-line arguments that a server.json describes, or None if a required argument has no value."""
    args: list[str] = []
    for each in _objects(value):
        text = _text(each)
        if text is not None:
            named = each.get("type") == "named" and isinstance(each.get("name"), str)
            args += [each["name"], text] if named else [text]
        elif each.get("isRequired") is True:
            return None
    return args


def _text(setting: Mapping[str, Any]) -> str | None:
    """Return the value or else the default of a setting, such as an argument, that a server.json describes.

    Return None if it has no value, or if the value has {curly} parts that would have to be filled in.
    """
    for key in ("value", "default"):
        text = setting.get(key)
        if isinstance(text, str) and not ("{" in text and setting.get("variables")):
            return text
    return None
