"""Vendor-specific notifications of clients, which are passed on to the server that they are meant for.

A notification is no call, so no check of the guard looks at it. These rules take the place of the guard:

- Only one server can be meant: the client sees no other one, or no other one of the client's era.
- The client may not be limited to reading, and the safety loop must allow it to notify.
- The method begins with "notifications/" and is none of MCP's, so that no server takes it for a request.
- The rate is bounded, and every notification that is passed on is recorded.
"""

from collections.abc import Callable
from typing import Final

from interlock.catalog.catalog import View
from interlock.core.audit_record import AuditRecord
from interlock.core.calls.caller import Caller, ViewKey
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.links.connected_link import ConnectedLink, ServerLink
from interlock.mcp.methods import Era, is_vendor_method
from interlock.wire.jsonrpc.codec import Notification

PER_S: Final = 100  # of all clients together; more within a second are dropped
_PREFIX: Final = "notifications/"  # a name without it could be a request's, which a server may act upon


class ClientNotifications:
    """Forwarding of clients' vendor-specific notifications to servers."""

    def __init__(
        self, view: Callable[[ViewKey], View], recorder: Recorder, clock: Clock, may_notify: Callable[[Caller], bool]
    ) -> None:
        """Create the forwarding. `may_notify` returns whether the safety loop allows a client to send notifications."""
        self._view = view
        self._may_notify = may_notify
        self._recorder = recorder
        self._clock = clock
        self._since = 0.0
        self._count = 0

    def pass_on(self, caller: Caller, notification: Notification) -> None:
        """Forward a client's notification to its server. Drop the notification if a rule does not allow it."""
        method = notification.method
        if not method.startswith(_PREFIX) or not is_vendor_method(method) or caller.principal.scope == "read":
            return
        if not self._may_notify(caller):
            return
        link = _find_meant_server(caller, self._view(caller.key))
        if link is None:
            return
        now = self._clock.now()
        if now - self._since >= 1.0:
            self._since, self._count = now, 0
        self._count += 1
        if self._count > PER_S:
            return
        link.forward_notification(notification)
        at, params = self._clock.wall(), notification.params or None
        who, via = caller.principal.name, caller.via
        self._recorder.add(AuditRecord(at, who, via, method[:128], link.segment, params, "admitted", "ok"))


def _find_meant_server(caller: Caller, view: View) -> ConnectedLink | None:
    """Return the link of the only server that a client with this view can mean, or the client's own link to that
    server.

    Return None if there is no such server or more than one, or if the client needs a link of its own that is not open.
    """
    is_modern = caller.era is Era.MODERN
    seen = [link for link in view.links if isinstance(link, ServerLink) and view.shows(link)]
    meant = [link for link in seen if link.modern is is_modern and link.is_connected]
    if len(meant) != 1:
        return None
    own = meant[0].own
    link = meant[0] if own is None else own.ready(caller)
    return link if isinstance(link, ConnectedLink) else None
