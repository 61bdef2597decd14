"""The server plan: a driver and what was installed for it, in the form by which a keeper starts or dials its server.

Secrets stay placeholders: they are revealed when the server is started, and this module sees none. Nothing of a caller
goes in (AIP-security-8).
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.config.plan import Dial, OAuthPlan, SandboxPlan, ServerPlan, Spawn
from interlock.drivers.install.install import with_another_port
from interlock.drivers.install.outcome import Installed
from interlock.drivers.protocol.files.runner_block import runner_limits
from interlock.drivers.protocol.model import Docker, Driver, FileAccess, Network, Remote, RemoteAuth, Sandbox
from interlock.drivers.workspace.sandbox_paths import path_of
from interlock.links.connector import ConnectorParts, Eras
from interlock.links.handshake import LEGACY_CAPABILITIES, Manner
from interlock.mcp.eras import LEGACY_VERSIONS, Era
from interlock.net.tls import trusting_context

HOMES: Final = "homes"


def segment_of(driver: Driver, who: str | None) -> str:
    """The segment of the keeper. No segment of a configured or registered server holds an '@'."""
    return driver.key if who is None else f"{driver.key}+{_brief(who)}"


def compile_server_plan(
    driver: Driver,
    installed: Installed,
    *,
    folder: Path,
    data: Path,
    who: str | None = None,
    is_sandboxed: bool = True,
    real_paths: Mapping[Path, Path] = MappingProxyType({}),
) -> ServerPlan:
    """`folder` holds the DRIVER.md, and its relative paths start there. `who`: the tenant or user whose own it is.
    `real_paths`: what its paths were when it was accepted."""
    server = driver.server
    segment = segment_of(driver, who)
    if isinstance(server, Remote):
        return ServerPlan(segment=segment, reach=_dial(driver, server))
    place = partial(path_of, folder)
    # Beside each other: who may write around a home could put a link in its place.
    home = data / HOMES / (driver.id if who is None else f"{driver.id}+{_brief(who)}")
    is_container = isinstance(server, Docker)
    installed = with_another_port(installed)
    sandbox = None
    if is_sandboxed and not is_container:
        sandbox = _sandbox(driver, installed, home, place, real_paths)
    return ServerPlan(
        segment=segment,
        reach=Spawn(
            command=(*installed.command, *server.args),
            env={**installed.env, **_set(driver.sandbox), **server.env},
            cwd=None if server.cwd is None or is_container else place(server.cwd),
            sandbox=sandbox,
            serves=installed.url,
        ),
        roots=_maybe_roots(driver, place),
    )


def may_be_oauth(driver: Driver) -> bool:
    """Whether a token may be asked for: not where the file says what the credential is."""
    server = driver.server
    return isinstance(server, Remote) and (server.auth is None or server.auth.type in ("oauth", "none"))


def manner_of(driver: Driver) -> Manner:
    asked = driver.interlock.client_capabilities
    return Manner(
        # AIP-proto-6: on a shared process a server's question cannot be tied to one caller.
        capabilities={name: LEGACY_CAPABILITIES[name] for name in asked},
        versions=driver.interlock.protocol_versions,
        patience_s=driver.connection.timeout_ms / 1000,
        either_transport=isinstance(driver.server, Remote),
    )


class DeclaredEras:
    """The era one driver's server spoke last, else the one of the version it is declared for (AIP-proto-3)."""

    def __init__(self, eras: Eras, driver: Driver) -> None:
        self._eras = eras
        self._key = driver.key
        self._declared = Era.LEGACY if driver.protocol_version in LEGACY_VERSIONS else None

    def get(self, server: str) -> Era | None:
        return self._eras.get(self._key) or self._declared

    def put(self, server: str, era: Era) -> None:
        self._eras.put(self._key, era)


async def with_own_authority(connector_parts: ConnectorParts, driver: Driver, ca_file: Path | None) -> ConnectorParts:
    """The parts with drivers.ca_file as an authority for a remote server. Raises OSError."""
    if ca_file is None or not isinstance(driver.server, Remote):
        return connector_parts
    return msgspec.structs.replace(connector_parts, tls=await asyncio.to_thread(trusting_context, ca_file))


def _brief(who: str) -> str:
    return sha256(who.encode()).hexdigest()[:8]


def _dial(driver: Driver, server: Remote) -> Dial:
    auth = server.auth or RemoteAuth(type="none")
    headers = dict(server.headers)
    if auth.type == "bearer":
        headers["Authorization"] = f"Bearer ${{secrets.{auth.secret}}}"
    elif auth.type == "header" and auth.header is not None:
        headers[auth.header] = f"${{secrets.{auth.secret}}}"
    return Dial(
        url=server.url,
        headers=headers,
        query=dict(server.query),
        transport="sse" if driver.transport == "sse" else "http",
        auth=_oauth(driver, auth) if auth.type == "oauth" else None,
        egress=_allowed_hosts(driver, server),
    )


def _allowed_hosts(driver: Driver, server: Remote) -> tuple[str, ...] | None:
    """AIP-security-4: authorization servers are hosts like any other, where the file lists hosts."""
    if driver.network is None or "/network/egress" not in driver.places.lines:
        return None
    return (*driver.network.egress, urlsplit(server.url).hostname or "")


def _oauth(driver: Driver, auth: RemoteAuth) -> OAuthPlan:
    return OAuthPlan(
        grant="authorization_code" if auth.secret is None else "client_credentials",
        client_id=auth.client_id,
        client_secret=None if auth.secret is None else f"${{secrets.{auth.secret}}}",
        scopes=auth.scopes,
    )


def _set(sandbox: Sandbox | None) -> dict[str, str]:
    """What is both passed and set is set where the host has none: ${VAR:-default} of an import (AIP-import-7)."""
    if sandbox is None or sandbox.env is None:
        return {}
    passed = {name for name in sandbox.env.passed if name in os.environ}
    return {name: value for name, value in sandbox.env.set.items() if name not in passed}


def _maybe_roots(driver: Driver, place: Callable[[str], Path]) -> tuple[Path, ...] | None:
    """What its file declares; None: the folders among its arguments, as for the sandbox."""
    fs = driver.sandbox.fs if driver.sandbox is not None else None
    return None if driver.sandbox is None else tuple(map(place, (*fs.read, *fs.write) if fs is not None else ()))


def _sandbox(
    driver: Driver,
    installed: Installed,
    home: Path,
    place: Callable[[str], Path],
    real_paths: Mapping[Path, Path],
) -> SandboxPlan:
    block = driver.sandbox or Sandbox()
    fs = block.fs or FileAccess()
    network = driver.network or block.network or Network()
    limits = runner_limits(driver.runner)
    states = tuple(place(path) for path in driver.auth.state.paths) if driver.auth is not None else ()
    return SandboxPlan(
        home=home,
        from_arguments=driver.sandbox is None,
        read=(*installed.reads, *map(place, fs.read)),
        write=(*installed.writes, *map(place, fs.write), *states),
        deny=tuple(map(place, fs.deny)),
        accepted=dict(real_paths),
        egress=network.egress,
        programs=block.exec.spawn if block.exec is not None else (),
        any_program=block.exec is not None and block.exec.allow,
        passed=block.env.passed if block.env is not None else (),
        memory_mb=limits.memory_mb,
        cpu_ms=limits.cpu_ms,
    )
