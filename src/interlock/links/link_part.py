"""The base of the objects that a connected link consists of."""

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.links.connected_link import ConnectedLink


class LinkPart:
    """A part of a connected link.

    It refers to its link weakly: a link that is gone is freed at once, without waiting for the garbage collector.
    """

    __slots__ = ("_link_ref",)

    def __init__(self, link: "ConnectedLink") -> None:
        self._link_ref = weakref.ref(link)

    @property
    def link(self) -> "ConnectedLink":
        link = self._link_ref()
        if link is None:
            raise ReferenceError("the link of this part is gone")
        return link
