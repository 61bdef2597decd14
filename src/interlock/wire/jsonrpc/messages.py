"""The three JSON-RPC messages. What routing does not need stays `msgspec.Raw`: bytes in, the same bytes out."""

import msgspec
from msgspec import Raw

ABSENT = Raw(b"")


class Request(msgspec.Struct, frozen=True):
    id: bytes  # the JSON text of the id: a string or an integer
    method: str
    params: Raw  # ABSENT when there are none
    text: bytes = b""  # the whole message as it came, where it came from outside


class Notification(msgspec.Struct, frozen=True):
    method: str
    params: Raw


class Response(msgspec.Struct, frozen=True):
    """Either `result` or `error` is present, never both."""

    id: bytes
    result: Raw
    error: Raw
    text: bytes = b""  # the whole message as it came, where it came from outside


Message = Request | Notification | Response
