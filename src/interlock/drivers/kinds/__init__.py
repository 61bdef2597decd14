"""The operations of a node on each kind of server: installing it, planning its process and cleaning up after it.

To add a kind of server, for example `kind: snap`, write in `interlock/drivers/protocol/kinds.py` a subclass of
`LocalServer` (or of `ServerBlock`, if the node does not start it), and add it to the table `SERVERS` there. The class
defines which keys the block has in DRIVER.md, how it is read, what identifies it, and which program runs it. No other
code distinguishes kinds: reading, schemas, compatibility, export, `interlock add snap:NAME`, installation, version
checks, sandboxes and trust all follow from that class.

A kind also has a class in this package if it is more than a program to run: if it has its own installer, is confined by
something other than the sandbox, or runs elsewhere and is connected to.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from interlock.config.plan import Dial, OAuthPlan
from interlock.drivers.install.installation import Installation, Installed, Locked, Note
from interlock.drivers.kinds.docker import DockerKind
from interlock.drivers.kinds.kind import DeclaredPath, ServerKind
from interlock.drivers.kinds.programs import NpmKind, ProgramKind, PypiKind
from interlock.drivers.protocol.kinds import RemoteAuth, RemoteServer, ServerBlock
from interlock.drivers.protocol.model import Driver


class RemoteKind(ServerKind[RemoteServer]):
    """Kind of servers that run on other machines. They have no process, no sandbox and no paths on this machine.

    Nothing is installed; the node connects to the URL with the credentials of DRIVER.md. A plan contains
    `${secrets.NAME}` instead of a credential. The keeper fills it in when it connects, so a plan can be compared and
    shown. A network.egress in DRIVER.md limits every host that the node connects to for the server, including
    authorization servers.
    """

    failure_code: ClassVar[str] = "upstream_error"

    def find_present(self, server: RemoteServer, installation: Installation) -> Installed | None:
        has_install = bool(installation.driver.install)
        notes = (Note(code="install_ignored", message="a remote server is not installed"),) if has_install else ()
        return Installed(command=(), version=None, lock=Locked(asked="", method="present"), notes=notes)

    def dial(self, driver: Driver) -> Dial:
        server = driver.server
        assert isinstance(server, RemoteServer)  # noqa: S101  (the table of kinds says so)
        auth = server.auth or RemoteAuth(type="none")
        secret = None if auth.secret is None else f"${{secrets.{auth.secret}}}"
        headers = dict(server.headers)
        if auth.type == "bearer":
            headers["Authorization"] = f"Bearer {secret}"
        elif auth.type == "header" and auth.header is not None:
            headers[auth.header] = str(secret)
        oauth = None
        if auth.type == "oauth":
            oauth = OAuthPlan(
                grant="authorization_code" if secret is None else "client_credentials",
                client_id=auth.client_id,
                client_secret=secret,
                scopes=auth.scopes,
            )
        # AIP-security-4: a list of hosts also limits the authorization servers that may be asked for a token.
        egress = None
        if driver.network is not None and "/network/egress" in driver.places.lines:
            egress = (*driver.network.egress, urlsplit(server.url).hostname or "")
        return Dial(
            url=server.url,
            headers=headers,
            query=dict(server.query),
            transport="sse" if driver.transport == "sse" else "http",
            auth=oauth,
            egress=egress,
        )

    def declared_paths(self, driver: Driver, folder: Path) -> Iterator[DeclaredPath]:
        return iter(())


_PROGRAM: Final = ProgramKind()
_OTHERS: Final[Mapping[str, ServerKind[Any]]] = {
    "npm": NpmKind(),
    "pypi": PypiKind(),
    "docker": DockerKind(),
    "remote": RemoteKind(),
}


def kind_of(server: ServerBlock) -> ServerKind[Any]:
    """Return the object that implements the server's kind, for example how npm packages are started. Plain programs are
    the default.
    """
    return _OTHERS.get(server.kind, _PROGRAM)
