"""Servers of kind binary: a program of this machine or of the driver's folder."""

from typing import ClassVar

from interlock.drivers.protocol.kinds.server import LocalServer


class Binary(LocalServer, frozen=True, kw_only=True, tag="binary"):
    kind: ClassVar[str] = "binary"
    keys: ClassVar[tuple[str, ...]] = ("path", "args", "env", "cwd")  # AIP-server-1

    path: str

    @property
    def program(self) -> str:
        return self.path

    @property
    def relative_program(self) -> str | None:
        return self.path if "/" in self.path and not self.path.startswith("/") else None
