"""The standard input and output of this process as a MessagePipe, one message per line, for a leaf that its aggregator
started.

While the pipe is open, everything else that is printed goes to standard error, and nothing else reads standard input: a
stray `print` in a tool would otherwise end up between the messages.

Pipes and sockets are watched by the event loop. A regular file cannot be watched, because it is always ready, so it is
read and written piece by piece (`FileInput`, `FileOutput`).
"""

import asyncio
import os
from typing import cast

from interlock.net.message_pipe import CUT, NORMAL, MessageSink
from interlock.process.child import FileInput, open_input, open_output
from interlock.process.stderr import LineSplitter, write_line

INPUT, OUTPUT = "standard input", "standard output"


async def open_standard(sink: MessageSink, max_bytes: int) -> "StandardPipe":
    """Open standard input and output as a message pipe. Call this only once per process, because the file descriptors
    are not restored.
    """
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    pipe = StandardPipe(sink, max_bytes)
    pipe._writer = writer = await open_output(writing, lambda: _Standard(pipe, OUTPUT))
    writer.set_write_buffer_limits(high=max_bytes)
    reader = await open_input(_Standard(pipe, INPUT), reading)
    if isinstance(reader, FileInput):
        pipe._file = reader
    return pipe


class StandardPipe:
    """A message pipe on the standard input and output of this process."""

    def __init__(self, sink: MessageSink, max_bytes: int) -> None:
        self._sink = sink
        self._lines = LineSplitter(max_bytes)
        self._reader: asyncio.ReadTransport | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._full = False
        self._closed = False
        self._file: FileInput | None = None  # if standard input is a file, which cannot be awaited

    def send(self, message: bytes) -> bool:
        """Write a message. Return False if the aggregator is not reading or the pipe is closed."""
        writer = self._writer
        if writer is None or self._closed or self._full or writer.is_closing():
            return False
        write_line(writer, message)
        return True

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Close the pipe after all queued messages are written. The aggregator then sees the end of the output."""
        self._end(code, reason)
        if self._writer is not None:
            self._writer.close()

    def abort(self) -> None:
        self._end(CUT, "was cut off by us")
        if self._writer is not None:
            self._writer.abort()

    def pause_reading(self) -> None:
        if self._reader is not None:
            self._reader.pause_reading()

    def resume_reading(self) -> None:
        if self._reader is not None:
            self._reader.resume_reading()

    def _feed(self, data: bytes) -> None:
        """Pass complete lines to the sink. A line that is too long is reported and discarded."""
        for line in self._lines.feed(data):
            if line.strip() and not self._closed:
                self._sink.on_message(line)
        if self._lines.skipped:
            for oversized in self._lines.take_oversized():
                if not self._closed:
                    self._sink.on_oversized(oversized)

    def _end(self, code: int, reason: str) -> None:
        """Stop reading, and notify the sink that the pipe is closed. Later calls do nothing."""
        if self._closed:
            return
        self._closed = True
        if self._reader is not None:
            self._reader.close()
        if self._file is not None:
            self._file.close()
        asyncio.get_running_loop().call_soon(self._sink.on_closed, code, reason)


class _Standard(asyncio.Protocol):
    """The asyncio protocol that connects a StandardPipe with standard input or standard output, as `name` says."""

    def __init__(self, pipe: StandardPipe, name: str) -> None:
        self._pipe, self._name = pipe, name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._name == INPUT:
            self._pipe._reader = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._pipe._feed(data)

    def eof_received(self) -> None:
        self.connection_lost(None)

    def pause_writing(self) -> None:
        self._pipe._full = True

    def resume_writing(self) -> None:
        self._pipe._full = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pipe._end(CUT, f"closed our {self._name}")
