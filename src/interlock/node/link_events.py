"""The node's reaction to events of links: it updates the catalog, tells clients, charges budgets and writes records."""

import logging
from collections.abc import Callable

from msgspec import Raw

from interlock.catalog.catalog import Catalog
from interlock.core.audit_record import AuditRecord
from interlock.core.calls.caller import Caller, QuestionOrigin
from interlock.core.clock import Clock
from interlock.core.link_state import AWAY, LinkState
from interlock.core.recorder import Recorder
from interlock.dispatch.task_table import Tasks
from interlock.fronts.audience import Audience
from interlock.guard.budgets import Budgets
from interlock.links.connected_link import ConnectedLink
from interlock.links.link import Link, LinkEvents, TaskEvents
from interlock.mcp.methods import ROOTS_LIST
from interlock.mcp.roots import HeldRoots
from interlock.wire.jsonrpc.codec import Notification, Request
from interlock.wire.refusal import Refusal

log = logging.getLogger("interlock.node")


class NodeLinkEvents(LinkEvents):
    def __init__(
        self,
        catalog: Catalog,
        audience: Audience,
        budgets: Budgets,
        tasks: Tasks,
        task_events: TaskEvents,
        recorder: Recorder,
        clock: Clock,
        *,
        keeps_degraded: bool,
        on_ready: Callable[[Link], None],
    ) -> None:
        """Connect links with the rest of the node.

        `keeps_degraded`: tools of a lost server stay listed for a while (degraded.enabled). `on_ready` is called when a
        link becomes ready.
        """
        self._on_ready = on_ready
        self._catalog = catalog
        self._audience = audience
        self._budgets = budgets
        self._tasks = tasks
        self._task_events = task_events
        self._recorder = recorder
        self._clock = clock
        self._keeps_degraded = keeps_degraded

    @property
    def tasks(self) -> TaskEvents:
        return self._task_events

    def on_standing(self, link: Link) -> None:
        because = f" ({link.standing.reason})" if link.standing.reason else ""
        log.info("link %s: %s%s", link.name, link.standing.state.value, because)
        if link.standing.state in AWAY and self._keeps_degraded:
            self._catalog.degrade(link)
        if link.standing.state is LinkState.READY:
            self._on_ready(link)

    def on_resource_updated(self, link: ConnectedLink, params: Raw) -> None:
        self._audience.resource_updated(link, params, self._catalog.namespace.show_uri)

    def on_log(self, link: Link, params: Raw) -> None:
        self._audience.log(link, params, self._tasks.principals(link))

    def on_question(self, link: ConnectedLink, asking: QuestionOrigin) -> Refusal | None:
        return self._budgets.charge_questions(link, asking.caller)

    def on_orphan_request(self, link: ConnectedLink, request: Request) -> bool:
        return self._audience.orphan_request(link, request)

    def on_client_roots(self, link: ConnectedLink, caller: Caller, held: HeldRoots) -> None:
        self._recorder.add_line(_roots_line(self._clock.wall(), link, caller, held))

    def on_elicitation_complete(self, link: ConnectedLink, params: Raw) -> None:
        self._audience.elicitation_complete(link, params)

    def on_vendor_notification(self, link: ConnectedLink, notification: Notification) -> None:
        self._audience.vendor_notification(link, notification, self._tasks.principals(link), self._sees)

    def on_announced(self, link: Link, kind: str, since: float) -> None:
        self._audience.list_announced(link, kind, since, self._sees)

    def on_own_changed(self, link: ConnectedLink, kind: str) -> None:
        self._audience.own_list_changed(link, kind)

    def _sees(self, caller: Caller, link: Link) -> bool:
        return self._catalog.namespace.view(caller.key).shows(link)


def _roots_line(at: float, link: ConnectedLink, caller: Caller, held: HeldRoots) -> bytes:
    """Return the audit record of a request for a client's roots, with their URIs."""
    return AuditRecord.event(
        at,
        caller.principal.name,
        str(caller.via),
        ROOTS_LIST,
        link.name,
        verdict="admitted" if held.passed else "refused",
        outcome="refused" if held.withheld else "ok",
        roots=held.passed,
        withheld=held.withheld,
    )
