"""What a driver's link says of its own accord: about its life to its keeper, about calls to the node.

Which keeper that is does not depend on a name, so that a driver that was replaced can end its calls beside the new one.
Questions that belong to no call reach no client: a server behind contracts is shared, and knows nobody (AIP-proto-6).
"""

from msgspec import Raw

from interlock.protocol.jsonrpc.errors import METHOD_NOT_FOUND, Fault
from interlock.protocol.jsonrpc.messages import Request
from interlock.runtime.drivers.provider.keeper import DriverKeeper
from interlock.runtime.links.link import Link, LinkWatcher
from interlock.runtime.links.pipes import Undelivered
from interlock.runtime.links.task_events import Asking, TaskWatcher

UNASKED = Fault(METHOD_NOT_FOUND, "the client offers no such thing")


class Watching:
    keeper: DriverKeeper

    def __init__(self, node: LinkWatcher, *, may_ask: bool) -> None:
        """`may_ask`: whether the server was offered to ask the client of a call."""
        self._node = node
        self._may_ask = may_ask

    @property
    def tasks(self) -> TaskWatcher:
        return self._node.tasks

    def on_standing(self, link: Link) -> None:
        self._node.on_standing(link)

    def on_changed(self, link: Link, kind: str) -> None:
        self.keeper.refresh(kind)

    def on_resource_updated(self, link: Link, params: Raw) -> None:
        self._node.on_resource_updated(link, params)

    def on_log(self, link: Link, params: Raw) -> None:
        self._node.on_log(link, params)

    def on_asking(self, link: Link, asking: Asking) -> Fault | None:
        return self._node.on_asking(link, asking) if self._may_ask else UNASKED

    def on_orphan_request(self, link: Link, request: Request) -> bool:
        return False

    def on_pipe_lost(self, link: Link, reason: str) -> None:
        self.keeper.lose(reason)

    def on_session_lost(self, link: Link) -> None:
        self.keeper.regreet()

    def on_unauthorised(self, link: Link, what: Undelivered) -> None:
        self.keeper.refused(what)

    def on_unreachable(self, link: Link) -> None:
        self.keeper.probe()

    def on_elicitation_complete(self, link: Link, params: Raw) -> None:
        if self._may_ask:
            self._node.on_elicitation_complete(link, params)

    def on_acknowledged(self, link: Link, params: Raw) -> None:
        self.keeper.task_listening.on_acknowledged(params)
