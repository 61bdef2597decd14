"""What links say of their own accord: one base class, whose methods do nothing.

A link speaks to its keeper. The keeper acts on what concerns its connection and passes the rest on to the node, whose
`LinkEvents` tells the audience, the catalog and the budgets. A subclass overrides what it needs.
"""

from typing import TYPE_CHECKING, Any

from msgspec import Raw

from interlock.core.calls.call import Call, CallFactory, Pending
from interlock.core.calls.caller import Asking, Caller
from interlock.links.pipes import Undelivered
from interlock.mcp.roots import HeldRoots
from interlock.wire.jsonrpc.codec import Notification, Request
from interlock.wire.refusal import Refusal

if TYPE_CHECKING:
    from interlock.links.connected_link import ConnectedLink
    from interlock.links.link import Link


class TaskEvents:
    """What a link says of tasks, and asks of the node that keeps them; here, for a node that knows of none."""

    call_type: CallFactory = Call  # of a tools/call that may become a task
    per_user_call_type: CallFactory = Call  # of one over a link with its user's token, which may not

    def on_link_ended(self, link: "ConnectedLink") -> None:
        """A link that will not come back; whatever ran at its server ended with it."""

    def on_task_status(self, link: "ConnectedLink", params: Raw) -> None: ...

    def on_task_progress(self, link: "ConnectedLink", progress_id: int, params: dict[str, Raw]) -> None:
        """Progress that belongs to no call under way."""

    def on_task_log(self, link: "ConnectedLink", params: Raw) -> bool:
        """True when the message is about a task, and was passed on."""
        return False

    def on_task_request(self, link: "ConnectedLink", request: Request, origin: Pending | None) -> bool:
        """True when the request is about a task, and will be answered."""
        return False

    def on_task_answer(self, link: "ConnectedLink", upstream_id: bytes, payload: bytes) -> bytes:
        """A client's answer to a server's request, as the server is to read it."""
        return payload

    def named_for(self, link: "ConnectedLink", caller: Caller, related: Raw) -> Any:
        """The task a client's request says it belongs to, as the server knows it; None if it does not."""
        return None

    def of_others(self, link: "ConnectedLink", principals: set[str]) -> bool:
        """Whether tasks of anybody else may still run at this server."""
        return False


NO_TASKS = TaskEvents()


class LinkEvents:
    # What the node passes on to clients

    @property
    def tasks(self) -> TaskEvents:
        return NO_TASKS

    def on_standing(self, link: "Link") -> None:
        """`link.standing` changed."""

    def on_resource_updated(self, link: "ConnectedLink", params: Raw) -> None: ...

    def on_log(self, link: "Link", params: Raw) -> None:
        """A log message that belongs to no call we can name."""

    def on_question(self, link: "ConnectedLink", asking: Asking) -> Refusal | None:
        """The server asks the client of a call or task something. The refusal, if it may not."""
        return None

    def on_orphan_request(self, link: "ConnectedLink", request: Request) -> bool:
        """A server's request that belongs to no call. True when it will be answered."""
        return False

    def on_client_roots(self, link: "ConnectedLink", caller: Caller, held: HeldRoots) -> None:
        """Of a client's roots these go to the server, and these do not."""

    def on_elicitation_complete(self, link: "ConnectedLink", params: Raw) -> None: ...

    def on_vendor_notification(self, link: "ConnectedLink", notification: Notification) -> None:
        """A notification that no revision of MCP has, and that belongs to no call we can name."""

    def on_announced(self, link: "Link", kind: str, since: float) -> None:
        """The server said, at this time of the loop, that its list of `kind` changed; it has been read since."""

    def on_own_changed(self, link: "ConnectedLink", kind: str) -> None:
        """The server of a client's own link says that its list of `kind` changed."""

    # What the keeper acts on

    def on_changed(self, link: "ConnectedLink", kind: str) -> None:
        """The server says its list of `kind` changed."""

    def on_acknowledged(self, link: "ConnectedLink", params: Raw) -> None:
        """A modern server says what it will tell us."""

    def on_pipe_lost(self, link: "ConnectedLink", reason: str) -> None: ...

    def on_session_lost(self, link: "ConnectedLink") -> None: ...

    def on_unauthorised(self, link: "ConnectedLink", what: Undelivered) -> None:
        """The server refuses the credential. Calls that could be sent again with another wait in `link.refused`."""

    def on_unreachable(self, link: "ConnectedLink") -> None:
        """A request could not be sent at all."""


class PassedOnEvents(LinkEvents):
    """Passes on what is meant for clients."""

    def __init__(self, events: LinkEvents) -> None:
        self._events = events

    @property
    def tasks(self) -> TaskEvents:
        return self._events.tasks

    def on_standing(self, link: "Link") -> None:
        self._events.on_standing(link)

    def on_resource_updated(self, link: "ConnectedLink", params: Raw) -> None:
        self._events.on_resource_updated(link, params)

    def on_log(self, link: "Link", params: Raw) -> None:
        self._events.on_log(link, params)

    def on_question(self, link: "ConnectedLink", asking: Asking) -> Refusal | None:
        return self._events.on_question(link, asking)

    def on_orphan_request(self, link: "ConnectedLink", request: Request) -> bool:
        return self._events.on_orphan_request(link, request)

    def on_client_roots(self, link: "ConnectedLink", caller: Caller, held: HeldRoots) -> None:
        self._events.on_client_roots(link, caller, held)

    def on_elicitation_complete(self, link: "ConnectedLink", params: Raw) -> None:
        self._events.on_elicitation_complete(link, params)

    def on_vendor_notification(self, link: "ConnectedLink", notification: Notification) -> None:
        self._events.on_vendor_notification(link, notification)
