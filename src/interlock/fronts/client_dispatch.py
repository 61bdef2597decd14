"""What the fronts need of a dispatcher and of lists: the flat surface and the AQL surfaces have one each."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Raw

from interlock.catalog.catalog import View
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, Sink, ViewKey
from interlock.mcp.methods import Era
from interlock.wire.refusal import Refusal


class RoutedMethod(Protocol):
    def __call__(
        self, caller: Caller, client_id: bytes, params: dict[str, Any], meta: dict[str, Raw], sink: Sink, /
    ) -> Call: ...


class ClientDispatch(Protocol):
    @property
    def get_prompt(self) -> RoutedMethod: ...

    @property
    def read_resource(self) -> RoutedMethod: ...

    @property
    def complete(self) -> RoutedMethod: ...

    @property
    def confirm(self) -> RoutedMethod: ...

    def view(self, key: ViewKey) -> View: ...

    def call_tool(
        self,
        caller: Caller,
        client_id: bytes,
        params: dict[str, Any],
        meta: dict[str, Raw],
        sink: Sink,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> Call: ...


class ClientLists(Protocol):
    @property
    def unchanging(self) -> frozenset[str]:
        """Kinds of lists that stay the same while a client is connected."""

    def list(self, method: str, key: ViewKey, params: dict[str, Raw], era: Era) -> bytes | Refusal: ...

    def when_fresh(self, method: str, then: Callable[[], None]) -> None: ...

    def maybe_unreadable(self, data: bytes, *, is_modern: bool) -> bytes | None:
        """The answer to a message that is no UTF-8, where the surface has one of its own."""

    def introduction(self, view: View, only: str | None) -> str:
        """The instructions of the greeting."""
