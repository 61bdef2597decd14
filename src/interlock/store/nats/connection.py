"""The connection of a store to its NATS servers.

Theory of operation. While there is no connection, every call fails at once with `Unavailable`; nothing is kept to be
sent later, because the caller would not learn of it. For that each connection is a client that never reconnects: when
it is lost, whatever it still held is lost with it, and the requests that wait for an answer fail. Then a new client is
tried, for ever, at growing, jittered intervals.

A server that does not answer in time counts as lost too, so that one hung server costs one wait and not one per call.
After a pause of this process (a suspended laptop) an answer may have arrived that was only not read; so every wait has
a short second part before the server is given up.

Requests carry a reply subject below one inbox per connection. `_waiting` maps the last token of the subject to the
function that takes the answer. Answers that are no longer awaited are dropped.

A server that cannot be used (no JetStream, too old, wrong credentials) is `StoreRefused`: at the start the node stops
with the message, later it tries again, because the operator may correct the server while the node runs.
"""

import asyncio
import base64
import binascii
import contextlib
import logging
import os
import random
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from interlock.store.ports import Damaged, NatsServers, StoreError, StoreRefused, Unavailable, address

ANSWER_S = 2.0  # a server in the same network answers in milliseconds; a person at a page should not wait for longer
BYTES_PER_S = 4 * 1024 * 1024  # what a slow way to the server carries: large values are given the time for it
RETRY_FIRST_S = 0.05  # a server that restarts is back within a second
RETRY_MAX_S = 2.0  # bounds how long a server that is back goes unnoticed, and what many replicas ask of it meanwhile
OLDEST_API_LEVEL = 2  # of nats-server 2.12: atomic batches, and messages that expire
OLDEST_SERVER = "2.12"
PAYLOAD_MIN = 64 * 1024  # bytes: with less, a large value would need more messages than a batch may have
PING_S = 20.0  # finds a silent loss where no reader expects heartbeats

_log = logging.getLogger(__name__)
INBOXES = "_INBOX"
_NONCE_BYTES = 11

Headers = Mapping[str, str]
Answered = Callable[[Msg], None]


