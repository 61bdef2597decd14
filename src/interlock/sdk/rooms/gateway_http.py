"""Requests to the gateway over HTTP: what has no envelope of its own (X-N-6)."""

import asyncio
import http.client
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from interlock.sdk.rooms.connection import Place
from interlock.sdk.rooms.errors import EnvelopeRefused, RoomUnreachable

ANSWER_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

T = TypeVar("T")


async def get(place: Place, *path: str, answer: type[T]) -> T:
    """What is below this topic. Raises EnvelopeRefused with the gateway's code, and RoomUnreachable."""
    try:
        return msgspec.json.decode(await asyncio.to_thread(_ask, place, "GET", path, None), type=answer)
    except msgspec.DecodeError as error:
        raise RoomUnreachable(f"the gateway's answer cannot be read: {error}") from None


async def post(place: Place, *path: str, body: dict[str, Any]) -> None:
    """As `get`."""
    await asyncio.to_thread(_ask, place, "POST", path, body)


def _ask(place: Place, method: str, path: tuple[str, ...], body: dict[str, Any] | None) -> bytes:
    parts = urlsplit(place.address)
    connection: http.client.HTTPConnection
    if parts.scheme == "wss":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=ANSWER_S, context=place.tls)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=ANSWER_S)
    headers = {"content-type": "application/json"} if body is not None else {}
    if place.token is not None:
        headers["authorization"] = f"Bearer {place.token}"
    below = "/".join(quote(one, safe="") for one in ("topics", place.topic, *path))
    try:
        connection.request(method, f"/v0/{below}", None if body is None else msgspec.json.encode(body), headers)
        answer = connection.getresponse()
        written = answer.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise RoomUnreachable(f"the gateway did not answer: {error}") from None
    finally:
        connection.close()
    if answer.status >= http.client.BAD_REQUEST:
        try:
            said = msgspec.json.decode(written, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise RoomUnreachable(f"the gateway answers HTTP {answer.status}") from None
        why = said.get("error", {})
        if isinstance(why, dict):  # a violation is told as JSON-RPC tells it
            raise EnvelopeRefused("privilege_violation", str(why.get("message", "")), why.get("data"))
        raise EnvelopeRefused(str(why), str(said.get("message", "")), said.get("details"))
    return written
