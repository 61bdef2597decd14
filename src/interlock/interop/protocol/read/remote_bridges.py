"""Programs that only carry MCP to a remote server, seen through: mcp-remote, supergateway, mcp-proxy (AIP-import-5).

In comes the server block of the carrier, out the address and headers it would dial; None leaves it a program, because
it is no carrier, serves instead of dialling, or has an option whose meaning is not known here.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.interop.protocol.model import Note, Transport

_ADDRESS: Final = re.compile(r"https?://\S+", re.I)
_HEADER: Final = re.compile(r"\s*(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*:\s*(?P<value>.*)", re.DOTALL)
_PIN: Final = re.compile(r"(?:==|(?<=.)@)[^/]*$")

_REMOTE_SILENT = {"--debug", "--allow-http", "--enable-proxy", "--silent"}
_REMOTE_VALUED = {"--host", "--auth-timeout", "--resource", "--static-oauth-client-metadata", "--protocol"}
_REMOTE_TRANSPORTS: dict[str, Transport] = {
    "http-only": "http",
    "http-first": "http",
    "sse-only": "sse",
    "sse-first": "sse",
}
_GATEWAY_VALUED = {"--outputTransport", "--logLevel", "--healthEndpoint"}


class Unwrapped(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    transport: Transport = "http"
    headers: Mapping[str, str] = {}
    used_env: frozenset[str] = frozenset()  # the carrier's own variables, now in headers
    notes: tuple[Note, ...] = ()


class _Unknown(Exception):
    """An option that is not known here."""


def unwrap_bridge(server: Mapping[str, Any], env: Mapping[str, str]) -> Unwrapped | Note | None:
    """A Note: it is a carrier, and why it stays one."""
    carrier = {"mcp-remote": _mcp_remote, "supergateway": _supergateway, "mcp-proxy": _mcp_proxy}.get(
        _PIN.sub("", str(server.get("package", "")))
    )
    if carrier is None or server.get("kind") not in {"npm", "pypi"}:
        return None
    try:
        return carrier(list(server.get("args", ())), env)
    except _Unknown as unknown:
        return Note(code="carrier_kept", text=f"it carries another server, and {unknown} is not known here")


def _mcp_remote(args: list[str], env: Mapping[str, str]) -> Unwrapped | None:
    if not args or not _ADDRESS.fullmatch(args[0]):
        return None
    headers: dict[str, str] = {}
    transport: Transport = "http"
    rest = args[1:]
    if rest and rest[0].isdigit():  # the port of its callback
        rest = rest[1:]
    while rest:
        flag = rest.pop(0)
        if flag == "--header":
            _add_header(headers, _value(flag, rest))
        elif flag == "--transport":
            chosen = _REMOTE_TRANSPORTS.get(_value(flag, rest))
            if chosen is None:
                raise _Unknown("its --transport")
            transport = chosen
        elif flag in _REMOTE_VALUED:
            _value(flag, rest)
        elif flag not in _REMOTE_SILENT:
            raise _Unknown(_describe(flag))
    return _with_variables(args[0], transport, headers, env)


def _supergateway(args: list[str], env: Mapping[str, str]) -> Unwrapped | None:
    headers: dict[str, str] = {}
    found: tuple[str, Transport] | None = None
    rest = list(args)
    while rest:
        flag = rest.pop(0)
        if flag in {"--sse", "--streamableHttp"}:
            found = (_value(flag, rest), "sse" if flag == "--sse" else "http")
        elif flag == "--header":
            _add_header(headers, _value(flag, rest))
        elif flag == "--oauth2Bearer":
            headers["Authorization"] = f"Bearer {_value(flag, rest)}"
        elif flag == "--stdio":
            return None  # serves a program to others
        elif flag in _GATEWAY_VALUED:
            if _value(flag, rest) != "stdio" and flag == "--outputTransport":
                return None
        else:
            raise _Unknown(_describe(flag))
    if found is None or not _ADDRESS.fullmatch(found[0]):
        return None
    return _with_variables(found[0], found[1], headers, env)


def _mcp_proxy(args: list[str], env: Mapping[str, str]) -> Unwrapped | None:
    headers: dict[str, str] = {}
    transport: Transport = "sse"  # its default
    url = None
    rest = list(args)
    while rest:
        flag = rest.pop(0)
        if flag in {"-H", "--headers"}:
            name = _value(flag, rest)
            headers[name] = _value(flag, rest)
        elif flag == "--transport":
            chosen = _value(flag, rest)
            if chosen not in {"sse", "streamablehttp"}:
                raise _Unknown("its --transport")
            transport = "sse" if chosen == "sse" else "http"
        elif flag in {"--debug", "--no-debug"}:
            continue
        elif flag in {"--client-id", "--client-secret", "--token-url"} or flag.startswith("-"):
            raise _Unknown(_describe(flag))
        elif url is None and _ADDRESS.fullmatch(flag):
            url = flag
        else:
            return None  # a program to serve
    if url is None:
        return None
    used = frozenset({"API_ACCESS_TOKEN"} & set(env))
    if used:
        headers.setdefault("Authorization", f"Bearer {env['API_ACCESS_TOKEN']}")
    found = _with_variables(url, transport, headers, env)
    return msgspec.structs.replace(found, used_env=found.used_env | used)


def _value(flag: str, rest: list[str]) -> str:
    if not rest:
        raise _Unknown(_describe(flag))
    return rest.pop(0)


def _describe(flag: str) -> str:
    return flag.partition("=")[0][:40] if flag.startswith("-") else "an argument"


def _add_header(headers: dict[str, str], written: str) -> None:
    found = _HEADER.fullmatch(written)
    if found is None:
        raise _Unknown("a header without a colon")
    headers[found["name"]] = found["value"]


def _with_variables(url: str, transport: Transport, headers: Mapping[str, str], env: Mapping[str, str]) -> Unwrapped:
    """`Authorization:${AUTH}` with AUTH in env: a way around clients that cut arguments at blanks."""
    used: set[str] = set()

    def filled(text: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in env:
                return found[0]
            used.add(found[1])
            return env[found[1]]

        return re.sub(r"\$\{([A-Za-z_]\w*)\}", value, text)

    return Unwrapped(
        url=filled(url),
        transport=transport,
        headers={name: filled(value) for name, value in headers.items()},
        used_env=frozenset(used),
    )
