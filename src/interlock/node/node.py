"""The composition root: a Plan becomes a running node.

Theory of operation. A node is an ordered tuple of parts. Each part is constructed with the parts it needs, which are
therefore constructed before it. If two parts need each other, one of them publishes an event (`core.feed`), or both
get a small value that is made first. Nothing is assigned to a part from outside. All parts have one life cycle
(`core.part`): they are opened in the order of the tuple and closed in the reverse order, and a failure while opening
closes those that were opened.

The order follows the dependencies: keys and stores, the inbox with what people decided, the gate, tokens and
credentials, then the endpoints, so that a client that comes early gets "not ready" as an answer, and at last what is
outside this process: servers, drivers, subservers, children, parents. The last two parts are the shutdown of traffic
and the watch of the configuration. So a node that stops first ignores changes, then ends its traffic, then closes the
rest.

The common parts are constructed in `common_parts`, from top to bottom. Everything else is a capability (`capabilities`,
`capability_parts`). Handlers of operations are constructed in `node_operations`, steps for a changed configuration in
`reload`. At the end of this module, `serve` runs a node as a process, until SIGTERM, SIGINT or, on stdio, the end of
input.
"""

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from interlock.approvals import enrolments, inbox, standing_grants, tool_definitions
from interlock.approvals.guarded_starts import remember_start, start_of
from interlock.approvals.trust import approval_proofs
from interlock.ax.parts import AxParts
from interlock.config.load import Loaded
from interlock.config.plan import Plan
from interlock.core.capability import load_reference
from interlock.core.clock import Clock
from interlock.core.part import Part, PartStack
from interlock.fronts.stdio import SOCKET, bridge, stdio_front
from interlock.links.keeper import Keeper
from interlock.node.capabilities import CAPABILITIES
from interlock.node.capability_parts import CapabilityParts, LocalLinks, NodeParts, Parts, Stage
from interlock.node.common_parts import (
    ApprovalParts,
    CallParts,
    FrontParts,
    LinkParts,
    StoreParts,
    prepare_stores,
)
from interlock.node.endpoints import DRAIN_S, Endpoints, OperatorApp
from interlock.node.node_operations import Operations
from interlock.node.reload import Read, Reload, ReloadSteps
from interlock.node.sockets import Sockets, answers
from interlock.operator.api import Status
from interlock.process.limits import raise_descriptor_limit
from interlock.store import tokens
from interlock.store.ports import Change
from interlock.wire.refusal import UNAVAILABLE, Refusal


def follow_replicas(node: NodeParts) -> None:
    """Let the parts of a node take over what other replicas write to the shared store.

    Each bucket of the store has one part that keeps its values in memory and takes over what other replicas write.
    """
    approvals = node.approvals

    def take_token(change: Change) -> None:
        if node.stores.tokens.take_change(change):
            node.fronts.public.dismiss_unwelcome()

    buckets = {
        inbox.BUCKET: approvals.inbox.take_change,
        tool_definitions.RULINGS: approvals.definitions.take_ruling,
        tool_definitions.BUCKET: approvals.definitions.take_change,
        standing_grants.BUCKET: approvals.grants.take_change,
        enrolments.BUCKET: approvals.enrolments.take_change,
        approval_proofs.REVOKED: approvals.judge.take_change,
        tokens.BUCKET: take_token,
    }
    for capability in node.capabilities.values():
        buckets |= capability.replicated_buckets()
    for bucket, take_change in buckets.items():
        node.stores.replicas.on_change(bucket, take_change)


READY_S: Final = 3.0  # how long servers that are still connecting are waited for


