"""What a registered link says and any other link would say too: it is the house's business, whoever the link is."""

from msgspec import Raw

from interlock.protocol.jsonrpc.messages import Request
from interlock.runtime.links.link import Link, LinkWatcher
from interlock.runtime.links.task_watcher import TaskWatcher


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

    def on_orphan_request(self, link: Link, request: Request) -> bool:
        return self._house.on_orphan_request(link, request)

    def on_unauthorised(self, link: Link, reason: str) -> None:
        self._house.on_unauthorised(link, reason)

    def on_elicitation_complete(self, link: Link, params: Raw) -> None:
        self._house.on_elicitation_complete(link, params)
