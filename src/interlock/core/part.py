"""The life cycle that every part of a node has: constructed with what it needs, opened, closed.

A part whose `open` fails has put away what it began; `close` is called for a part that was opened, once.
"""

import contextlib
from collections.abc import Iterable
from typing import Protocol


class Part(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None: ...


class PartStack:
    """Opens parts in their order and closes them in the reverse order, also after one of them failed to open."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self._opened = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Open the parts in order; if one raises, those before it stay open until `close`."""
        for part in self.parts:
            await part.open()
            self._opened.push_async_callback(part.close)

    async def close(self) -> None:
        """Close all parts, even if one of them fails to close; its error is raised at the end."""
        await self._opened.aclose()