class ApiError(Exception):
    """Exception for an error response of the JetStream API."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} ({err_code})")
        self.code, self.err_code, self.description = code, err_code, description


class Connection:
    """The connection of a store to its NATS servers. A background task reconnects from `open` until `close`."""

    def __init__(self, servers: NatsServers, what: str) -> None:
        self._servers = servers
        self._what = what  # how messages call the store
        self._client: Client | None = None
        self._problem = ""
        self._failure: StoreRefused | None = None
        self._prefix = ""
        self._waiting: dict[str, Answered] = {}
        self._answers: set[asyncio.Future[Any]] = set()
        self._denied = ""  # what the server says to be beyond the rights of this node
        self._lost = asyncio.Event()
        self._dropped: Client | None = None  # lost, and to be closed
        self._keeper: asyncio.Task[None] | None = None
        self._on_change: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        return self._keeper is not None

    @property
    def is_reachable(self) -> bool:
        client = self._client
        return self._failure is None and client is not None and client.is_connected

    @property
    def payload_max(self) -> int:
        return self._live().max_payload

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the connection is lost, restored or closed."""
        self._on_change.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        if callback in self._on_change:
            self._on_change.remove(callback)

    async def open(self) -> None:
        if self._keeper is not None:
            return
        await self._connect()
        self._keeper = asyncio.create_task(self._keep(), name="nats connection")

    async def close(self) -> None:
        """Close the connection permanently. Every pending request fails."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        client = self._forget_client()
        self._notify()
        for nats_client in (client, self._dropped):
            if nats_client is not None:
                await _close(nats_client)
        self._dropped = None

    async def until_reachable(self) -> None:
        """Wait until the server is reachable or the connection is permanently closed."""
        changed = asyncio.Event()
        self.on_change(changed.set)
        try:
            while not self.is_reachable and self.is_open:
                await changed.wait()
                changed.clear()
        finally:
            self.forget(changed.set)

    def fail(self, why: StoreRefused) -> None:
        """Drop the connection, and raise `why` in every later call until the node is restarted."""
        self._failure = why
        self.lose(str(why))

    def lose(self, why: str) -> None:
        """Drop the connection because the server no longer works properly, and log the reason `why`."""
        self._problem = why
        client = self._forget_client()
        if client is not None:
            _log.warning("%s is away: %s", self._what, why)
            self._dropped = client

    async def request(
        self, subject: str, data: bytes = b"", headers: Headers | None = None, *, size: int | None = None
    ) -> Msg:
        """Send a request and return its answer. An answer with the status 503 ("no responders") is returned as well.
        Raise Unavailable if no answer comes within the time limit.
        """
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        with self.inbox(settle_with_message(answer)) as reply:
            await self.send(subject, data, headers, reply=reply)
            await self.wait(answer, len(data) if size is None else size)
            return answer.result()

    async def wait(self, answer: "asyncio.Future[Any]", size: int = 0) -> None:
        """Wait until the future `answer` is done, at most for the time limit. If the time limit expires, drop the
        connection and raise Unavailable, or StoreRefused if the server denied something. If the connection is lost
        meanwhile, `answer` gets an exception.
        """
        self._answers.add(answer)
        try:
            # In two parts: after a pause of this process the answer may have arrived and only not been read.
            for share in (0.9, 0.1):
                if not answer.done():
                    await asyncio.wait((answer,), timeout=(ANSWER_S + size / BYTES_PER_S) * share)
            if answer.done():
                return
        finally:
            self._answers.discard(answer)
        denied, self._denied = self._denied, ""
        self.lose(denied or f"no answer within {ANSWER_S} s")
        if denied:
            raise StoreRefused(
                f"The NATS server at {self._servers} denies this node what it asks: {denied}. It publishes to "
                "$JS.API.> and interlock.>, and subscribes to _INBOX.> and interlock.>."
            )
        raise Unavailable(f"{self._what} did not answer in time")

    async def send(self, subject: str, data: bytes, headers: Headers | None = None, *, reply: str = "") -> None:
        client = self._live()
        try:
            await client.publish(subject, data, reply=reply, headers=dict(headers) if headers else None)
        except (NatsError, OSError) as failed:
            raise Unavailable(f"{self._what} is away: {failed or type(failed).__name__}") from failed

    @contextlib.contextmanager
    def inbox(self, answered: Answered) -> Iterator[str]:
        """Open a reply subject for the block of this context manager. Each message to it is passed to `answered`."""
        self._live()
        nonce = secrets.token_hex(_NONCE_BYTES)
        self._waiting[nonce] = answered
        try:
            yield f"{self._prefix}.{nonce}"
        finally:
            self._waiting.pop(nonce, None)

    @contextlib.asynccontextmanager
    async def subscription(self, arrived: Answered) -> AsyncIterator[str]:
        """Subscribe to a new reply subject for the block of this context manager, and pass each message to `arrived`.
        Messages from a consumer need a separate subscription, because they carry their original subject instead of the
        reply subject.
        """
        client = self._live()

        async def pass_on(message: Msg) -> None:
            arrived(message)

        reply = f"{INBOXES}.{secrets.token_hex(_NONCE_BYTES)}"
        try:
            subscription = await client.subscribe(reply, cb=pass_on, pending_msgs_limit=0, pending_bytes_limit=0)
        except (NatsError, OSError) as failed:
            raise Unavailable(f"{self._what} is away: {failed or type(failed).__name__}") from failed
        try:
            yield reply
        finally:
            with contextlib.suppress(NatsError, OSError):
                await subscription.unsubscribe()

    async def api(self, subject: str, **parameters: Any) -> dict[str, Any]:
        """Send a request to the JetStream API and return its answer. Raise ApiError if JetStream answers with an
        error.
        """
        answer = await self.request(f"$JS.API.{subject}", msgspec.json.encode(parameters) if parameters else b"")
        if (answer.headers or {}).get("Status") == "503":
            raise ApiError(503, 0, "JetStream does not answer")
        return decode(answer.data)

    def _live(self) -> Client:
        """Return the connected client. Raise Unavailable if there is none, or StoreRefused if the connection has failed
        permanently.
        """
        client = self._client
        if client is None or not self.is_reachable:
            raise self._unavailable()
        return client

    def _unavailable(self) -> StoreError:
        if self._failure is not None:
            return self._failure
        if self._keeper is None and self._client is None:
            return Unavailable(f"{self._what} is not open")
        return Unavailable(f"{self._what} is away: {self._problem or 'the connection was lost'}")

    async def _keep(self) -> None:
        """Connect again whenever the connection is lost. This task ends when the store has failed permanently."""
        wait_s = RETRY_FIRST_S
        while self._failure is None:
            if self._client is not None:
                await self._lost.wait()
                wait_s = RETRY_FIRST_S
                self._notify()
            if self._dropped is not None:
                client, self._dropped = self._dropped, None
                await _close(client)
            if self._failure is not None:
                return
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311  (spreads replicas, hides nothing)
            wait_s = min(2 * wait_s, RETRY_MAX_S)
            try:
                await self._connect()
            except Unavailable as failed:
                self._problem = str(failed)
            except StoreRefused as refused:  # the server was changed: it may be put right while this node runs
                self._problem = str(refused)
                _log.warning("%s", refused)
            except Exception as failed:  # whatever it is, it may be put right too
                self._problem = f"{type(failed).__name__}: {failed}"
                _log.exception("%s: connecting failed in a way it should not", self._servers)
            else:
                _log.warning("%s is back", self._what)
                self._notify()

    def _notify(self) -> None:
        for callback in list(self._on_change):
            callback()

    async def _connect(self) -> None:
        """Try the servers in random order, and connect to the first one that accepts this node."""
        urls = list(self._servers.urls)
        random.shuffle(urls)
        secret = await self._servers.secret() if self._servers.secret is not None else None
        options = connect_options(secret or "")
        if any(urlsplit(url).scheme == "tls" for url in self._servers.urls):
            options["tls"] = ssl.create_default_context(cafile=self._servers.ca_file)
        failures: list[Exception] = []
        for url in urls:
            try:
                return await self._connect_to(url, dict(options))
            except (StoreRefused, Unavailable) as failed:
                failures.append(failed)
        raise next((failure for failure in failures if isinstance(failure, StoreRefused)), failures[0])

    async def _connect_to(self, url: str, options: dict[str, Any]) -> None:
        """Connect to one server. Raise Unavailable if it does not answer, or StoreRefused if the operator must act."""
        client = _Client(is_tls=urlsplit(url).scheme == "tls", public_nkey=options.pop("public_nkey", None))
        errors: list[str] = []

        async def on_error(error: Exception) -> None:
            errors.append(_words(error))
            if "permissions violation" in str(error).lower():
                self._denied = str(error).removeprefix("nats: ")

        async def on_closed() -> None:
            if self._client is client:
                self.lose(errors[-1] if errors else "the connection was lost")

        try:
            async with asyncio.timeout(2 * ANSWER_S):
                await client.connect(
                    url,
                    **options,
                    name=self._what,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(ANSWER_S),
                    ping_interval=int(PING_S),
                    max_outstanding_pings=1,
                    error_cb=on_error,
                    closed_cb=on_closed,
                    pending_size=0,
                )
                await self._begin(client)
        except BaseException as failed:
            self._forget_client()
            await _close(client)
            if isinstance(failed, NatsError | OSError | TimeoutError):
                raise self._refusal(url, failed, errors) from failed
            raise
        self._problem = self._denied = ""

    async def _begin(self, client: Client) -> None:
        """Check that the server supports what the store needs, and use `client` for all requests from now on. Raise
        StoreRefused if the server lacks something.
        """
        info: dict[str, Any] = client._server_info
        problem, payload = None, client.max_payload
        if not info.get("jetstream"):
            problem = "has no JetStream. Start it with -js, or with a jetstream block in its configuration."
        elif info.get("api_lvl", 0) < OLDEST_API_LEVEL:
            problem = f"is {info.get('version', 'old')}. Interlock needs nats-server {OLDEST_SERVER} or newer."
        elif payload < PAYLOAD_MIN:
            remedy = f"Set max_payload in its configuration to at least {PAYLOAD_MIN}."
            problem = f"takes messages of {payload} bytes. {remedy}"
        if problem is not None:
            raise StoreRefused(f"The NATS server at {self._servers} {problem}")
        prefix = f"{INBOXES}.{secrets.token_hex(_NONCE_BYTES)}"
        await client.subscribe(f"{prefix}.*", cb=self._on_answer, pending_msgs_limit=0, pending_bytes_limit=0)
        self._client, self._prefix = client, prefix
        self._lost.clear()

    async def _on_answer(self, message: Msg) -> None:
        answered = self._waiting.get(message.subject.rpartition(".")[2])
        if answered is not None:
            answered(message)

    def _forget_client(self) -> Client | None:
        """Stop using the current client and return it. Every request that still waits for an answer fails with
        Unavailable.
        """
        client, self._client = self._client, None
        if client is not None:
            self._lost.set()
            for answer in self._answers:
                if not answer.done():
                    answer.set_exception(self._unavailable())
        return client

    def _refusal(self, url: str, failed: BaseException, errors: list[str]) -> Exception:
        """Return the error for a failed attempt to connect: StoreRefused if the operator must change something, such as
        the credentials, otherwise Unavailable.
        """
        messages = " ".join([*errors, str(failed)])
        if "uthorization" in messages or "uthentication" in messages:
            return StoreRefused(
                f"The NATS server at {address(url)} does not take the credentials of this node. Correct the secret "
                "that store.nats_secret names."
            )
        if isinstance(failed, ssl.SSLError):
            return StoreRefused(f"The NATS server at {address(url)} is not trusted: {failed}.")
        reason = next((message for message in (*errors, _words(failed)) if message), "it is silent")
        return Unavailable(f"No NATS server answers at {address(url)} ({reason}). Start it, or correct store.nats_url.")


class _Client(Client):
    """A NATS client that sends its credentials only over TLS if the URL asks for TLS, even if the server offers a
    connection without it.
    """

    def __init__(self, *, is_tls: bool, public_nkey: str | None) -> None:
        super().__init__()
        self._is_tls, self._public_nkey = is_tls, public_nkey

    def _connect_command(self) -> bytes:
        if self._is_tls and not self._server_info.get("tls_required"):
            raise NatsError("the server offers no TLS")
        return super()._connect_command()


def _words(error: BaseException) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


def settle_with_message(answer: "asyncio.Future[Msg]") -> Answered:
    """Return a function that takes messages and sets the first one as the result of the future `answer`."""

    def settle(message: Msg) -> None:
        if not answer.done():
            answer.set_result(message)

    return settle


async def _close(client: Client) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(ANSWER_S):
            await client.close()


def decode(data: bytes) -> dict[str, Any]:
    """Decode a response of the JetStream API. Raise ApiError if it is an error response, and Damaged if it is no JSON
    object.
    """
    try:
        answer: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as nonsense:
        raise Damaged("the NATS server answers what is not JetStream's") from nonsense
    error = answer.get("error")
    if error is not None:
        raise ApiError(int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description", "")))
    return answer


# How a node says who it is to a NATS server: what its secret holds, as options of a connection.
#
# a credentials file      the text of it: a JWT and the seed that signs for it
# SU...                   the seed of an nkey
# user:password
# anything else           a token

_SEED = re.compile(r"SU[A-Z2-7]{56}")
_JWT = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s+-+END NATS USER JWT-+")
_USER_PREFIX = 20 << 3  # nkeys: the byte that becomes the U of a user's public key


def connect_options(secret: str) -> dict[str, Any]:
    """Return the options for `Client.connect` that authenticate the node with `secret`. For an nkey, they include its
    public key as `public_nkey`.
    """
    secret = secret.strip()
    jwt, seed = _JWT.search(secret), _SEED.search(secret)
    if jwt is not None:
        if seed is None:
            raise StoreRefused("The NATS credentials that store.nats_secret names hold no user seed (SU...).")
        token = jwt[1].encode()
        return {"user_jwt_cb": lambda: bytearray(token), "signature_cb": _signer(_key(seed[0]))}
    if seed is not None and seed[0] == secret:
        key = _key(secret)
        raw = bytes([_USER_PREFIX]) + key.public_key().public_bytes_raw()
        checksum = binascii.crc_hqx(raw, 0).to_bytes(2, "little")
        public_key = base64.b32encode(raw + checksum).decode().rstrip("=")
        return {"signature_cb": _signer(key), "public_nkey": public_key}
    if ":" in secret:
        user, _, password = secret.partition(":")
        return {"user": user, "password": password}
    return {"token": secret} if secret else {}


def _key(seed: str) -> Ed25519PrivateKey:
    """Return the private key that the seed of an nkey contains. Raise StoreRefused if the checksum is wrong."""
    raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise StoreRefused("The nkey seed that store.nats_secret names is not complete: its checksum is wrong.")
    return Ed25519PrivateKey.from_private_bytes(raw[2:34])


def _signer(key: Ed25519PrivateKey) -> Callable[[str], bytes]:
    return lambda nonce: base64.b64encode(key.sign(nonce.encode()))
