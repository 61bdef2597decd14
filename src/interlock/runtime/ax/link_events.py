"""What a registered link says and any other link would say too: it is the house's business, whoever the link is."""

import logging

from msgspec import Raw

from interlock.protocol.jsonrpc.errors import Fault
from interlock.protocol.jsonrpc.messages import Request
from interlock.runtime.links.link import Link, LinkWatcher
from interlock.runtime.links.pipes import Undelivered
from interlock.runtime.links.task_events import Asking, TaskWatcher

log = logging.getLogger("interlock.ax")


class InTheHouse:
    def __init__(self, house: LinkWatcher) -> None:
        self._house = house

    @property
    def tasks(self) -> TaskWatcher:
        return self._house.tasks

    def on_standing(self, link: Link) -> None:
        self._house.on_standing(link)

    def on_resource_updated(self, link: Link, params: Raw) -> None:
        self._house.on_resource_updated(link, params)

    def on_log(self, link: Link, params: Raw) -> None:
        self._house.on_log(link, params)

    def on_asking(self, link: Link, asking: Asking) -> Fault | None:
        return self._house.on_asking(link, asking)

    def on_orphan_request(self, link: Link, request: Request) -> bool:
        return self._house.on_orphan_request(link, request)

    def on_unauthorised(self, link: Link, what: Undelivered) -> None:
        """The node has no credential for a subserver: it is the subserver that shows one."""
        log.warning("link %s: %s", link.segment, what.detail)

    def on_elicitation_complete(self, link: Link, params: Raw) -> None:
        self._house.on_elicitation_complete(link, params)
