"""`Subserver`: the class with which a program becomes a leaf of an MCP-AX tree.

Its arguments are checked first, so that a mistake is an exception at the call that made it. Then `LeafUplink` registers
the leaf with the first parent that accepts it, and with the next one when that is lost.

Its subserver_id is a UUID that stays the same across restarts, crashes and upgrades (MCP-AX 6.1), kept in a small file
that only its owner may read. An unreadable file stops the start: with a new id this leaf would be a stranger to the
aggregators that hold its namespace.

Methods that say so may be called from any thread. They pass their work to the event loop on which `serve` runs, and do
nothing before `serve` and after its end.
"""

import asyncio
import json
import logging
import os
import ssl
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.messages import HEARTBEAT_MS, SUBPROTOCOL, VERSION, AuthorityProof, Register
from interlock.ax.protocol.names import check_segment
from interlock.config.folders import data_folder
from interlock.crypto.signing import KeyFileError, read_signing_key, write_once
from interlock.net.protocol.address_scope import is_loopback
from interlock.sdk.subserver.tools import OfferedTools, RegistrationRefused, SubserverInvalid, ToolInvalid

if TYPE_CHECKING:
    from interlock.ax.uplink import Opener
    from interlock.sdk.subserver.mcp_server import LeafUplink

FILE_BYTES_MAX = 4096  # of the file that contains the subserver_id


def subserver_id(path: Path) -> str:
    """Return the subserver_id that is stored in a file. Create it on the first start. Raise SubserverInvalid if the
    file cannot be used.
    """
    try:
        with path.open("rb") as file:
            return str(uuid.UUID(json.loads(file.read(FILE_BYTES_MAX + 1))["subserver_id"]))
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise SubserverInvalid(f"{path} cannot be read: {error.strerror}; make it readable or give state=") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        why = f"{path} holds no subserver_id; restore it, or remove it to become a new subserver"
        raise SubserverInvalid(why) from None


