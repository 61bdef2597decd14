"""Subservers that the node starts itself (ax.children): they register over their stdio, one message to a line.

Theory of operation. The supervisor has one task for each child (`_keep_running`): start the process, wait until it
registered, wait until it ends, pause, again. Each run of the process is one connection (`_ChildConnection`), and the
link belongs to that run. The pause grows while the process keeps ending; it is short again after a run that served a
call or lasted STEADY_S. `waiting` has the children that are not registered, with the reason, for the operator.

A process may write before `start` returns, so its connection begins first. The limit on simultaneous starts is held
until the child has registered or ended. The operator named the children in the configuration, so the authority they
claim counts as proved (MCP-AX 4.2).
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from interlock.access.tokens import find_access_rule
from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax.connection import SubserverConnection
from interlock.ax.protocol.capability import AuthScope
from interlock.ax.registrar import Registrar
from interlock.config.plan import ChildPlan, Plan
from interlock.credentials.secret_references import Unobtainable
from interlock.links.connector import LAUNCH_S, ConnectorParts
from interlock.links.keeper import STEADY_S, STOP_S, backoff_s
from interlock.links.registered import RegisteredKeeper, RegisteredLink, RegistrationParts
from interlock.net.message_pipe import CUT, NORMAL
from interlock.process.child import Child, ChildStartFailed, child_environment
from interlock.process.stderr import StderrRing
from interlock.store.ports import StoreError

log = logging.getLogger("interlock.ax")

CONNECTING: Final = "connecting"
UNBUFFERED: Final = {"PYTHONUNBUFFERED": "1"}  # a line that waits in a buffer does not arrive
STARTED_BY_US: Final = "INTERLOCK_AX"  # by this variable a subserver knows that its aggregator is at its standard input


@dataclass(eq=False, kw_only=True)
class _ChildConnection(SubserverConnection):
    """Connection to one child process, from its start to its end.

    It receives the lines that the process writes and sends lines to it.
    """

    stderr: StderrRing
    on_registered: Callable[[], object]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settled = asyncio.Event()  # the process has registered, or is over
        self.over = asyncio.Event()
        self.reason = ""
        self.child: Child | None = None
        self.links: list[RegisteredLink] = []
        self._stopping: asyncio.Task[None] | None = None

    def on_line(self, data: bytes) -> None:
        if data.strip():
            self.on_message(data)

    def on_gone(self, reason: str) -> None:
        self.reason = reason
        self.on_closed(CUT, reason)
        self.settled.set()
        self.over.set()

    def on_stalled(self) -> None:
        self.close()

    def send(self, message: bytes) -> bool:
        return self.child is not None and self._stopping is None and self.child.send(message)

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Stop the child process, after all queued messages have been written."""
        if self.child is not None and self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self.child.stop())

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        if self.child is not None:
            self.child.pause_reading()

    def resume_reading(self) -> None:
        if self.child is not None:
            self.child.resume_reading()

    def keeper_for(self, parts: RegistrationParts) -> RegisteredKeeper:
        keeper = super().keeper_for(parts)
        keeper.link.pid = self.child.pid if self.child is not None else None
        self.links.append(keeper.link)
        self.settled.set()
        self.on_registered()
        return keeper

    async def stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self.close()
        if self._stopping is not None:
            await asyncio.wait((self._stopping,), timeout=STOP_S)


class UnregisteredChild(msgspec.Struct, frozen=True):
    """State of a child process that has started and is not registered, with the reason and the time since when."""

    state: str
    reason: str
    since_wall: float


