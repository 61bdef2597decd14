"""Servers of kind remote: nothing is installed, and the node dials the address with the credentials of the file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar
from urllib.parse import urlsplit

from interlock.config.plan import Dial, OAuthPlan, ServerPlan
from interlock.drivers.install.installation import Installation, Installed, Locked, Note
from interlock.drivers.kinds.kind import DeclaredPath, ServerKind, segment_of
from interlock.drivers.protocol.kinds import RemoteAuth, RemoteServer
from interlock.drivers.protocol.model import Driver


class RemoteKind(ServerKind[RemoteServer]):
    failure_code: ClassVar[str] = "upstream_error"

    def find_present(self, server: RemoteServer, installation: Installation) -> Installed | None:
        has_install = bool(installation.driver.install)
        notes = (Note(code="install_ignored", message="a remote server is not installed"),) if has_install else ()
        return Installed(command=(), version=None, lock=Locked(asked="", method="present"), notes=notes)

    def compile_plan(
        self,
        driver: Driver,
        installed: Installed,
        *,
        folder: Path,
        data: Path,
        tenant: str | None = None,
        is_sandboxed: bool = True,
        real_paths: Mapping[Path, Path] = MappingProxyType({}),
    ) -> ServerPlan:
        server = driver.server
        assert isinstance(server, RemoteServer)  # noqa: S101  (the table of kinds says so)
        return ServerPlan(segment=segment_of(driver, tenant), reach=_dial(driver, server))

    def declared_paths(self, driver: Driver, folder: Path) -> Iterator[DeclaredPath]:
        return iter(())


def _dial(driver: Driver, server: RemoteServer) -> Dial:
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
        auth=_oauth_plan(auth) if auth.type == "oauth" else None,
        egress=_allowed_hosts(driver, server),
    )


def _allowed_hosts(driver: Driver, server: RemoteServer) -> tuple[str, ...] | None:
    """Return the hosts that may be dialled, authorization servers included; None: the file has no list of hosts.

    AIP-security-4.
    """
    if driver.network is None or "/network/egress" not in driver.places.lines:
        return None
    return (*driver.network.egress, urlsplit(server.url).hostname or "")


def _oauth_plan(auth: RemoteAuth) -> OAuthPlan:
    return OAuthPlan(
        grant="authorization_code" if auth.secret is None else "client_credentials",
        client_id=auth.client_id,
        client_secret=None if auth.secret is None else f"${{secrets.{auth.secret}}}",
        scopes=auth.scopes,
    )
