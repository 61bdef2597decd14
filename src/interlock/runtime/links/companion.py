"""A program that serves a link over HTTP and lives as long as the link: it is started first and ended last.

What it prints is kept for people, as what a child says on its standard error is.
"""

import os
from collections.abc import Mapping

from interlock.runtime.links.pipes import PipeOwner
from interlock.transport.launch import child_environment
from interlock.transport.stderr import StderrRing
from interlock.transport.stdio import Child
from interlock.transport.warden import Warden

LINE_BYTES_MAX = 1024 * 1024


class Companion:
    """Also its ChildSink."""

    def __init__(
        self, owner: PipeOwner, argv: tuple[str, ...], env: Mapping[str, str], stderr: StderrRing, warden: Warden | None
    ) -> None:
        self._owner = owner
        self._stderr = stderr
        environment = child_environment(env, os.environ)
        self.child = Child(
            argv, environment, None, max_message_bytes=LINE_BYTES_MAX, sink=self, stderr=stderr, warden=warden
        )

    def on_line(self, data: bytes) -> None:
        self._stderr.feed(data + b"\n")

    def on_gone(self, reason: str) -> None:
        self._owner.on_pipe_lost(reason)

    def on_stalled(self) -> None:
        """Nothing is sent to it."""