@dataclass(eq=False)
class ChildSupervisor:
    """Supervisor of the child processes of a node. One task for each child keeps its process running."""

    _plan: Plan
    _registrar: Registrar
    _connector_parts: ConnectorParts

    def __post_init__(self) -> None:
        self._running: dict[str, tuple[ChildPlan, asyncio.Task[None]]] = {}  # by segment
        self.waiting: dict[str, UnregisteredChild] = {}
        self._changed = asyncio.Event()  # set when `waiting` changed

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        for child in self._plan.ax.children:
            if child.segment not in self._running:
                task = loop.create_task(self._keep_running(child), name=f"child {child.segment}")
                self._running[child.segment] = child, task

    @property
    def is_settled(self) -> bool:
        """Return whether no child process is trying to register at present."""
        return all(child.state != CONNECTING for child in self.waiting.values())

    async def settle(self) -> None:
        """Wait until no child process is trying to register: each has registered, or its last attempt has failed."""
        while not self.is_settled:
            self._changed.clear()
            await self._changed.wait()

    async def take(self, plan: Plan) -> None:
        """Apply a new configuration: start, stop or restart the children whose entries have changed, and no others."""
        self._plan = plan
        await self._end([segment for segment, (child, _) in self._running.items() if child not in plan.ax.children])
        await self.open()

    async def close(self) -> None:
        await self._end(list(self._running))

    async def _end(self, segments: list[str]) -> None:
        tasks = [self._running.pop(segment)[1] for segment in segments]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for segment in segments:
            self.waiting.pop(segment, None)

    async def _keep_running(self, child: ChildPlan) -> None:
        """Start a child's process, and start it again each time it ends, until this task is cancelled."""
        stderr = StderrRing(now=self._connector_parts.clock.wall)
        principal = f"child:{child.segment}"
        attempts = 0
        while True:
            began = self._connector_parts.clock.now()
            rule = find_access_rule(principal, self._plan.access)
            scope = AuthScope.ADMIN if rule is None else AuthScope(rule.scope)
            guest = RegistrantIdentity(principal=principal, scope=scope, rule=rule, vouched=True, segment=child.segment)
            connection = _ChildConnection(
                self._registrar,
                guest,
                transport="stdio",
                heartbeat_min_ms=self._plan.ax.heartbeat_min_ms,
                stderr=stderr,
                on_registered=partial(self._on_registered, child),
            )
            waiting = self.waiting.get(child.segment)
            self._note(child, CONNECTING, waiting.reason if waiting is not None else "it has not registered yet")
            try:
                await self._run(child, connection)
                reason = connection.reason
            except (ChildStartFailed, Unobtainable, StoreError, OSError, TimeoutError) as failed:
                reason = str(failed) or "it did not start in time"
            except Exception:
                ref = secrets.token_hex(6)
                log.exception("child %s: internal error %s", child.segment, ref)
                reason = f"internal error {ref}"
            finally:
                await connection.stop()
            has_served = any(link.served > 0 for link in connection.links)
            is_steady = has_served or self._connector_parts.clock.now() - began > STEADY_S
            attempts = 1 if is_steady else attempts + 1
            pause_s = backoff_s(attempts)
            self._note(child, "failed", reason)
            log.warning("child %s: %s; next attempt in %.1f s", child.segment, reason, pause_s)
            await asyncio.sleep(pause_s)

    def _on_registered(self, child: ChildPlan) -> None:
        self.waiting.pop(child.segment, None)
        self._changed.set()

    def _note(self, child: ChildPlan, state: str, reason: str) -> None:
        self._changed.set()
        waiting = self.waiting.get(child.segment)
        since = waiting.since_wall if waiting is not None else self._connector_parts.clock.wall()
        self.waiting[child.segment] = UnregisteredChild(state, reason, since)

    async def _run(self, child: ChildPlan, connection: _ChildConnection) -> None:
        """Start the process of a child, and return after the process has ended."""
        env = await self._connector_parts.revealer.of_link(child.segment).table(child.env) if child.env else {}
        connection.child = Child(
            child.command,
            {**UNBUFFERED, **child_environment(env, os.environ), STARTED_BY_US: "stdio"},
            None,
            max_message_bytes=self._connector_parts.message_bytes,
            sink=connection,
            stderr=connection.stderr,
            reaper=self._connector_parts.reaper,
        )
        connection.begin(connection)  # first: its lines may come before `start` returns
        # Not wait_for: in 3.11 it loses a cancellation that comes in the moment the child has started.
        async with self._connector_parts.limits.starting():
            async with asyncio.timeout(LAUNCH_S):
                await connection.child.start()
            await connection.settled.wait()
        await connection.over.wait()
