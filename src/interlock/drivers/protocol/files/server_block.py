"""The `server` block of a driver: which program or address, and whether it may be written so.

The block has passed its schema. Comes out as one of the five kinds, pins taken out of the package's name; what is
found wrong goes to `FileFindings`, with the name of a field and never its value.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.files.credential_scan import is_plaintext, plaintext_arguments
from interlock.drivers.protocol.files.placeholders import INVALID, NAME, USER_CONTEXT, fault, secret_names
from interlock.drivers.protocol.files.schemas.mcp import SERVER_KEYS
from interlock.drivers.protocol.model import (
    Binary,
    Docker,
    Extensions,
    Npm,
    Places,
    Problem,
    Pypi,
    Remote,
    Server,
    Severity,
)
from interlock.net.protocol.address_scope import is_loopback
from interlock.wire.jsontext.pointer import pointer_step, quoted

TRANSPORTS: Final[dict[str, tuple[str, ...]]] = {  # AIP-server-12
    "binary": ("stdio",),
    "npm": ("stdio",),
    "pypi": ("stdio",),
    "docker": ("stdio", "http"),
    "remote": ("http", "sse"),
}

_NPM = re.compile(
    r"(?P<name>(?:@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*)(?:@(?P<version>[A-Za-z0-9^~][\w.+-]*))?",
    re.ASCII,
)
_PYPI = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?P<extras>\[[A-Za-z0-9][A-Za-z0-9._,-]*\])?"
    r"(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?",
    re.ASCII,
)
_IMAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._/:-]*?(?P<tag>:[A-Za-z0-9_][A-Za-z0-9._-]*)?(?P<digest>@sha256:[0-9a-f]{64})?", re.ASCII
)
_MODULE = re.compile(r"-m [A-Za-z_][A-Za-z0-9_.]*", re.ASCII)
_SCRIPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_URL = re.compile(r"[!-~]+")
_FIXED: Final = ("path", "package", "image", "url", "version", "entry", "cwd")  # no secret decides what is started


class FileFindings:
    """Collects what is wrong in one file."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.problems: list[Problem] = []

    def say(self, pointer: str, code: str, message: str, hint: str, severity: Severity = "error") -> None:
        self.problems.append(self.places.problem(pointer, code, message, hint, severity=severity))

    @property
    def refused(self) -> bool:
        return any(each.severity == "error" for each in self.problems)


def read_server(
    block: Mapping[str, Any],
    transport: str,
    extensions: Extensions,
    found: FileFindings,
    insecure_hosts: Collection[str] = (),
) -> Server | None:
    kind: str = block["kind"]
    _unknown_keys(kind, block, found)
    _placeholders(block, extensions, found)
    _plaintext(block, extensions.not_secret, found)
    _environment(block, found)
    if transport not in TRANSPORTS[kind]:  # AIP-server-12
        found.say(
            "/transport",
            "transport_server_mismatch",
            f"a server of kind {kind} does not speak {transport}",
            f"write {' or '.join(TRANSPORTS[kind])}; a local program that serves HTTP is kind remote",
        )
    try:
        match kind:
            case "npm":
                return _npm(block, found)
            case "pypi":
                return _pypi(block, found)
            case "docker":
                return _docker(block, transport, found)
            case "remote":
                return _remote(block, found, insecure_hosts)
            case _:
                return msgspec.convert(block, Binary)
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


