"""What becomes of an HTTP request: its answer, its event stream, or the reason why there is neither.

Values, and questions that a head answers by itself. Nothing here moves bytes.
"""

import enum
import ssl
from collections.abc import Sequence
from typing import Protocol

import msgspec

Headers = Sequence[tuple[bytes, bytes]]  # names as the server wrote them, in its order, repeated ones kept


def header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first value of a header, or None. `name` is in lower case."""
    size = len(name)
    for key, value in headers:
        if len(key) == size and key.lower() == name:
            return value.strip(b" \t")
    return None


class FailureKind(enum.Enum):
    CONNECT_REFUSED = "connect_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    NAME_RESOLUTION = "name_resolution"
    TLS = "tls"
    LOST_BEFORE_ANSWER = "lost_before_answer"
    LOST_DURING_ANSWER = "lost_during_answer"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    BUSY = "busy"
    CLOSED = "closed"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a request has no answer. `detail` names no host, path or class, and may be shown to anybody."""

    kind: FailureKind
    detail: str
    retry_safe: bool = False  # true only if no byte of the request can have reached the server


class ResponseSink(Protocol):
    """A receiver of the answer to one request. `on_answer`, `on_stream_end` and `on_fail` are terminal."""

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None: ...

    def on_stream(self, status: int, headers: Headers) -> None:
        """Handle the start of an answer of content type text/event-stream."""

    def on_chunk(self, data: bytes) -> None: ...

    def on_stream_end(self) -> None: ...

    def on_fail(self, failure: Failure) -> None: ...


def tls_detail(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    reason = (error.reason or "no reason given").replace("_", " ").lower()
    return f"the TLS handshake failed: {reason}"


def ends_with_connection(headers: Headers) -> bool:
    """RFC 9112 6.3 rules 4 and 8: without a length or a final chunked coding an answer ends with the connection."""
    coding = b""
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"content-length":
            return False
        if lowered == b"transfer-encoding":
            coding = value
    return coding.rpartition(b",")[2].strip(b" \t").lower() != b"chunked"