def _create(path: Path) -> str:
    """Write a new subserver_id to a file atomically. If another process has just written one, return that id."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_once(path, json.dumps({"subserver_id": str(uuid.uuid4())}).encode() + b"\n")
    except OSError as error:
        why = f"the subserver_id cannot be kept in {path}: {error.strerror}; give state= a folder that can be written"
        raise SubserverInvalid(why) from error
    return subserver_id(path)


log = logging.getLogger("interlock.subserver")

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024  # as limits.message_bytes of a node
GRACE_S: Final = 5.0  # for calls under way when the leaf is asked to end
STARTED_BY_AGGREGATOR: Final = "INTERLOCK_AX"  # its value "stdio" means: the parent is at our standard input and output
HEARTBEAT_MS_MIN: Final = 100
HEARTBEAT_MS_MAX: Final = 3_600_000


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """The address of an aggregator and the credential for it. `secure_by` says why a ws:// address outside this host is
    safe.
    """

    url: str
    token: str | None = None
    secure_by: str | None = None


class Subserver(OfferedTools):
    """A program that offers Python functions as tools and stays registered with an aggregator. It is a leaf of an MCP-
    AX tree.
    """

    def __init__(
        self,
        segment: str,
        parents: Sequence[str | Parent] = (),
        *,
        token: str | None = None,
        authority: str | None = None,
        authority_proof: str | None = None,
        authority_key: str | os.PathLike[str] | None = None,
        auth_scope: str | None = None,
        tree: str | None = None,
        heartbeat_interval_ms: int = HEARTBEAT_MS,
        state: str | os.PathLike[str] | None = None,
        tls: ssl.SSLContext | None = None,
        version: str = "0.0.0",
        instructions: str | None = None,
        max_message_bytes: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """Prepare to register with one of `parents`. They are tried in order, and the first that accepts is used until
        its connection is lost.

        `token` is for parents that are plain addresses. `authority` is a DNS name. `authority_key` is the private key
        (PEM) that proves it again at each registration; `authority_proof` is a JWT that was created elsewhere. `state`
        is the folder that stores the subserver_id. `tls` is for wss://; the default is the trust of the system.
        """
        if why := check_segment(segment):
            raise SubserverInvalid(why)
        if heartbeat_interval_ms and not HEARTBEAT_MS_MIN <= heartbeat_interval_ms <= HEARTBEAT_MS_MAX:
            raise SubserverInvalid(f"heartbeat_interval_ms is 0, or {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}")
        self.segment = segment
        self._parents = [
            _check_parent(Parent(url=parent, token=token) if isinstance(parent, str) else parent) for parent in parents
        ]
        self._authority = _read_authority(authority)
        if authority_key is not None and self._authority is None:
            raise SubserverInvalid("authority_key= proves an authority; give authority= too")
        try:
            self._key = read_signing_key(Path(authority_key)) if authority_key is not None else None
        except KeyFileError as refused:
            raise SubserverInvalid(str(refused)) from None
        try:
            scope = AuthScope(auth_scope) if auth_scope is not None else None
        except ValueError:
            raise SubserverInvalid("auth_scope is read, write or admin") from None
        # A proof that is signed with `authority_key` is added later, because it differs for each parent.
        self._register = Register(
            subserver_id="",  # read when the program is served
            segment=segment,
            authority=self._authority,
            tools=True,
            resources=False,
            notifications=True,
            prompts=False,
            completions=False,
            heartbeat_interval_ms=heartbeat_interval_ms,
            version=VERSION,
            authority_proof=AuthorityProof(type="jwt", token=authority_proof) if authority_proof is not None else None,
            auth_scope=scope,
            tree=tree,
        )
        folder = Path(state) if state is not None else data_folder(os.environ) / "subservers"
        self._identity = folder / f"{segment}.json"  # with the subserver_id
        self._tls = tls
        self._version = version
        self._instructions = instructions
        self._max_bytes = max_message_bytes
        super().__init__()
        self._uplink: LeafUplink | None = None
        self.registered = threading.Event()  # set once, with the first registration

    def _on_offered(self) -> None:
        self._on_loop(self._tools_changed)

    def withdraw(self, name: str) -> None:
        """Stop offering a tool. Raise ToolInvalid if there is no tool of that name."""
        if name not in self._tools:
            raise ToolInvalid(f"there is no tool {name}")
        del self._tools[name]
        self._on_loop(self._tools_changed)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification to the parent. Any thread may call this. Without a parent the notification is dropped,
        because it would be outdated later.
        """
        if not method.startswith("notifications/") or any(char in '"\\' or ord(char) < 32 for char in method):
            raise SubserverInvalid(f'a notification\'s method begins with "notifications/", and {method!r} does not')
        encoded = msgspec.json.encode(params) if params is not None else b""

        def send() -> None:
            server = self._uplink.server if self._uplink is not None else None
            if server is None or not server.notify(method, encoded):
                log.debug("%s was dropped: there is no parent to tell", method)

        self._on_loop(send)

    def run(self, *, stdio: bool = False) -> None:
        """Serve the tools until SIGTERM or SIGINT. With `stdio`, communicate over standard input and output with the
        aggregator that started this program.
        """
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
        try:
            asyncio.run(self._serve_until_signal(lambda: self.serve(stdio=stdio)))
        except RegistrationRefused:  # the log has said why
            sys.exit(1)

    async def serve(self, *, stdio: bool = False) -> None:
        """Serve the tools like `run`, in a program that already has an event loop. Cancel this call or call `stop` to
        end it.
        """
        from interlock.sdk.subserver.mcp_server import LeafUplink, ToolOffer

        stdio = stdio or os.environ.get(STARTED_BY_AGGREGATOR) == "stdio"
        if not self._parents and not stdio:
            raise SubserverInvalid('there is no parent; give parents=["wss://HOST/ax"], or run(stdio=True)')
        if self._uplink is not None:
            raise SubserverInvalid("this subserver is running already")
        offer = ToolOffer(self.segment, self._version, self._instructions, self._max_bytes, self._tools)
        self._loop = asyncio.get_running_loop()
        self._stopping = stopping = asyncio.Event()
        uplink = LeafUplink(
            msgspec.structs.replace(self._register, subserver_id=subserver_id(self._identity)),
            self._openers(stdio),
            offer,
            self,
            once=stdio,
        )
        self._uplink = uplink

        async def end_when_stopped() -> None:
            await stopping.wait()
            log.info("ending")
            if offer.calls:
                await asyncio.wait(offer.calls, timeout=GRACE_S)
            uplink.stop()

        running = self._loop.create_task(uplink.run())
        ending = self._loop.create_task(end_when_stopped())
        try:
            await running
            if uplink.refusal is not None:
                raise RegistrationRefused(uplink.refusal)
        finally:
            ending.cancel()
            running.cancel()
            self._uplink = self._loop = self._stopping = None

    def _prove(self, parent: int) -> AuthorityProof | None:
        """Return the proof of authority for one parent: a new signature, or the JWT that was passed to the constructor.
        Return None if neither exists.
        """
        if self._key is None or self._authority is None:
            return self._register.authority_proof
        return self._key.prove(self._authority, self._parents[parent].url, time.time())

    def _openers(self, stdio: bool) -> "list[tuple[str, Opener]]":
        """Return, for each parent, its address as the log shows it and a function that connects to it."""
        if stdio:
            from interlock.sdk.subserver.stdio import open_standard

            return [("the aggregator that started us", lambda sink: open_standard(sink, self._max_bytes))]
        from interlock.net.websocket import dial

        options: dict[str, Any] = {"subprotocol": SUBPROTOCOL, "tls": self._tls, "max_bytes": self._max_bytes}
        openers: list[tuple[str, Opener]] = []
        for parent in self._parents:
            headers = {"Authorization": f"Bearer {parent.token}"} if parent.token is not None else {}
            openers.append((_place(parent.url), partial(dial, parent.url, headers=headers, **options)))
        return openers

    def _tools_changed(self) -> None:
        if self._uplink is not None and self._uplink.server is not None:
            self._uplink.server.tools_changed()


