"""The functions that a program offers as tools: to an aggregator, or to those who share a room with it."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from interlock.sdk.subserver.errors import ToolInvalid
from interlock.sdk.subserver.tools import Tool, make_tool

_Function = TypeVar("_Function", bound=Callable[..., Any])


class OfferedTools:
    """The base of both libraries."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    def _on_offered(self) -> None:
        """One more is offered."""

    @overload
    def tool(self, function: _Function) -> _Function: ...

    @overload
    def tool(
        self,
        function: None = None,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        **capability: object,
    ) -> Callable[[_Function], _Function]: ...

    def tool(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        **capability: object,
    ) -> Any:
        """Offer a function. `capability` are the keys of MCP-AX 9.1, such as mutable=False or latency_class="fast".

        A tool about which nothing is said counts as mutable and irreversible, and aggregators may ask a person before
        each call. Plain functions run in a thread of their own, async ones on the loop.
        """

        def offer(function: _Function) -> _Function:
            made = make_tool(function, name=name, title=title, description=description, capability=capability)
            if made.name in self._tools:
                raise ToolInvalid(f"there is a tool {made.name} already; give this one another name=")
            self._tools[made.name] = made
            self._on_offered()
            return function

        return offer if function is None else offer(function)
