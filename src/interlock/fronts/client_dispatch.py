"""What the fronts need of a dispatcher and of lists: the flat surface and the AQL surfaces have one each."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw

from interlock.catalog.catalog import View
from interlock.core.calls.call import Call
from interlock.core.calls.caller import ClientRequest, ViewKey
from interlock.mcp.methods import Era
from interlock.wire.refusal import Refusal


class ClientDispatch(Protocol):
    """The methods that a surface offers: the dispatcher itself, or the MCP-AQL surfaces before it."""

    def call_tool(self, request: ClientRequest) -> Call: ...

    def get_prompt(self, request: ClientRequest) -> Call: ...

    def read_resource(self, request: ClientRequest) -> Call: ...

    def complete(self, request: ClientRequest) -> Call: ...

    def confirm(self, request: ClientRequest) -> Call: ...

    def view(self, key: ViewKey) -> View: ...


class ClientLists(Protocol):
    @property
    def unchanging(self) -> frozenset[str]:
        """Return the kinds of lists that stay the same while a client is connected."""

    def list(self, method: str, key: ViewKey, params: dict[str, Raw], era: Era) -> bytes | Refusal: ...

    def when_fresh(self, method: str, then: Callable[[], None]) -> None: ...

    def maybe_unreadable(self, data: bytes, *, is_modern: bool) -> bytes | None:
        """Return the surface's answer to a message that is not UTF-8, or None if it has no special answer."""

    def introduction(self, view: View, only: str | None) -> str:
        """Return the instructions for the client's greeting."""