def _check_parent(parent: Parent) -> Parent:
    """Return the parent unchanged. Raise SubserverInvalid if its address or token cannot work, or if its address is
    insecure.

    Beyond this host, a connection needs TLS or the operator's statement that the network is safe (MCP-AX 10.4).
    """
    parts = urlsplit(parent.url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise SubserverInvalid(f"a parent is an address such as wss://HOST/ax, not {_place(parent.url)!r}")
    if parts.username is not None or parts.password is not None:
        raise SubserverInvalid("a credential does not belong into the address; give token=")
    if parts.scheme == "ws" and not is_loopback(parts.hostname) and not parent.secure_by:
        raise SubserverInvalid(
            f"{_place(parent.url)} is not on this host and not wss://; use TLS,"
            ' or Parent(url=..., secure_by="REASON") where the network itself is safe'
        )
    if parent.token is not None and (not parent.token.isascii() or not parent.token.isprintable()):
        raise SubserverInvalid("a token is printable ASCII; was a line break copied along?")
    return parent


def _place(url: str) -> str:
    """Return a URL for messages, without the parts that could contain a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read_authority(name: str | None) -> str | None:
    """Return an authority, which is a DNS name, in canonical form, or None if there is none. Raise SubserverInvalid if
    it is not a DNS name.
    """
    if name is None:
        return None
    from interlock.ax.protocol.registration.authority import maybe_authority

    if (read := maybe_authority(name if name.startswith("dns:") else f"dns:{name}")) is None:
        raise SubserverInvalid(f"an authority is a DNS name such as edge01.example.com, not {name!r}")
    return read
