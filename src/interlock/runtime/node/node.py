"""The composition root: a Plan becomes a running node, and stops in the reverse order.

Here, and only here, the parts meet.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from interlock.config.plan import Plan
from interlock.operator_api.tools import CheckVerdict
from interlock.process import fd_limit as descriptors
from interlock.process.warden import Warden
from interlock.protocol.approvals.approval import Approval, Kind
from interlock.protocol.jsonrpc.errors import UNAVAILABLE, Fault
from interlock.protocol.oauth.resource import metadata_paths, resource_of
from interlock.runtime.access.tokens import TokenBook, credential_of
from interlock.runtime.approvals.audit import Record
from interlock.runtime.approvals.decisions import Deciding
from interlock.runtime.approvals.inbox import Inbox, rules_of
from interlock.runtime.approvals.notifier import Notifier, make_channels
from interlock.runtime.approvals.revocation import KeyRevocation
from interlock.runtime.approvals.storage import Drawer
from interlock.runtime.approvals.tool_definitions import Definitions
from interlock.runtime.approvals.views import Window
from interlock.runtime.audience import Audience
from interlock.runtime.ax.children import Nursery
from interlock.runtime.ax.memberships import Fittings
from interlock.runtime.ax.ownership import Leases, Owners
from interlock.runtime.ax.registrar import Registrar
from interlock.runtime.base.addresses import Addresses
from interlock.runtime.base.clock import Clock, SystemClock
from interlock.runtime.base.current_plan import CurrentPlan
from interlock.runtime.base.node_identity import NODE_KEY, own_identity
from interlock.runtime.base.recorder import Recorder
from interlock.runtime.base.refusal_log import Refusals
from interlock.runtime.base.tls import listener_options
from interlock.runtime.calls.budgets import Budgets, is_limited
from interlock.runtime.calls.caller import principal_for
from interlock.runtime.catalog.catalog import EVERYTHING, Catalog
from interlock.runtime.catalog.routes import Route, Shelf
from interlock.runtime.credentials.service import GrantDesk
from interlock.runtime.dispatch.checks.route import RouteCheck
from interlock.runtime.dispatch.client_tasks import AskedTasks
from interlock.runtime.dispatch.dispatch import Dispatch
from interlock.runtime.dispatch.guard_checks import make_guard
from interlock.runtime.dispatch.task_methods import TaskDesk
from interlock.runtime.dispatch.task_updates import TaskNews
from interlock.runtime.drivers.contracts.lazy import LazyContracts
from interlock.runtime.drivers.registry.service import Drivers
from interlock.runtime.fronts.ax import AxDoor
from interlock.runtime.fronts.health import public_app
from interlock.runtime.fronts.http_protocol import McpProtocol
from interlock.runtime.fronts.legacy import LegacyDesk
from interlock.runtime.fronts.lists import Stock
from interlock.runtime.fronts.modern import ModernDesk
from interlock.runtime.fronts.public import PublicDoor
from interlock.runtime.fronts.sessions import Session, Sessions
from interlock.runtime.fronts.stdio import LineFront
from interlock.runtime.fronts.stdio_bridge import SOCKET, BridgedClient
from interlock.runtime.gate.gate import Gate
from interlock.runtime.links.connector import Workshop
from interlock.runtime.links.era_memory import EraMemory
from interlock.runtime.links.keeper import Keeper
from interlock.runtime.links.per_user import PersonalLinks
from interlock.runtime.node.configured_servers import Servers
from interlock.runtime.node.link_events import NodeLinkEvents
from interlock.runtime.node.listen import DoorServer, answers, bind, reachable
from interlock.runtime.node.loopback import Taken, maybe_twin
from interlock.runtime.node.reload import Read, Reload
from interlock.runtime.node.reload_parts import takes
from interlock.runtime.node.retention import Retention
from interlock.runtime.operations.audit import AuditOperations
from interlock.runtime.operations.consents import ConsentOperations
from interlock.runtime.operations.drivers import DriverOperations
from interlock.runtime.operations.keys import KeyOperations
from interlock.runtime.operations.links import LinkOperations
from interlock.runtime.operations.node import NodeOperations
from interlock.runtime.operations.operations import Operations
from interlock.runtime.operations.secrets import SecretOperations
from interlock.runtime.operations.tokens import TokenOperations
from interlock.runtime.operations.tools import ToolOperations
from interlock.runtime.sandbox.sandbox import Sandboxes, outer_rules
from interlock.runtime.trust.anchors import Anchors
from interlock.runtime.trust.approval_proofs import Judge
from interlock.runtime.trust.authority_proofs import Proofs
from interlock.runtime.trust.passkeys import PasskeyDesk
from interlock.runtime.trust.registrant import Guest
from interlock.store.backends import build_audit, build_store
from interlock.store.tokens import TokenTable

if TYPE_CHECKING:
    from interlock.keys.signing import SigningKey
    from interlock.runtime.drivers.registry.operations import DriverDesk
    from interlock.runtime.drivers.registry.registry import Registry
    from interlock.runtime.parents.trees import Forest
    from interlock.runtime.trust.client_certificates import Certificates

log = logging.getLogger("interlock.node")

READY_S: Final = 3.0  # how long `on_ready` waits for servers that are still connecting
DRAIN_S: Final = 10  # how long calls under way may take after SIGTERM
DRAIN_TICK_S: Final = 0.02

PAGES: Final = "/approvals"  # what a person looks at with a browser

Authenticate = Callable[[Any], Awaitable[str | None]]
OperatorApp = Callable[[Operations, Authenticate | None], Any]


class NodeRunning(Exception):
    """Another node uses this data folder."""


class Node:
    def __init__(
        self, plan: Plan, operator_app: OperatorApp, clock: Clock | None = None, files: tuple[Path, ...] = ()
    ) -> None:
        """`files`: what the plan was read from, which no sandboxed server may write."""
        self.current = CurrentPlan(plan)
        self.addresses = Addresses(plan.node)
        self.clock = clock or SystemClock()
        self._started = self.clock.now()
        self.identity = own_identity(plan.data)
        self.store = build_store(plan.store.backend, plan.data)
        self.shared = build_store(plan.store.backend, plan.store.shared) if plan.store.shared is not None else None
        self.audit = build_audit(plan.store.backend, plan.data)
        self.recorder = Recorder(self.audit)
        self.tokens = TokenBook(TokenTable(self.store.kv), self.clock, plan.access, plan.auth.token_days)
        self.keepers: dict[str, Keeper] = {}
        self.audience = Audience(self.keepers)
        own_id = self.identity.aggregator_id
        drawer, record = Drawer(self.store.kv, self.clock), Record(self.recorder)
        self.inbox = Inbox(drawer, record, self.clock, rules_of(plan.approvals))
        self.deciding = Deciding(self.inbox, self.clock, own_id)
        self.definitions = self.deciding.rulings = Definitions(self.store.kv, self.inbox, self.clock)
        self.anchors = Anchors(plan.anchors, self.clock)
        self.passkeys = PasskeyDesk(self.anchors, self.recorder, self.clock, lambda: self.addresses.operator)
        self.judge = self.deciding.judge = Judge(self.store.kv, self.clock, self.anchors, self.passkeys.maybe_party)
        self.gate = Gate(
            self.inbox,
            self.anchors,
            self.judge,
            self.clock,
            aggregator_id=own_id,
            operator_url=self.passkeys.url,
            ruled=self.definitions.get,
        )
        self.budgets = Budgets(plan.budget.limits, self.clock, enforced=is_limited(plan))
        route_check = RouteCheck(lambda: self.catalog.namespace)
        guard = make_guard(route_check, self.budgets, self.gate, self.anchors, self.current)
        self.catalog = Catalog(
            plan, self.audience.lists_changed, self.audience.metadata_changed, checks_for=guard.checks_for
        )
        self.dispatch = Dispatch(
            self.catalog,
            self.keepers,
            self.recorder,
            self.clock,
            guard=guard,
            route_check=route_check,
            budgets=self.budgets,
            gate=self.gate,
            deciding=self.deciding,
            latency_meta=plan.mcp.latency_meta,
        )
        self.dispatch.parking.room = descriptors.limit() * 2 // 3  # the rest is for those who are at work
        self.stock = Stock(self.catalog, self.keepers, self.clock, plan.ax.list_ttl_s)
        self.sessions = Sessions(self.clock, plan.mcp.session_idle_s, self._session_ended)
        self._asked_tasks = AskedTasks()
        self.tasks = TaskNews(self.dispatch.tasks, self._asked_tasks)
        self.link_events = NodeLinkEvents(
            self.catalog,
            self.audience,
            self.budgets,
            self.dispatch.tasks,
            self.tasks,
            keeps_degraded=plan.degraded.enabled,
        )
        task_desk = TaskDesk(self.dispatch, self.tasks, self.keepers, self.clock)
        self.legacy = LegacyDesk(self.dispatch, self.stock, self.sessions, self.audience, task_desk, self._asked_tasks)
        self.modern = ModernDesk(self.dispatch, self.stock, self.audience, task_desk)
        self.refusals = Refusals(self.recorder, self.clock)
        self.door = PublicDoor(plan, self.tokens, self.legacy, self.modern, self.refusals)
        self.desk = GrantDesk(plan.data, self.clock, plan.node.name)
        self.personal: dict[str, PersonalLinks] = {}
        self._operator_app = operator_app
        self._warden = Warden()
        self._eras = EraMemory()
        self._workshop = Workshop(
            packages=plan.data / "packages",
            source_builds=plan.drivers.allow_unverified_install,
            message_bytes=plan.limits.message_bytes,
            warden=self._warden,
            eras=self._eras,
            clock=self.clock,
            revealer=self.desk.revealer,
            sandboxes=Sandboxes(
                state=plan.data,
                workspace=plan.workspace,
                user_home=Path.home(),
                clock=self.clock,
                record=self.recorder.add,
                rules=(*outer_rules(plan.drivers), *files),
            ),
        )
        self.catalog.rulings = self.definitions
        self.definitions.on_ruled.append(self.restock)
        self.catalog.on_seen.append(self._definitions_seen)
        self.catalog.on_redefined.append(self.gate.definitions_changed)
        self.deciding.is_current = self._is_current
        self.notifier = Notifier(
            self.inbox, make_channels(plan.approvals, self.clock), url=self.passkeys.url, node=plan.node.name
        )
        self.window = Window(
            self.inbox,
            self.deciding,
            self.clock,
            aggregator_id=own_id,
            url=self.passkeys.url,
            passkeys=self.passkeys,
            approving=self.anchors.approving,
        )
        fittings = Fittings(
            clock=self.clock,
            workshop=self._workshop,
            catalog=self.catalog,
            keepers=self.keepers,
            audience=self.audience,
            link_events=self.link_events,
            recorder=self.recorder,
            budgets=self.budgets,
            refusals=self.refusals,
            leases=self._leases(),
        )
        addresses = self.addresses
        proofs = Proofs(
            self.store.kv,
            self.clock,
            self.anchors,
            audiences=lambda: (f"{addresses.public}/ax", addresses.public, own_id),
        )
        self.revocation = KeyRevocation(self.inbox, self.judge, self.recorder, self.clock)
        self.registrar = Registrar(plan, own_id, fittings, Owners(self.store.kv, self.clock), proofs)
        self.children = Nursery(plan, self.registrar, self._workshop)
        self.door.also_dismiss = lambda: self.registrar.dismiss_unwelcome(self._stands)
        self.parents = self.make_parents()
        self.configured = Servers(
            self.link_events, self.keepers, self.personal, self.catalog, self._workshop, self.desk
        )
        self.contracts = LazyContracts(
            self.current,
            catalog=self.catalog,
            taken=self.keepers,
            link_events=self.link_events,
            clock=self.clock,
            guard=self.dispatch.guard,
            recorder=self.recorder,
            keep=self.registrar.keep_contracts,
        )
        self.drivers = Drivers(plan, self._open_drivers)
        self.reload: Reload | None = None
        self.subservers: AxDoor | None = None
        self.operations = self._make_operations()
        self._servers: list[DoorServer] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._bridged: set[BridgedClient] = set()
        self._stack = contextlib.AsyncExitStack()

    @property
    def plan(self) -> Plan:
        return self.current.plan

    @property
    def url(self) -> str:
        return self.addresses.public

    # Life

    async def start(self, *, listen: bool = True) -> None:
        """Works up the floors; whatever was begun is ended by `stop`, also after a failure here."""
        self.anchors.load()
        self._stack.push_async_callback(self.anchors.close)
        await self.store.open()
        self._stack.push_async_callback(self.store.close)
        if self.shared is not None:
            await self.shared.open()
            self._stack.push_async_callback(self.shared.close)
        await self.judge.open()
        await self.audit.open()
        self._stack.push_async_callback(self.audit.close)
        self.recorder.start()
        self._stack.push_async_callback(self.recorder.stop)
        await self.inbox.open()
        await self.revocation.void_unfounded()
        await self.definitions.open()
        self.inbox.start()
        self._stack.push_async_callback(self.inbox.close)
        self._stack.push_async_callback(self.definitions.caught_up)
        self.notifier.start()
        self._stack.push_async_callback(self.notifier.close)
        await self.gate.open(self.store.kv)
        self._stack.push_async_callback(self.gate.close)
        self._stack.push_async_callback(self.dispatch.confirmations.close)
        retention = Retention(self.audit, self.recorder, self.clock, self.plan.store.audit_days)
        retention.start()
        self._stack.push_async_callback(retention.stop)
        await self.tokens.open()
        self._stack.push_async_callback(self.tokens.close)
        await self.desk.open()
        self._stack.push_async_callback(self.desk.close)
        await self._eras.open(self.store.kv, self.clock)
        if listen:
            await self._open_doors()
        await self._warden.start()
        self._stack.push_async_callback(self._warden.stop)
        self.configured.start(self.plan)
        self._stack.push_async_callback(self.configured.stop)
        self.drivers.start()
        self._stack.push_async_callback(self.drivers.stop)
        self._stack.push_async_callback(self.registrar.stop)
        self.children.start()
        self._stack.push_async_callback(self.children.stop)
        if self.parents is not None:
            self.parents.start()

    def watch(self, read: Read, paths: tuple[Path, ...]) -> None:
        """Take up what changes in the configuration from now on."""
        self.reload = Reload(read, paths, self.plan, takes(self), self.clock)
        self.reload.start()
        self._stack.push_async_callback(self.reload.stop)

    def _open_drivers(self, plan: Plan) -> "tuple[Registry, DriverDesk]":
        from interlock.runtime.node.driver_parts import open_drivers  # here, because it takes 20 MiB

        return open_drivers(self, plan)

    def make_parents(self) -> "Forest | None":
        if not self.plan.ax.parents:
            return None
        from interlock.runtime.parents.front import UpwardFront
        from interlock.runtime.parents.parents import Parents
        from interlock.runtime.parents.trees import Forest

        signer = self.own_key(self.plan)

        def parents_of(plan: Plan) -> Parents:
            return Parents(
                plan,
                self.registrar.engine.subtree_ids(),
                clock=self.clock,
                recorder=self.recorder,
                make_front=partial(UpwardFront, self.legacy, self.modern, self.audience),
                budgets=self.budgets,
                signer=signer,
            )

        forest = Forest(self.plan, parents_of)
        self.registrar.on_subtree.append(forest.subtree_changed)
        return forest

    def own_key(self, plan: Plan) -> "SigningKey | None":
        """What proves our authority to parents; `interlock access anchor` makes it. Raises a StoreError."""
        path = plan.data / NODE_KEY
        if not path.exists() or all(parent.authority is None for parent in plan.ax.parents):
            return None
        from interlock.keys.signing import read_signing_key

        return read_signing_key(path)

    def _leases(self) -> Leases | None:
        """A store in the data folder is nobody else's: who has which subserver is settled where others look too."""
        if self.shared is None:
            return None
        return Leases(self.shared.kv, self.clock, self.identity.aggregator_id, self.plan.ax.tree)

    def _make_operations(self) -> Operations:
        links = LinkOperations(self.keepers, self.catalog, self.registrar, self.children, self.budgets)
        return Operations(
            approvals=self.window,
            audit=AuditOperations(self.audit, self.recorder),
            consents=ConsentOperations(self.keepers, self.desk, self.audience, self.recorder, self.clock),
            drivers=DriverOperations(self.drivers),
            keys=KeyOperations(self.revocation, self.anchors),
            links=links,
            node=NodeOperations(
                current=self.current,
                addresses=self.addresses,
                clock=self.clock,
                aggregator_id=self.identity.aggregator_id,
                recorder=self.recorder,
                links=links,
                budgets=self.budgets,
                catalog=self.catalog,
                sessions=self.sessions,
                audience=self.audience,
                modern=self.modern,
                dispatch=self.dispatch,
                anchors=self.anchors,
                inbox=self.inbox,
                notifier=self.notifier,
                parents=lambda: self.parents.status() if self.parents is not None else [],
                reload=lambda: self.reload.status() if self.reload is not None else None,
            ),
            passkeys=self.passkeys,
            secrets=SecretOperations(self.desk, self.keepers, self.personal, self.drivers),
            tokens=TokenOperations(self.tokens, self.door.dismiss_unwelcome),
            tools=ToolOperations(self.catalog, self.definitions, self.window, self.contracts, self._explain_call),
        )

    def _explain_call(self, route: Route, caller: str) -> tuple[CheckVerdict, ...]:
        met = self.dispatch.guard.explain(route, self.tokens.as_it_would_be(caller))
        return tuple(CheckVerdict(rung=one.check, name=one.name, verdict=one.verdict, reason=one.reason) for one in met)

    def _is_current(self, approval: Approval) -> bool:
        """A tool that is not listed now may come back as it was."""
        route = self._find_tool(approval.tool) if approval.kind is Kind.CALL else None
        return route is None or route.digest == approval.tool_digest

    def _find_tool(self, qualified: str) -> Route | None:
        return self.catalog.namespace.view(EVERYTHING).find_tool(qualified)

    async def stop(self) -> None:
        await self._close_doors()
        await self._stack.aclose()

    async def settle(self, seconds: float | None) -> None:
        """Until every link's first attempt has ended, at most so long."""
        waits = [asyncio.ensure_future(keeper.settled.wait()) for keeper in self.keepers.values()]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=seconds)
            for wait in pending:
                wait.cancel()

    @property
    def settled(self) -> bool:
        return all(keeper.settled.is_set() for keeper in self.keepers.values())

    def _is_ready(self) -> bool:
        """Every server had its first chance; one that hangs does not hold the rest back."""
        return self.settled or self.clock.now() - self._started > READY_S

    # Doors

    async def _open_doors(self) -> None:
        node = self.plan.node
        run = self.plan.data / "run"
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        admin_path = run / "admin.sock"
        if answers(str(admin_path)):
            raise NodeRunning("a node is already running for this data folder")
        admin_path.unlink(missing_ok=True)
        public = bind(node.listen)
        self._stack.callback(public.close)
        operator = bind(node.operator_listen)
        self._stack.callback(operator.close)
        people_at = (operator, *self._twin_of(operator))
        admin = socket.socket(socket.AF_UNIX)
        self._stack.callback(lambda: admin_path.unlink(missing_ok=True))
        self._stack.callback(admin.close)
        admin.bind(str(admin_path))
        admin_path.chmod(0o600)
        scheme = "https" if node.tls_cert is not None else "http"
        self.addresses.take_bound(
            public=f"{scheme}://{reachable(public, node.listen)}",
            operator=f"{scheme}://{reachable(operator, node.operator_listen)}",
        )
        protocol = type("PublicProtocol", (McpProtocol,), {"door": self.door})
        tls = listener_options(node, public=True)
        documents = self._open_to_oauth() | self.desk.settle(self.addresses.public, self.addresses.operator)
        certificates = self._certificates()
        subservers = self.subservers = AxDoor(self.plan, self.tokens, self.registrar, self.refusals, certificates)
        sockets = {
            "ws_max_size": self.plan.limits.message_bytes,
            "ws_ping_interval": None,  # the pipe's matter
            "ws_per_message_deflate": False,
        }
        app = public_app(self._is_ready, documents, subservers)
        await self._serve(app, public, http=protocol, **sockets, **tls)
        people = self._operator_app(self.operations, self._authenticate_operator)
        await self._serve(people, *people_at, **listener_options(node, public=False))
        await self._serve(self._operator_app(self.operations, None), admin)
        self._tasks.append(asyncio.get_running_loop().create_task(self.door.sweep_forever(), name="door sweep"))
        await self._open_bridge(run / SOCKET)

    def _stands(self, guest: Guest) -> bool:
        """Whether a subserver that is here could still come in."""
        if self.subservers is not None and not self.subservers.stands(guest):
            return False
        return self.tokens.stands(guest.principal)

    def _twin_of(self, operator: socket.socket) -> tuple[socket.socket, ...]:
        """Where else people find this door when they ask for localhost."""
        try:
            twin = maybe_twin(operator)
        except Taken as taken:
            self.passkeys.is_shadowed = True
            log.warning("another program is where browsers look for localhost (%s): no passkey counts here", taken)
            return ()
        if twin is None:
            return ()
        self._stack.callback(twin.close)
        return (twin,)

    def _certificates(self) -> "Certificates | None":
        """Who vouches for subservers' certificates. Raises CertificatesInvalid."""
        node = self.plan.node
        if node.client_ca is None:
            return None
        from interlock.runtime.trust.client_certificates import Certificates

        return Certificates(node.client_ca, node.crl, self.clock)

    def _open_to_oauth(self) -> dict[str, bytes]:
        """Take access tokens, where an authorization server is configured. Gives the documents that say so, by path."""
        plan = self.plan
        if not plan.auth.issuers:
            return {}
        resource = resource_of(self.addresses.public)
        from interlock.runtime.access.oauth import Bearers  # here, because `cryptography` takes 10 MiB

        bearers = Bearers(
            plan.auth.issuers,
            plan.access,
            resource=resource,
            node_name=plan.node.name,
            book=self.tokens,
            view=self.dispatch.view,
            recorder=self.recorder,
            clock=self.clock,
        )
        self._stack.push_async_callback(bearers.close)
        self.door.bearers = bearers
        return dict.fromkeys(metadata_paths(resource), bearers.metadata)

    async def _open_bridge(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: BridgedClient(self.line_front, self._bridged), str(path)
        )
        path.chmod(0o600)
        self._stack.callback(lambda: path.unlink(missing_ok=True))
        self._stack.callback(server.close)

    def line_front(self, only: str | None) -> LineFront:
        plan = self.plan
        return LineFront(
            self.legacy,
            self.modern,
            principal_for("local", None, plan.access),
            only=only,
            names=plan.mcp.names,
            max_bytes=plan.limits.message_bytes,
        )

    async def _serve(self, app: Any, *socks: socket.socket, **options: Any) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # node.trusted_proxies decides whose word counts
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=DRAIN_S,
            **options,
        )
        server = DoorServer(config)
        self._servers.append(server)
        task = asyncio.get_running_loop().create_task(server.serve(sockets=list(socks)), name="http server")
        self._tasks.append(task)
        begun = asyncio.ensure_future(server.begun.wait())
        await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if task.done():
            task.result()

    async def _close_doors(self) -> None:
        """No new calls; those under way are answered; streams end in order."""
        for server in self._servers:
            server.should_exit = True
        self.door.end_streams()
        self.inbox.end_listening()
        if self.parents is not None:
            self.parents.close()
        await self.drain()
        self.door.end_sse()
        if self.parents is not None:
            await self.parents.leave()
        self.registrar.hang_up()
        for client in list(self._bridged):
            client.transport.close()
        sweeps = [task for task in self._tasks if task.get_name() == "door sweep"]
        for task in sweeps:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.refusals.settle(closing=True)
        self._tasks.clear()
        self._servers.clear()

    async def drain(self) -> None:
        """Until every call under way is answered, within a bound. A call that waits for a person is not waited for."""
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        self.dispatch.let_go(Fault(UNAVAILABLE, "unavailable", {"reason": "node_stopping"}))
        while any(not call.asking for call in self.dispatch.in_flight):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(DRAIN_TICK_S)

    async def _authenticate_operator(self, request: Any) -> str | None:
        header, page = request.headers.get("authorization", ""), request.url.path.startswith(PAGES)
        who = self.tokens.operator(credential_of(header, basic=page))
        if who is None:
            peer = request.client.host if request.client is not None else None
            self.refusals.note(f"peer:{peer}", "operator", request.method[:20], "unauthorised")
            return None
        request.state.roles = who.roles
        return who.principal

    # What tools are

    async def restock(self, segment: str) -> None:
        """An operator said something new of its tools: they are listed anew."""
        keeper = self.keepers.get(segment)
        if keeper is not None and keeper.is_offered and keeper.listing is not None:
            self.catalog.reconsider(segment)
            await self.catalog.stock_again(keeper.link, keeper.listing)
        if self.contracts.maybe is not None:
            await self.contracts.maybe.restock(segment)

    def _definitions_seen(self, shelf: Shelf) -> None:
        self.definitions.took(shelf.link.segment, shelf.seen, {route.qualified: route for route in shelf.tools})

    def _session_ended(self, session: Session) -> None:
        self.audience.leave(session)
        self._asked_tasks.forget(session.caller)
