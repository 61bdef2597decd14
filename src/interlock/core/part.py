"""The life cycle of every part of a node: a part is constructed with its dependencies, opened, and closed.

A part whose `open` fails has undone the steps it had taken. `close` is called once, and only for a part that was
opened. A part that cannot use the configuration raises `CannotStart`.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Protocol


class Part(Protocol):
    """A component of a node with a life cycle, such as the recorder, the registrar or an endpoint."""

    async def open(self) -> None:
        """Start working. If this fails, the part first undoes the steps that it had taken."""

    async def close(self) -> None:
        """Stop working and release all resources."""


class PartStack:
    """The parts of a node. They are opened in order and closed in reverse order, even if one of them failed to open."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self._opened = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Open the parts in order. If one raises, the parts that are already open stay open until `close`."""
        for part in self.parts:
            await part.open()
            self._opened.push_async_callback(part.close)

    async def close(self) -> None:
        """Close all parts that were opened, even if one of them fails to close. Its exception is raised at the end."""
        await self._opened.aclose()


@contextlib.asynccontextmanager
async def opened(*parts: Part) -> AsyncIterator[None]:
    """Keep parts open during a `with` block. They are opened in order and closed in reverse order."""
    stack = PartStack(parts)
    try:
        await stack.open()
        yield
    finally:
        await stack.close()


class CannotStart(Exception):
    """An error raised if a node cannot start although its configuration is valid.

    The message tells the operator what to change.

    CannotStart
      AnchorInvalid        the key of an anchor
      CertificatesInvalid  node.client_ca or node.crl
      TlsInvalid           a certificate and its key: of an endpoint, or of a link to a parent

    A message names the file, and never repeats its content.
    """


class AnchorInvalid(CannotStart):
    """An error raised if a configured key that may approve calls (an anchor) cannot be used."""


class CertificatesInvalid(CannotStart):
    """An error raised if the file of node.client_ca or node.crl cannot be used."""


class TlsInvalid(CannotStart):
    """An error raised if a certificate or its key cannot be used."""
