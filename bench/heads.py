"""Request heads as real clients write them: three SDKs' header sets, captured from the clients themselves.

Between two calls of one client the body's length changes, and with tracing the trace headers.
"""

from typing import Final

import msgspec


class HeadSet(msgspec.Struct, frozen=True, kw_only=True):
    """The header lines of one SDK, in its order and spelling. `{…}` are filled in."""

    lines: tuple[bytes, ...]
    is_body_apart: bool  # the body comes with a write of its own


PLAIN: Final = HeadSet(
    lines=(
        b"host: {host}",
        b"content-type: application/json",
        b"accept: application/json, text/event-stream",
        b"{mcp}",
        b"authorization: Bearer {token}",
        b"content-length: {length}",
    ),
    is_body_apart=False,
)
PYTHON: Final = HeadSet(  # mcp 2.3 with httpx2
    lines=(
        b"Host: {host}",
        b"Accept-Encoding: gzip, deflate",
        b"Connection: keep-alive",
        b"User-Agent: python-httpx2/2.16.0",
        b"Authorization: Bearer {token}",
        b"accept: application/json, text/event-stream",
        b"content-type: application/json",
        b"{mcp}",
        b"traceparent: {traceparent}",
        b"Content-Length: {length}",
    ),
    is_body_apart=True,
)
TYPESCRIPT: Final = HeadSet(  # fetch of Node.js 20
    lines=(
        b"host: {host}",
        b"connection: keep-alive",
        b"content-type: application/json",
        b"accept: application/json, text/event-stream",
        b"authorization: Bearer {token}",
        b"{mcp}",
        b"traceparent: {traceparent}",
        b"accept-language: *",
        b"sec-fetch-mode: cors",
        b"user-agent: node",
        b"accept-encoding: gzip, deflate",
        b"content-length: {length}",
    ),
    is_body_apart=False,
)
GO: Final = HeadSet(  # net/http
    lines=(
        b"Host: {host}",
        b"User-Agent: Go-http-client/1.1",
        b"Content-Length: {length}",
        b"Accept: application/json, text/event-stream",
        b"Authorization: Bearer {token}",
        b"Content-Type: application/json",
        b"{mcp}",
        b"Traceparent: {traceparent}",
        b"Accept-Encoding: gzip",
    ),
    is_body_apart=False,
)
REAL: Final = (PYTHON, TYPESCRIPT, GO)


class HeadWriter:
    """Writes heads of one set for one session: everything but length and trace is filled in once."""

    def __init__(self, wanted: HeadSet, path: str, host: bytes, token: str | None, mcp: list[bytes]) -> None:
        lines = [b"POST %b HTTP/1.1" % path.encode()]
        for line in wanted.lines:
            if line == b"{mcp}":
                lines += mcp
            elif b"{token}" not in line or token is not None:
                lines.append(line.replace(b"{host}", host).replace(b"{token}", (token or "").encode()))
        text = b"\r\n".join([*lines, b"", b""]).replace(b"%", b"%%")
        self._is_length_first = text.find(b"{length}") < text.find(b"{traceparent}")
        self._is_traced = b"{traceparent}" in text
        self._text = text.replace(b"{length}", b"%d").replace(b"{traceparent}", b"00-%032x-%016x-01")
        self.is_body_apart = wanted.is_body_apart

    def head(self, length: int, number: int) -> bytes:
        if not self._is_traced:
            return self._text % length
        trace = (number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128, number)
        return self._text % ((length, *trace) if self._is_length_first else (*trace, length))
