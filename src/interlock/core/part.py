"""The life cycle that every part of a node has: constructed with what it needs, opened, closed.

A part whose `open` fails has undone what it began. `close` is called once, for a part that was opened. A part that
finds the configuration unusable raises `CannotStart`.
"""

import contextlib
from collections.abc import Iterable
from typing import Protocol


class Part(Protocol):
    """A part of a node, such as the recorder, the registrar or an endpoint."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class PartStack:
    """The parts of a node: opened in their order and closed in the reverse order, also after one failed to open."""

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


class CannotStart(Exception):
    """A node does not start although its configuration could be read. The message says what the operator should change.

    CannotStart
      AnchorInvalid        the key of an anchor
      CertificatesInvalid  node.client_ca or node.crl
      TlsInvalid           a certificate and its key: of an endpoint, or of a link to a parent

    A message names the file, and never repeats its content.
    """


class AnchorInvalid(CannotStart):
    """An anchor's key cannot be used."""


class CertificatesInvalid(CannotStart):
    """The file of node.client_ca or node.crl cannot be used."""


class TlsInvalid(CannotStart):
    """A certificate or its key cannot be used."""