class Readiness:
    """The readiness of a node: it is ready when every link has tried to connect, or READY_S seconds have passed."""

    def __init__(self, keepers: Mapping[str, Keeper], clock: Clock) -> None:
        self._keepers, self._clock = keepers, clock
        self._started = clock.now()

    @property
    def is_settled(self) -> bool:
        return all(keeper.settled.is_set() for keeper in self._keepers.values())

    def is_ready(self) -> bool:
        """Return whether every link has tried to connect, or READY_S seconds have passed.

        So a server that hangs does not delay the others.
        """
        return self.is_settled or self._clock.now() - self._started > READY_S

    async def settle(self, seconds: float | None) -> None:
        """Wait until every link has tried to connect, for at most `seconds`. None means no limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for keeper in list(self._keepers.values()):
                    await keeper.settled.wait()


DRAIN_TICK_S: Final = 0.02


@dataclass(frozen=True, eq=False, kw_only=True)
class Shutdown:
    """The part of a node that ends its traffic: it refuses new calls, waits for calls under way, and ends the streams.

    Only the watch of the configuration is closed before it, so everything that a call needs is still open.
    """

    parts: NodeParts
    endpoints: Endpoints | None

    async def open(self) -> None:
        """Do nothing. This part only acts when it is closed."""

    async def close(self) -> None:
        public, capabilities = self.parts.fronts.public, self.parts.capabilities.values()
        if self.endpoints is not None:
            self.endpoints.refuse_new()
        for capability in capabilities:
            capability.refuse_calls()
        public.end_streams()
        self.parts.approvals.inbox.end_listening()
        await self.drain()
        public.end_sse()
        for capability in capabilities:
            await capability.hang_up()
        if self.endpoints is not None:
            await self.endpoints.end()

    async def drain(self) -> None:
        """Wait at most DRAIN_S until every call under way is answered.

        Calls that wait without a deadline are ended first. Calls that ask a person are not waited for.
        """
        under_way = self.parts.calls.dispatch.under_way
        under_way.end_waiting(Refusal(UNAVAILABLE, "unavailable", {"reason": "node_stopping"}))
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        while any(not call.asking for call in under_way.calls):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(DRAIN_TICK_S)


class Node:
    """A node of Interlock. It is constructed from a plan, started by `open` and stopped by `close`."""

    def __init__(
        self,
        plan: Plan,
        operator_app: OperatorApp,
        clock: Clock | None = None,
        *,
        written: Plan | None = None,
        files: tuple[Path, ...] = (),
        read: Read | None = None,
        listen: bool = True,
    ) -> None:
        """Construct all parts of the node. Nothing is opened yet.

        `written` is the plan as the files have it, if not everything in it is in effect (`find_plan_in_effect`).
        `files` are the files from which the plan was read; no sandboxed server may write to them. `read` reads them
        again when they change. If `listen` is False, the node opens no sockets.
        """
        self.stores = StoreParts(plan, clock or Clock())
        self.approvals = ApprovalParts(plan, self.stores, written or plan)
        self.calls = CallParts(plan, self.stores, self.approvals)
        self.links = LinkParts(plan, files, self.stores, self.approvals, self.calls)
        self.fronts = FrontParts(plan, self.stores, self.calls, self.links, listen=listen)
        self.parts = NodeParts(
            plan=plan,
            listen=listen,
            stores=self.stores,
            approvals=self.approvals,
            calls=self.calls,
            links=self.links,
            fronts=self.fronts,
            capabilities={},
        )
        for capability in CAPABILITIES:
            if capability.parts is not None:
                parts: type[CapabilityParts] = load_reference(capability.parts)
                self.parts.capabilities[parts] = parts(self.parts)
        self._capabilities = tuple(self.parts.capabilities.values())
        follow_replicas(self.parts)
        self.readiness = Readiness(self.calls.keepers, self.stores.clock)
        self._reload = (
            Reload(read, files, plan, ReloadSteps(self.parts).by_key(), self.stores.clock, self.approvals.guard_changes)
            if read is not None
            else None
        )
        self.operations = Operations(self.parts, self._reload)
        self._sockets = Sockets(plan, self.stores.addresses, self.approvals.passkeys) if listen else None
        subservers = self.get(AxParts).endpoint
        self._endpoints = (
            Endpoints(
                self.parts, self._sockets, subservers, self.operations.handlers, operator_app, self.readiness.is_ready
            )
            if self._sockets is not None and subservers is not None
            else None
        )
        self._shutdown = Shutdown(parts=self.parts, endpoints=self._endpoints)
        self._stack = PartStack(self._ordered_parts())

    def get(self, parts: type[Parts]) -> Parts:
        """Return the parts of a capability, by their class."""
        return self.parts.get(parts)

    def _ordered_parts(self) -> tuple[Part, ...]:
        stores, approvals, calls, links = self.stores, self.approvals, self.calls, self.links
        own_links = tuple(link for capability in self._capabilities for link in capability.links())
        ordered: tuple[Part | None, ...] = (
            approvals.anchors,
            stores.store,
            stores.local if stores.local is not stores.store else None,
            stores.shared,
            stores.replicas,
            approvals.judge,
            stores.audit,
            stores.recorder,
            stores.refusals,
            approvals.inbox,
            approvals.enrolments,
            approvals.guard_changes,
            approvals.grants,
            approvals.revocation,
            approvals.definitions,
            approvals.expiry,
            approvals.notifier,
            calls.gate,
            calls.dispatch,
            stores.retention,
            stores.tokens,
            links.credentials,
            links.eras,
            links.asking,
            self._sockets,
            self.fronts.bearers,
            *self._stage(Stage.RECORDS),
            stores.changes,  # the parts above have read what they keep
            *self._stage(Stage.TOOLS),
            LocalLinks(calls.catalog, self.parts.plan.ax.root_segment, own_links),
            self._endpoints,
            links.reaper,
            links.servers,
            *self._stage(Stage.SERVERS),
            *self._stage(Stage.TREE),
            self._shutdown,
            self._reload,  # closed first, so that no change takes effect while calls under way end
        )
        return tuple(part for part in ordered if part is not None)

    def _stage(self, stage: Stage) -> list[Part]:
        return [part for capability in self._capabilities for part in capability.stages().get(stage, ())]

    async def open(self) -> None:
        """Open the parts in order. If one cannot be opened, raise its error; `close` must be called in that
        case too.
        """
        await self._stack.open()

    async def close(self) -> None:
        await self._stack.close()

    async def drain(self) -> None:
        """Wait at most DRAIN_S until every call under way is answered."""
        await self._shutdown.drain()


OnReady = Callable[[Status, str | None], None]

WAITING_S: Final = 1.0  # between two looks at servers that are still connecting


class NodeGone(Exception):
    """An error raised by a program that connects a client on stdio to a running node, if the node has stopped."""


def serve(
    loaded: Loaded,
    read: Read,
    *,
    stdio: bool,
    only: str | None,
    surface: str | None = None,
    on_ready: OnReady,
    on_waiting: Callable[[Status], None],
    operator_app: OperatorApp,
) -> None:
    """Run a node until SIGTERM or SIGINT or, with `stdio`, until the end of the input. This call blocks.

    `read` reads the files again when they change. While there is no approver, `on_ready` also gets the setup code,
    which may only be shown on this process's terminal. After that, `on_waiting` is called every second until every
    server has made its first attempt to connect.
    """
    raise_descriptor_limit()
    announce = partial(_announce, on_ready=on_ready, on_waiting=on_waiting)
    work = _run(loaded, read, announce, stdio=stdio, only=only, surface=surface, operator_app=operator_app)
    if sys.platform == "win32":
        asyncio.run(work)
    else:
        import uvloop

        uvloop.run(work)


async def _run(
    loaded: Loaded,
    read: Read,
    announce: Callable[[Node], Coroutine[Any, Any, None]],
    *,
    stdio: bool,
    only: str | None,
    surface: str | None,
    operator_app: OperatorApp,
) -> None:
    loop = asyncio.get_running_loop()
    plan = loaded.plan
    socket_path = plan.data / "run" / SOCKET
    if stdio and answers(str(socket_path)):
        if not await bridge(socket_path, only, surface):
            raise NodeGone("the node this client was connected to has stopped")
        return
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    in_effect = await prepare_stores(loaded, Clock())
    node = Node(in_effect, operator_app, written=plan, files=loaded.paths, read=read, listen=not stdio)
    # An approver of a node that runs is on record at once, and not only from the next start on.
    node.approvals.enrolments.enrolled.subscribe(partial(_remember_start, node, loaded))
    try:
        await node.open()
        ends = [loop.create_task(stopping.wait())]
        front = node.fronts.lines.make(only, surface) if stdio else None
        reader = await stdio_front(front) if front is not None else None
        if front is not None:
            ends.append(loop.create_task(front.done.wait()))
        ready = loop.create_task(announce(node))
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in (ready, *ends):
            task.cancel()
        await asyncio.gather(ready, *ends, return_exceptions=True)
        if front is not None and reader is not None:
            if stopping.is_set():
                await node.drain()
            await front.decided()
            await node.fronts.lists.quiet()  # a greeting or a list that was asked for before the end of input
            reader.close()
            front.end()
    finally:
        await node.close()


async def _remember_start(node: Node, loaded: Loaded, _: None) -> None:
    start = start_of(loaded.plan, node.approvals.enrolments.prints)
    await remember_start(start, loaded.guarded, node.stores.local.kv, node.stores.clock.wall())


async def _announce(node: Node, *, on_ready: OnReady, on_waiting: Callable[[Status], None]) -> None:
    """Report the state of the node when it is ready, and again when every server has tried to connect."""
    await node.readiness.settle(READY_S)
    late = not node.readiness.is_settled
    on_ready(node.operations.node.status(), node.approvals.enrolments.setup_code)
    if late:
        while not node.readiness.is_settled:
            await node.readiness.settle(WAITING_S)
            on_waiting(node.operations.node.status())
        on_ready(node.operations.node.status(), node.approvals.enrolments.setup_code)
    # Let the garbage collector run less often: calls make no reference cycles, and what the start made stays.
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    _return_freed_memory()


def _return_freed_memory() -> None:
    """Return to the system the memory that only the start of the node needed, nearly 3 MB."""
    import ctypes

    # Other C libraries have no such function.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