def _unknown_keys(kind: str, block: Mapping[str, Any], found: FileFindings) -> None:
    for key in block:
        if key != "kind" and key not in SERVER_KEYS[kind]:
            found.say(
                f"/server/{pointer_step(key)}",
                "unknown_key",
                f"a server of kind {kind} has no key {quoted(key)}, so it is ignored",
                f"use {', '.join(SERVER_KEYS[kind])}",
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
                _refuse_plaintext(found, f"/server/{key}/{pointer_step(name)}", name)
    for index, name in plaintext_arguments(tuple(block.get("args", ()))):
        if name not in not_secret and f"--{name}" not in not_secret:  # AIP-19.plain-2
            _refuse_plaintext(found, f"/server/args/{index}", name or "an argument")
    for key in _FIXED:
        if key not in not_secret and is_plaintext("", block.get(key) or ""):
            _refuse_plaintext(found, f"/server/{key}", key)


def _refuse_plaintext(found: FileFindings, pointer: str, name: str) -> None:
    found.say(
        pointer,
        "plaintext_secret",  # AIP-19.plain-2
        f"{quoted(name)} holds a credential in clear",
        "store it with `interlock secrets set NAME` and write ${secrets.NAME}; if it is none: not_secret",
    )


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


def _npm(block: Mapping[str, Any], found: FileFindings) -> Npm | None:
    named = _NPM.fullmatch(block["package"])
    if named is None:
        _no_package(found, "an npm package", "write @scope/name or name@1.2.3")
        return None
    version = _pin(named["version"], block.get("version"), found)
    return msgspec.convert({**block, "package": named["name"], "version": version}, Npm)


def _pypi(block: Mapping[str, Any], found: FileFindings) -> Pypi | None:
    named = _PYPI.fullmatch(block["package"])
    if named is None:
        _no_package(found, "a PyPI package", "write name or name==1.2.3")
        return None
    entry = block.get("entry", named["name"])
    if not _SCRIPT.fullmatch(entry) and not _MODULE.fullmatch(entry):
        found.say("/server/entry", "schema_invalid", "this is no console script", "write its name, or `-m module`")
    version = _pin(named["version"], block.get("version"), found)
    package = named["name"] + (named["extras"] or "")
    return msgspec.convert({**block, "package": package, "version": version, "entry": entry}, Pypi)


def _no_package(found: FileFindings, what: str, hint: str) -> None:
    found.say("/server/package", "schema_invalid", f"this is not the name of {what}", hint)


def _pin(suffix: str | None, version: str | None, found: FileFindings) -> str | None:
    if version is not None and not re.fullmatch(r"[A-Za-z0-9^~][A-Za-z0-9.!+_-]*", version, re.ASCII):
        found.say("/server/version", "schema_invalid", "this is not a version", "write one like 1.2.3")
    elif suffix is not None and version is not None and suffix != version:  # AIP-server-3
        found.say(
            "/server/version",
            "version_conflict",
            "server.package and server.version name two versions",
            "keep the pin in one of them",
        )
    return version if suffix is None else suffix  # AIP-server-3


def _docker(block: Mapping[str, Any], transport: str, found: FileFindings) -> Docker | None:
    image = _IMAGE.fullmatch(block["image"])
    if image is None:
        found.say("/server/image", "schema_invalid", "this is not the name of an image", "write registry/name:tag")
        return None
    if image["digest"] is None and (image["tag"] in {None, ":latest"}):  # AIP-server-5
        found.say(
            "/server/image",
            "image_unpinned",
            "the image names no fixed version",
            "write a tag or a digest, so that an update is your decision",
            "warning",
        )
    if transport == "http" and "port" not in block:
        found.say("/server/port", "schema_invalid", "port is missing", "name the port the container serves HTTP on")
    if "path" in block and not re.fullmatch(r"/[!-~]*", block["path"]):
        found.say("/server/path", "schema_invalid", "this is no path of a URL", "write one like /mcp")
    return msgspec.convert(block, Docker)


def _remote(block: Mapping[str, Any], found: FileFindings, insecure_hosts: Collection[str]) -> Remote | None:
    url: str = block["url"]
    try:
        parts = urlsplit(url)
        host, port, credentials = parts.hostname, parts.port, "@" in parts.netloc
    except ValueError:
        host, port, credentials = None, None, False
        parts = urlsplit("")
    del port  # read for its check
    if credentials:  # AIP-server-7
        _refuse_plaintext(found, "/server/url", "url")
    elif parts.scheme not in {"http", "https"} or not host or not _URL.fullmatch(url) or "#" in url:  # AIP-server-7
        found.say(
            "/server/url",
            "url_invalid",
            "this is not the address of a server",
            "write https://host/path, without a fragment",
        )
    elif parts.scheme == "http" and not is_loopback(host):  # AIP-security-10
        listed = host in insecure_hosts
        found.say(
            "/server/url",
            "insecure_url",
            "this address is not encrypted",
            "write https://, or let the operator name the host in drivers.insecure_hosts",
            "warning" if listed else "error",
        )
    return msgspec.convert(block, Remote)
