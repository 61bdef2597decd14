"""Fetching of small documents from authorization servers: key sets, metadata, introspection answers, tokens.

A URL must be https or loopback. The result is the body of a 200 answer or, where the caller asks for it, any answer;
everything else raises FetchFailed. Redirects are not followed, and sizes, times and connections are bounded.

A URL may come from outside: a server that answers 401 names the URLs that are fetched next. `within` says how near to
this machine such a URL may lead. Where that is a limit, the name is resolved first, and the very address that was
judged is connected to, so that the owner of a name cannot change the address in between.
"""

import asyncio
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.credentials.protocol.resource import is_protected
from interlock.net.http.client import HttpClient
from interlock.net.http.connection import Headers, HttpFailure, header
from interlock.net.protocol.address_scope import Scope, find_scope, scope_of
from interlock.net.protocol.egress import port_of

FETCH_S: Final = 5.0  # from the request to the whole answer
CONNECT_S: Final = 3.0
BODY_BYTES_MAX: Final = 512 * 1024  # a hundred keys with their certificates take about half
CONNECTIONS_MAX: Final = 4
WAITING_MAX: Final = 64
ADDRESSES_MAX: Final = 3  # of one host, how many are tried
CLIENTS_MAX: Final = 32  # origins whose connections are kept
_ACCEPT: Final = b"accept: application/json\r\n"


class FetchFailed(Exception):
    """An error raised if a request has no usable answer. Its message is for the log.

    `unsent` is True if no byte of the request can have reached the server.
    """

    def __init__(self, message: str, *, unsent: bool = False) -> None:
        super().__init__(message)
        self.unsent = unsent


class FetchedAnswer(msgspec.Struct, frozen=True):
    """The answer to a request, with any status."""

    status: int
    body: bytes
    location: str | None = None


class Fetcher:
    """A client that fetches small documents. It has one HTTP client per origin."""

    def __init__(
        self, within: Scope | None = None, *, seconds: float | None = None, body_bytes: int = BODY_BYTES_MAX
    ) -> None:
        """Create a client for small documents. It refuses URLs that lead nearer to this machine than `within`.

        `within` limits how near to this machine a URL may lead; None sets no limit. `seconds` is the time limit of one
        answer; None means FETCH_S.
        """
        self._within = within
        self._seconds = FETCH_S if seconds is None else seconds
        self._body_bytes = body_bytes
        self._clients: dict[tuple[str, str | None], HttpClient] = {}
        self._tls: ssl.SSLContext | None = None

    async def get(self, url: str) -> bytes:
        """Send a GET and return the body of a 200 answer. Raise FetchFailed for any other answer."""
        return _body(await self._ask(b"GET", url, _ACCEPT, b""))

    async def look(self, url: str) -> FetchedAnswer:
        """Send a GET and return its answer, even if it is a redirect or an error."""
        return await self._ask(b"GET", url, b"accept: */*\r\n", b"")

    async def post(self, url: str, headers: bytes, body: bytes) -> bytes:
        """Send a POST and return the body of a 200 answer. Raise FetchFailed for any other answer."""
        return _body(await self._ask(b"POST", url, headers, body))

    async def exchange(self, url: str, headers: bytes, body: bytes) -> FetchedAnswer:
        """Send a POST and return its answer, even if it is an error."""
        return await self._ask(b"POST", url, headers, body)

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    async def _ask(self, method: bytes, url: str, headers: bytes, body: bytes) -> FetchedAnswer:
        if not is_protected(url):
            raise FetchFailed("the URL is not https")
        try:
            async with asyncio.timeout(self._seconds):
                if self._within in (None, Scope.MACHINE):
                    return await self._ask_at(None, method, url, headers, body)
                addresses = await _addresses(url)
                if self._within is not None and any(scope_of(address) > self._within for address in addresses):
                    raise FetchFailed("the URL resolves to a private address, which is refused")
                *others, last = addresses[:ADDRESSES_MAX]
                for address in others:
                    try:
                        return await self._ask_at(address, method, url, headers, body)
                    except FetchFailed as failed:
                        if not failed.unsent:
                            raise
                return await self._ask_at(last, method, url, headers, body)
        except TimeoutError:
            raise FetchFailed(f"no answer within {self._seconds:g} s") from None
        except ValueError as error:
            raise FetchFailed(str(error)) from None

    async def _ask_at(self, address: str | None, method: bytes, url: str, headers: bytes, body: bytes) -> FetchedAnswer:
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        client = await self._client(f"{parts.scheme}://{parts.netloc}", address)
        answer = DocumentSink()
        handle = client.request(method, target.encode("ascii"), headers, body, answer)
        try:
            return await answer.answered
        finally:
            handle.abort()  # does nothing after an answer

    async def _client(self, origin: str, address: str | None) -> HttpClient:
        client = self._clients.get((origin, address))
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                await self._clients.pop(next(iter(self._clients))).close()
            if self._tls is None and origin.startswith("https:"):
                self._tls = ssl.create_default_context()
            client = self._clients[origin, address] = HttpClient(
                origin,
                max_connections=CONNECTIONS_MAX,
                max_body_bytes=self._body_bytes,
                connect_timeout_s=CONNECT_S,
                max_waiting=WAITING_MAX,
                tls=self._tls,
                address=address,
            )
        return client


