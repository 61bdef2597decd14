"""A node as a process, from its start until SIGTERM, SIGINT or, on stdio, the end of input."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from interlock.config.load import Loaded
from interlock.core.clock import Clock
from interlock.fronts.stdio import SOCKET, bridge, stdio_front
from interlock.node.common_parts import adopt_shared_identity
from interlock.node.endpoints import OperatorApp
from interlock.node.node import READY_S, Node
from interlock.node.reload import Read
from interlock.node.sockets import answers
from interlock.operator.api import Status
from interlock.process.limits import raise_descriptor_limit

OnReady = Callable[[Status, str | None], None]

WAITING_S: Final = 1.0  # between two looks at servers that are still connecting


class NodeGone(Exception):
    """The error when the node behind a bridge ends first."""


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
    """Run a node until SIGTERM, SIGINT or, on stdio, the end of input. Blocks.

    `read` reads the files again after they changed. `on_ready` also gets the setup code as long as there is no
    approver: it is for the terminal of this process only. `on_waiting` is then called every second until every server
    has made its first attempt to connect.
    """
    raise_descriptor_limit()
    announce = partial(_announce, on_ready=on_ready, on_waiting=on_waiting)
    _loop_runner()(_run(loaded, read, announce, stdio=stdio, only=only, surface=surface, operator_app=operator_app))


def _tune_collector() -> None:
    """Let the garbage collector run less often: calls make no reference cycles, and what the start made stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)


def _loop_runner() -> Callable[[Any], None]:
    if sys.platform == "win32":
        return asyncio.run
    import uvloop

    return uvloop.run


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
    await adopt_shared_identity(plan, Clock())
    node = Node(plan, operator_app, files=loaded.paths, read=read, listen=not stdio)
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


async def _announce(node: Node, *, on_ready: OnReady, on_waiting: Callable[[Status], None]) -> None:
    """Report the state of the node soon after the start, and once more when every server has made its first attempt."""
    await node.readiness.settle(READY_S)
    late = not node.readiness.is_settled
    on_ready(node.operations.node.status(), node.approvals.enrolments.maybe_setup_code)
    if late:
        while not node.readiness.is_settled:
            await node.readiness.settle(WAITING_S)
            on_waiting(node.operations.node.status())
        on_ready(node.operations.node.status(), node.approvals.enrolments.maybe_setup_code)
    _tune_collector()
