"""The endpoints of a node on its sockets: the public one, the operator's (also on admin.sock), and clients over lines.

Theory of operation. The sockets were bound before (`node.sockets`). Each endpoint is an HTTP server of uvicorn with
its own protocol class, whose connections are counted in a table: the table limits how many connections and how many
bytes each peer has, so that peers cannot block each other. The public endpoint and subservers share one table; each
listener of the operator has a table of its own, so that a crowded network listener cannot block admin.sock.

`admin.sock` is a file that only the user of the node can open. Who opens it is the operator, without a token. At the
network listener every request needs a token or the session of a browser.

A node that stops calls `refuse_new` first, lets calls end, and then `end`, which waits at most DRAIN_S.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import uvicorn

from interlock.access.operations import find_browser
from interlock.access.tokens import Operator, credential_of
from interlock.ax.endpoint import AxEndpoint, UserProtocol, user_app
from interlock.core.background import BackgroundTasks
from interlock.core.tls import listener_options
from interlock.fronts.connections import ConnectionTable
from interlock.fronts.exchange import Head, OwnAddress, own_address
from interlock.fronts.http_protocol import EndpointConnection, McpProtocol
from interlock.fronts.public import public_app
from interlock.fronts.stdio import SOCKET, BridgedClient
from interlock.net.protocol.address_scope import is_loopback
from interlock.node.capability_parts import NodeParts
from interlock.node.sockets import EndpointServer, Sockets
from interlock.operator.operation import Handlers

DRAIN_S: Final = 10  # how long exchanges under way may take once no more are taken

SWEEP_S: Final = 1.0
OPERATOR_CONNECTIONS_MAX: Final = 512  # of people, commands and their event streams
OPERATOR_BODY_BYTES: Final = 64 * 1024  # at most; the application's own limit

PAGES: Final = "/approvals"  # what a person looks at with a browser

Authenticate = Callable[[Any], Awaitable[str | None]]
OperatorApp = Callable[[Handlers, Authenticate | None, OwnAddress], Any]


@dataclass(eq=False)
class Endpoints:
    """The part of a node that serves HTTP on its sockets: the public endpoint, the operator endpoint and admin.sock."""

    _parts: NodeParts
    _sockets: Sockets
    _subservers: AxEndpoint
    _handlers: Handlers
    _operator_app: OperatorApp
    _is_ready: Callable[[], bool]
    _servers: list[EndpointServer] = field(default_factory=list, init=False)
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list, init=False)
    _work: BackgroundTasks = field(default_factory=BackgroundTasks, init=False)
    _operator_connections: list[ConnectionTable] = field(default_factory=list, init=False)
    _bridged: set[BridgedClient] = field(default_factory=set, init=False)
    _opened: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack, init=False)

    async def open(self) -> None:
        plan, sockets = self._parts.plan, self._sockets
        async with contextlib.AsyncExitStack() as opened:
            opened.push_async_callback(self.end)
            await self._serve_public()
            own = own_address(plan.node.operator_listen, plan.node.operator_url)
            operator = self._operator_app(self._handlers, self._authenticate, own)
            await self._serve_operator(operator, *sockets.operator, **listener_options(plan.node, public=False))
            await self._serve_operator(self._operator_app(self._handlers, None, own), sockets.admin)
            self._work.begin(self._sweep_forever(), "connections")
            # At this socket, `interlock serve --stdio` connects its client to the running node.
            path = sockets.folder / SOCKET
            path.unlink(missing_ok=True)
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: BridgedClient(self._parts.fronts.lines.make, self._bridged), str(path)
            )
            opened.callback(lambda: path.unlink(missing_ok=True))
            opened.callback(server.close)
            path.chmod(0o600)
            self._opened = opened.pop_all()

    async def close(self) -> None:
        await self._opened.aclose()

    def refuse_new(self) -> None:
        """Stop accepting connections. Requests under way continue."""
        for server in self._servers:
            server.end()

    async def end(self) -> None:
        """Wait at most DRAIN_S until the requests under way are answered, and end all servers."""
        self.refuse_new()
        for client in list(self._bridged):
            client.transport.close()
        await self._work.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._servers.clear()

    async def _serve_public(self) -> None:
        """Serve the public endpoint, and the Unix socket for subservers of this machine if one is configured."""
        plan = self._parts.plan
        public = self._parts.fronts.public

        class PublicProtocol(McpProtocol):  # uvicorn makes one for each connection
            endpoint = public
            table = public.connections

        class SubserverProtocol(UserProtocol):  # identifies a subserver by its user
            endpoint = public
            table = public.connections

        bearers = self._parts.fronts.bearers
        documents = bearers.documents() if bearers is not None else {}
        apps = {
            path: app for capability in self._parts.capabilities.values() for path, app in capability.apps().items()
        }
        if self._sockets.subservers is not None:
            await self._serve(user_app(self._subservers), self._sockets.subservers, http=SubserverProtocol)
        await self._serve(
            public_app(self._is_ready, documents | self._parts.links.credentials.documents(), apps),
            self._sockets.public,
            http=PublicProtocol,
            ws_max_size=plan.limits.message_bytes,
            ws_ping_interval=None,  # the pipe's matter
            ws_per_message_deflate=False,
            **listener_options(plan.node, public=True),
        )

    async def _serve_operator(self, app: Any, *socks: socket.socket, **options: Any) -> None:
        """Serve the operator endpoint on some sockets, with a limit on their connections.

        Each listener has its own connection limit, so a busy one cannot block admin.sock.
        """

        def note_refusal(connection: EndpointConnection, head: Head, reason: str) -> None:
            who, method = f"peer:{connection.sender(head)}", head.method.decode("ascii") or "-"
            self._parts.stores.refusals.note(who, "operator", method, reason)

        connections = ConnectionTable(
            most=OPERATOR_CONNECTIONS_MAX,
            message_bytes=OPERATOR_BODY_BYTES,
            note_refusal=note_refusal,
            is_shared=is_loopback,
        )

        class OperatorProtocol(EndpointConnection):
            table = connections

        self._operator_connections.append(connections)
        await self._serve(app, *socks, http=OperatorProtocol, **options)

    async def _sweep_forever(self) -> None:
        """End idle connections every second, and let capabilities do their periodic work."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = loop.time()
            self._parts.fronts.public.sweep(now)
            for capability in self._parts.capabilities.values():
                capability.sweep(now)
            for connections in self._operator_connections:
                connections.sweep(now)

    async def _serve(self, app: Any, *socks: socket.socket, **options: Any) -> None:
        """Run an HTTP server on sockets that are bound already.

        Return when it accepts connections, or raise the error that prevented it.
        """
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # node.trusted_proxies decides whose word counts
            server_header=False,
            timeout_graceful_shutdown=DRAIN_S,
            **options,
        )
        server = EndpointServer(config)
        self._servers.append(server)
        task = asyncio.get_running_loop().create_task(server.serve(sockets=list(socks)), name="http server")
        self._tasks.append(task)
        begun = asyncio.ensure_future(server.begun.wait())
        await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if task.done():
            task.result()

    async def _authenticate(self, request: Any) -> str | None:
        """Return the principal who sends a request to the operator endpoint, or None if the request has no valid
        credential.

        The roles, and a question whether the credential is still valid, are stored in the state of the request: a
        stream of events ends when its credential does.
        """
        who = self._find_operator(request)
        if who is None:
            peer = request.client.host if request.client is not None else None
            self._parts.stores.refusals.note(f"peer:{peer}", "operator", request.method[:20], "unauthorised")
            return None
        request.state.roles = who.roles
        request.state.is_live = lambda: self._find_operator(request) is not None
        return who.principal

    def _find_operator(self, request: Any) -> Operator | None:
        """Return the operator who sends a request, identified by a token or, on a page, by the session of the browser.

        Otherwise return None.
        """
        header, page = request.headers.get("authorization", ""), request.url.path.startswith(PAGES)
        tokens = self._parts.stores.tokens
        who = tokens.operator(credential_of(header, basic=page))
        return who or find_browser(tokens, request.headers.get("host", ""), request.cookies)
