"""Small documents from authorization servers: key sets, metadata, introspection answers.

In: a URL that is https or loopback. Out: the body of a 200 answer, or FetchFailed. Redirects are not followed; sizes,
times and connections are bounded.
"""

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from interlock.protocol.oauth.resource import is_protected
from interlock.transport.http import Failure, Headers, HttpClient

FETCH_S: Final = 5.0  # from the request to the whole answer
CONNECT_S: Final = 3.0
BODY_BYTES_MAX: Final = 512 * 1024  # a hundred keys with their certificates take about half
CONNECTIONS_MAX: Final = 4
WAITING_MAX: Final = 64
_ACCEPT: Final = b"accept: application/json\r\n"


class FetchFailed(Exception):
    """No usable answer. The message is for the log."""


class Fetcher:
    """Keeps one client per origin, made when first used."""

    def __init__(self) -> None:
        self._clients: dict[str, HttpClient] = {}
        self._tls: ssl.SSLContext | None = None

    async def get(self, url: str) -> bytes:
        return await self._ask(b"GET", url, _ACCEPT, b"")

    async def post(self, url: str, headers: bytes, body: bytes) -> bytes:
        return await self._ask(b"POST", url, headers, body)

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    async def _ask(self, method: bytes, url: str, headers: bytes, body: bytes) -> bytes:
        if not is_protected(url):
            raise FetchFailed("the URL is not https")
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        answer = _Answer()
        try:
            client = self._client(f"{parts.scheme}://{parts.netloc}")
            handle = client.request(method, target.encode("ascii"), headers, body, answer)
        except ValueError as error:
            raise FetchFailed(str(error)) from None
        try:
            async with asyncio.timeout(FETCH_S):
                return await answer.body
        except TimeoutError:
            raise FetchFailed(f"no answer within {FETCH_S:g} s") from None
        finally:
            handle.abort()  # does nothing after an answer

    def _client(self, origin: str) -> HttpClient:
        client = self._clients.get(origin)
        if client is None:
            if self._tls is None and origin.startswith("https:"):
                self._tls = ssl.create_default_context()
            client = self._clients[origin] = HttpClient(
                origin,
                max_connections=CONNECTIONS_MAX,
                max_body_bytes=BODY_BYTES_MAX,
                connect_timeout_s=CONNECT_S,
                max_waiting=WAITING_MAX,
                tls=self._tls,
            )
        return client


class _Answer:
    """A ResponseSink for one small answer."""

    def __init__(self) -> None:
        self.body: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        if status == 200:
            self._end(body)
        else:
            self._end(FetchFailed(f"HTTP status {status}"))

    def on_stream(self, status: int, headers: Headers) -> None:
        self._end(FetchFailed("an event stream instead of a document"))

    def on_chunk(self, data: bytes) -> None:
        pass

    def on_stream_end(self) -> None:
        pass

    def on_fail(self, failure: Failure) -> None:
        self._end(FetchFailed(failure.detail))

    def _end(self, outcome: bytes | FetchFailed) -> None:
        if self.body.done():
            return
        if isinstance(outcome, bytes):
            self.body.set_result(outcome)
        else:
            self.body.set_exception(outcome)
