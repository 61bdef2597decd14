"""The receivers of notifications: legacy sessions with their streams, and modern listeners with their filters.

`Audience` knows all receivers (`Member`). Links tell it what changed, and it notifies the members that may see it:

- Changed lists are collected for a moment (`COALESCE_S`), because each notification costs a client its prompt cache
  (MCP-AX 6.3). All members are notified of a changed list. If a server announces a change and no list of the node
  changed, only members that see the server are notified.
- An updated resource is announced to the members that subscribed to it, under the URI that each of them used.
- Log messages and notifications of vendors go to the client that they concern. If that is not certain, they are counted
  and dropped, so that no client gets the messages of another.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import Final, Protocol

from msgspec import Raw

from interlock.ax.protocol.names import bare_uri
from interlock.catalog.routes import RESOURCE_SCHEME
from interlock.core.calls.caller import Caller, Principal, ViewKey
from interlock.core.calls.check import own_links_full
from interlock.dispatch.task_methods import Background
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import LimitReached
from interlock.links.keeper import Keeper, ServerKeeper
from interlock.links.link import Link
from interlock.links.subscriptions import Heard, lowest_level
from interlock.mcp.methods import ASKED_OF_CLIENT, ELICITATION_COMPLETE, ROOTS_CHANGED
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import Notification, Request, Response, encode_notification, encode_value
from interlock.wire.refusal import INVALID_REQUEST, METHOD_NOT_FOUND, Refusal

log = logging.getLogger("interlock.node")

VENDOR_BYTES_MAX: Final = 64 * 1024  # of a vendor's notification that concerns no call, and goes to many
LIST_KINDS: Final = ("tools", "prompts", "resources")
COALESCE_S: Final = 0.05  # AX-6.3-6, our rule


class Member(Protocol):
    """A receiver of notifications: the session of a legacy client, or the listener of a modern client."""

    caller: Caller

    def on_lists_changed(self, kind: str) -> None: ...

    def on_resource_updated(self, params: bytes) -> None: ...

    def on_log(self, params: Raw) -> None: ...

    def tell_legacy(self, message: bytes) -> None:
        """Send a notification that exists only in the legacy era."""

    def on_vendor_notification(self, notification: Notification) -> None:
        """Send a notification that MCP does not define. It comes from a server of the same era as the member."""

    def on_notice(self, notice: Notification) -> None:
        """Send a notification about the tree of MCP-AX nodes, which plain MCP does not define."""


Sees = Callable[[Caller, Link], bool]


class Audience:
    """The clients that receive notifications, and the notifications that are about to be sent to them."""

    def __init__(self, keepers: Mapping[str, Keeper]) -> None:
        self._keepers = keepers
        self.members: set[Member] = set()
        self._watching: dict[tuple[str, str], dict[Member, str]] = {}  # (segment, uri) -> member -> URI it asked with
        self._changed: set[str] = set()
        self._announced: dict[tuple[str, Link], Sees] = {}  # lists that are what they were, and who sees them
        self._told_at: dict[str, float] = {}  # when all were last told of a kind of list
        self._marked: set[str] = set()  # of which only the metadata changed
        self.untold_notifications = 0  # of vendors: too large, or perhaps another client's
        self.unplaced_logs = 0  # messages of a shared server that may belong to any of several clients

    def join(self, member: Member) -> None:
        self._tell_changed()  # what changed before is no news to it
        self.members.add(member)

    def leave(self, member: Member) -> None:
        self.members.discard(member)
        if member.caller.log_level is not None:
            self.log_levels_changed()
        for (segment, uri), watchers in list(self._watching.items()):
            if member in watchers:
                self._unwatch(member, segment, uri)

    # Resources

    async def watch(
        self, member: Member, link: Link, uri: str, requested_uri: str, declared: Raw | None = None
    ) -> Response | Refusal | None:
        """Subscribe a member to a resource. Return None, or the refusal of the server or of the node.

        `requested_uri` is the URI as the client wrote it; `declared` are the client's capabilities, as in `Own.open`.
        """
        if member not in self.members:
            return Refusal(INVALID_REQUEST, "the client has gone")
        if link.own is not None and link.own.is_whole:
            try:
                own = await link.own.open(member.caller, declared)
            except LimitReached as full:
                return own_links_full(full.most)
            link = own if isinstance(own, Link) else link
            if member not in self.members:
                return Refusal(INVALID_REQUEST, "the client has gone")
        if link.tells_updates:
            self._watching.setdefault((link.segment, uri), {})[member] = requested_uri
            return None
        keeper = self._keepers.get(link.segment)
        if keeper is not None and not isinstance(keeper, ServerKeeper):  # a device
            return Refusal(METHOD_NOT_FOUND, "the server of this resource has no subscriptions")
        if keeper is None:
            return Refusal(INVALID_REQUEST, "this resource cannot be subscribed to", {"reason": "not_subscribable"})
        # Noted before the server has answered: a member that leaves meanwhile takes its wish along.
        self._watching.setdefault((link.segment, uri), {})[member] = requested_uri
        if (refusal := await keeper.subscriptions.subscribe(uri)) is not None:
            self._forget(member, link.segment, uri)
        return refusal

    def _forget(self, member: Member, segment: str, uri: str) -> bool:
        """Remove a member's subscription to a resource at one link. Return True if no other member subscribes to the
        resource there.
        """
        watchers = self._watching.get((segment, uri))
        if watchers is None or watchers.pop(member, None) is None or watchers:
            return False
        del self._watching[(segment, uri)]
        return True

    def unwatch(self, member: Member, link: Link, uri: str) -> None:
        """End a client's subscription to a resource, at the shared link and at all additional links to the server."""
        own = link.own.links if link.own is not None else ()
        for watched_link in (link, *own):
            self._unwatch(member, watched_link.segment, uri)

    def _unwatch(self, member: Member, segment: str, uri: str) -> None:
        keeper = self._keepers.get(segment)
        if self._forget(member, segment, uri) and isinstance(keeper, ServerKeeper):
            keeper.subscriptions.unsubscribe(uri)

    def tell_updated(self, link: Link, uri: str) -> bool:
        """Notify the subscribers of one of the node's own resources that it changed. Return whether there are any
        subscribers.
        """
        watchers = list(self._watching.get((link.segment, uri), {}).items())
        for member, requested_uri in watchers:
            if link.members is None or link.members.admits(member.caller.principal.name):
                member.on_resource_updated(encode_value({"uri": requested_uri}))
        return bool(watchers)

    def resource_updated(self, link: ConnectedLink, raw: Raw, show_uri: Callable[[Link, str], str]) -> None:
        params: dict[str, object] | None = codec.decode_object(raw)  # type: ignore[assignment]
        uri = codec.find_string(params.get("uri")) if params is not None else None  # type: ignore[arg-type]
        if params is None or uri is None:
            return
        params.pop("_meta", None)  # a modern server's subscription id is between it and us
        for (segment, watched), watchers in list(self._watching.items()):
            # The updated resource may be a part of the one subscribed to.
            if segment != link.segment or (uri != watched and not uri.startswith(watched.rstrip("/") + "/")):
                continue
            for member, requested_uri in list(watchers.items()):
                bare = bare_uri(uri) if link.offer.is_aggregator else uri
                shown = show_uri(link.shared or link, uri) if requested_uri.startswith(RESOURCE_SCHEME) else bare
                member.on_resource_updated(encode_value({**params, "uri": shown}))
            link.noise.count_receivers(len(watchers))

    # Lists

    def lists_changed(self, kinds: frozenset[str]) -> None:
        self._tell_soon(self._changed, kinds)

    def readmit(self, may_do: Callable[[Principal], Principal]) -> None:
        """Apply changed [[access]] rules: give members whose rights changed their new rights, and ask them to read the
        lists again.
        """
        for member in list(self.members):
            caller = member.caller
            principal = may_do(caller.principal)
            if principal != caller.principal:
                caller.act_as(principal)
                for kind in LIST_KINDS:
                    member.on_lists_changed(kind)

    def metadata_changed(self, kinds: frozenset[str]) -> None:
        """Notify parent aggregators that the MCP-AX metadata of tools changed. Clients are not notified, because they
        would only lose their prompt cache (6.3, our rule).
        """
        self._tell_soon(self._marked, kinds)

    def list_announced(self, link: Link, kind: str, since: float, sees: Sees) -> None:
        """Pass on a server's notification that its list changed.

        Members that see the server are notified even if none of the node's lists changed, as they would be if they were
        connected to the server directly.
        """
        if self.members and self._told_at.get(kind, -inf) < since:
            self._begin_telling()
            self._announced[kind, link] = sees

    def own_list_changed(self, link: ConnectedLink, kind: str) -> None:
        for member in self._owners(link):
            member.on_lists_changed(kind)

    def _owners(self, link: Link) -> list[Member]:
        """Return the clients for which a link was opened. It is an empty list for a shared link."""
        return [
            member
            for member in self.members
            if member.caller.principal.name == link.owner and link.client in (None, member.caller)
        ]

    def _tell_soon(self, among: set[str], kinds: frozenset[str]) -> None:
        if self.members:
            self._begin_telling()
            among |= kinds

    def _begin_telling(self) -> None:
        if not self._changed and not self._marked and not self._announced:  # AX-6.3-6: ten changes, one notice
            asyncio.get_running_loop().call_later(COALESCE_S, self._tell_changed)

    def _tell_changed(self) -> None:
        if not self._changed and not self._marked and not self._announced:
            return
        changed, self._changed = self._changed, set()
        marked, self._marked = self._marked, set()
        announced, self._announced = self._announced, {}
        self._told_at |= dict.fromkeys(changed, asyncio.get_running_loop().time())
        seen: dict[ViewKey, set[str]] = {}
        for member in list(self.members):
            caller = member.caller
            if caller.key not in seen:
                seen[caller.key] = {kind for (kind, link), sees in announced.items() if sees(caller, link)}
            # AX-6.3-6: metadata alone is told to parents, not to clients
            for kind in sorted(changed | seen[caller.key] | (marked if caller.hop is not None else set())):
                member.on_lists_changed(kind)

    # The tree

    def notice(self, notice: Notification) -> None:
        for member in list(self.members):
            member.on_notice(notice)

    # Logs and questions of servers that name no call

    def log_levels_changed(self) -> list[Heard]:
        """Set the log level of each server to the lowest level that a client wants. Return futures, each of which is
        done when a server has accepted its level.
        """
        level = lowest_level(*(member.caller.log_level for member in self.members))
        heard = [
            keeper.log_level.set(level if keeper.link.client is None else keeper.link.client.log_level)
            for keeper in self._keepers.values()
            if isinstance(keeper, ServerKeeper)
        ]
        return [pending for pending in heard if pending is not None]

    def log(self, link: Link, params: Raw, with_tasks: set[str]) -> None:
        """Send a server's log message, which belongs to no known call, to the clients that requested logs.

        It is only counted if it may belong to the call or task of another principal.
        """
        if link.owner is not None:
            for member in self._owners(link):
                member.on_log(params)
            return
        callers = link.active_principals | with_tasks
        if len(callers) > 1:
            self.unplaced_logs += 1
            return
        for member in list(self.members):
            if not callers or member.caller.principal.name in callers:
                member.on_log(params)
        if isinstance(link, ConnectedLink):
            link.noise.count_receivers(len(self.members))

    def vendor_notification(
        self, link: ConnectedLink, notification: Notification, with_tasks: set[str], sees: Sees
    ) -> None:
        """Send a vendor-specific notification of a server to the clients that use the same protocol era and can see the
        server.

        A notification that is too large, or that may belong to the call or task of another principal, is only counted.
        """
        concerned = link.waiting.principals | with_tasks
        if link.owner is not None:
            concerned = {link.owner}
        receivers = [
            member
            for member in self.members
            if member.caller.era is link.era
            and (not concerned or member.caller.principal.name in concerned)
            and link.client in (None, member.caller)
            and sees(member.caller, link.shared or link)
        ]
        is_unplaced = link.owner is None and len(concerned) > 1
        if is_unplaced or len(notification.params) > VENDOR_BYTES_MAX:
            self.untold_notifications += 1
            if self.untold_notifications == 1:
                log.info("link %s: its %.80s is not passed on; more are counted", link.name, notification.method)
            return
        link.noise.count_receivers(len(receivers))
        for member in receivers:
            member.on_vendor_notification(notification)

    def orphan_request(self, link: ConnectedLink, request: Request) -> bool:
        """Pass on a server's request that belongs to no call, if it can only be meant for one client. Return False if
        it cannot be handled.

        It is passed on to the only client of the owner that has the capability. If there is not exactly one, a request
        for roots is answered by the link, and any other request is not handled.
        """
        capability = ASKED_OF_CLIENT.get(request.method)
        if capability is None or (capability != "roots" and link.client is None):
            return False
        able = [
            asking
            for member in self._owners(link)
            if capability in member.caller.capabilities and (asking := Background(member.caller)).reachable
        ]
        if len(able) == 1:
            link.questions.ask_client(request, able[0])
        elif capability == "roots":
            link.questions.respond_roots(request)
        return len(able) == 1 or capability == "roots"

    def elicitation_complete(self, link: ConnectedLink, params: Raw) -> None:
        """Notify all legacy members that an elicitation is complete.

        Its id was created for one client. The other clients do not recognise it and ignore the notification, as MCP
        requires.
        """
        self._tell_complete(bytes(params))
        link.noise.count_receivers(len(self.members))

    def page_visited(self, principal: str, elicitation: str) -> None:
        """Tell a principal's legacy clients that the user has visited the web page to which this node had sent them."""
        self._tell_complete(encode_value({"elicitationId": elicitation}), principal)

    def _tell_complete(self, params: bytes, principal: str | None = None) -> None:
        message = encode_notification(ELICITATION_COMPLETE.encode(), params)
        for member in list(self.members):
            if principal in (None, member.caller.principal.name):
                member.tell_legacy(message)

    def roots_changed(self, caller: Caller) -> None:
        """Notify servers that the roots of a legacy client changed. Only the servers with a link that belongs to this
        client or its principal are notified.
        """
        for keeper in self._keepers.values():
            link = keeper.link
            is_own = link.owner == caller.principal.name and link.client in (None, caller)
            if is_own and isinstance(link, ConnectedLink) and not link.modern:
                link.notify(ROOTS_CHANGED)