async def scope_of_url(url: str) -> Scope:
    """Return where a URL leads: to the public network, a private network, or this machine.

    Only an IP address or localhost can mean this machine. Other names count as a private network at most, because their
    owner can make them lead anywhere. A name that cannot be resolved counts as public.
    """
    host = urlsplit(url).hostname or ""
    written = find_scope(host)
    if written is not None:
        return written
    try:
        scopes = [scope_of(address) for address in await _addresses(url)]
    except FetchFailed:
        return Scope.PUBLIC
    return min(Scope.PRIVATE, *scopes)


async def is_near(url: str) -> bool:
    """Return whether any address of a URL's host is in a private network or on this machine.

    Return False if the name cannot be resolved.
    """
    written = find_scope(urlsplit(url).hostname or "")
    if written is not None:
        return written is not Scope.PUBLIC
    try:
        return any(scope_of(address) is not Scope.PUBLIC for address in await _addresses(url))
    except FetchFailed:
        return False


async def _addresses(url: str) -> list[str]:
    """Resolve the host of a URL. Raise FetchFailed if it has no address."""
    parts = urlsplit(url)
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port_of(parts), type=socket.SOCK_STREAM)
    except OSError:
        infos = []
    addresses = [str(sockaddr[0]) for *_, sockaddr in infos]
    if not addresses:
        raise FetchFailed("the host name cannot be resolved", unsent=True)
    return addresses


def _body(answered: FetchedAnswer) -> bytes:
    if answered.status != 200:
        raise FetchFailed(f"HTTP status {answered.status}")
    return answered.body


class DocumentSink:
    """A receiver of the answer to one small request. An event stream counts as a failure."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[FetchedAnswer] = asyncio.get_running_loop().create_future()

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        location = header(headers, b"location")
        self._end(FetchedAnswer(status, body, None if location is None else location.decode("latin-1")))

    def on_stream(self, status: int, headers: Headers) -> None:
        self._end(FetchFailed("an event stream instead of a document"))

    def on_chunk(self, data: bytes) -> None:
        """Do nothing, because the request has already failed."""

    def on_stream_end(self) -> None:
        """Do nothing, because the request has already failed."""

    def on_fail(self, failure: HttpFailure) -> None:
        self._end(FetchFailed(failure.detail, unsent=failure.retry_safe))

    def _end(self, outcome: FetchedAnswer | FetchFailed) -> None:
        if self.answered.done():
            return
        if isinstance(outcome, FetchedAnswer):
            self.answered.set_result(outcome)
        else:
            self.answered.set_exception(outcome)
