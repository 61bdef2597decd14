"""The client of a node's operator endpoint: HTTP over run/admin.sock, or over a URL with a token.

The client is synchronous and opens one connection for each request, because most commands send only one. An answer
keeps its bytes, so that --json can print them unchanged. An error from the node is raised as `Refused`, with the node's
code and message and a hint that names the next command. If the node cannot be reached, `Unreachable` is raised.
"""

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from interlock.cli.terminal.errors import BadUsage, Unreachable
from interlock.operator.api import ErrorAnswer
from interlock.operator.operation import REFUSED, Operation
from interlock.wire.refusal import Refused
from interlock.wire.sse import SseParser

T = TypeVar("T")

TIMEOUT_S = 15.0
ANSWER_BYTES_MAX = 256 * 1024 * 1024  # 10,000 tools with long descriptions stay far below
EVENT_BYTES_MAX = 16 * 1024 * 1024  # 10,000 tools with proposed classes stay far below
READ_BYTES = 64 * 1024
STREAM_TIMEOUT_S = 60.0  # a node sends something every 15 seconds

LISTED_BY = {
    "driver": "interlock drivers list",
    "approval": "interlock approvals",
    "tool": "interlock tools list",
    "token": "interlock access list",
    "secret": "interlock secrets list",
}

OPERATOR_URL = "--url takes the operator URL of a node, port 7412 unless configured"
NOT_RUNNING_HINT = "start one with interlock serve, or name its configuration with --config"


@dataclass(eq=False)
class Answer:
    """The reply of an operation, encoded as JSON. --json prints these bytes unchanged."""

    raw: bytes

    @cached_property
    def value(self) -> Any:
        return self.as_(object)

    def as_(self, shape: type[T]) -> T:
        """Decode the reply as a value of this type. Raise Refused if the reply does not have this type."""
        try:
            return msgspec.json.decode(self.raw, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError):
            hint = "compare interlock version with the version of the node"
            why = "the node answered in a form this version does not know"
            raise Refused("unexpected_answer", why, hint=hint) from None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass(eq=False)
class OperatorClient:
    """A client of the operator endpoint. `url` is None for the node of this machine's data folder."""

    connect: Callable[[float], http.client.HTTPConnection]
    _: KW_ONLY
    url: str | None = None
    token: str | None = None
    data: Path | None = None

    @classmethod
    def of_data(cls, folder: Path) -> "OperatorClient":
        return cls(lambda timeout: _UnixConnection(folder / "run" / "admin.sock", timeout), data=folder)

    @classmethod
    def at_url(cls, url: str, token: str | None) -> "OperatorClient":
        checked = check_url(url)
        return cls(lambda timeout: http_connection(checked, timeout), url=checked, token=token)

    def call(
        self, operation: Operation[Any], *, body: object = None, timeout: float = TIMEOUT_S, **arguments: object
    ) -> Answer:
        """Call an operation and return its reply. `arguments` are its path and query parameters. Raise Refused if the
        node reports an error, and Unreachable if the node does not answer.
        """
        with self._request(operation, body, timeout, arguments) as response:
            return Answer(response.read(ANSWER_BYTES_MAX))

    def follow(
        self, operation: Operation[Any], on_event: Callable[[Answer], None], *, body: object = None, **arguments: object
    ) -> None:
        """Call an operation whose reply is a stream, and call `on_event` with each event until the stream ends. Raise
        the same errors as `call`.
        """
        parser = SseParser(EVENT_BYTES_MAX)
        with self._request(operation, body, STREAM_TIMEOUT_S, arguments) as response:
            while data := response.read1(READ_BYTES):
                for event in parser.feed(data):
                    if event.event == REFUSED:
                        raise _refused(409, event.data)
                    on_event(Answer(event.data))

    @contextmanager
    def _request(
        self, operation: Operation[Any], body: object, timeout: float, arguments: Mapping[str, object]
    ) -> Iterator[http.client.HTTPResponse]:
        """Send the request of an operation and yield the response, if the node does not refuse the request."""
        path, query = operation.target(arguments, lambda part: quote(part, safe=""))
        prefix = urlsplit(self.url).path.rstrip("/") if self.url else ""
        target = prefix + path
        if query:
            target += "?" + urlencode(query)
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        encoded = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            encoded = msgspec.json.encode(body)
        connection = self.connect(timeout)
        try:
            connection.request(operation.method, target, body=encoded, headers=headers)
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                raise _refused(response.status, response.read(ANSWER_BYTES_MAX))
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable_error(error) from error
        finally:
            connection.close()

    def _unreachable_error(self, error: Exception) -> Refused:
        match error:
            case PermissionError():
                why = "this node belongs to another user of the machine"
                return Refused("not_permitted", why, hint="use --url with an operator token")
            case FileNotFoundError() | ConnectionRefusedError() if self.url is None:
                why, details = f"no node is running for the data folder {self.data}", {"data": str(self.data)}
                return Unreachable("not_running", why, hint=NOT_RUNNING_HINT, details=details)
            case OSError() if self.url is None and "too long" in str(error):
                why = "the data folder's path is too long for a socket in it"
                return Refused("path_too_long", why, hint="choose a shorter one with --data")
        return unreachable(self.url, error)


def http_connection(url: str, timeout: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, parts.port, timeout=timeout)


def check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        usable = usable and url.isascii() and url.isprintable() and " " not in url
    except ValueError:
        usable = False
    if not usable:
        hint = "write it as http://HOST:PORT or https://HOST"
        raise BadUsage("invalid_url", f"not a URL of a node: {url}", hint=hint)
    return url


def unreachable(url: str | None, error: Exception) -> Refused:
    where = f"the node at {url}" if url else "the node"
    hint = "is it running, and is the URL right?"
    match error:
        case TimeoutError():
            what = "did not answer in time"
        case ssl.SSLError():
            what = "has no certificate that this machine trusts"
            hint = "SSL_CERT_FILE=ca.pem names the CA; --url must be a name that is in the certificate"
        case socket.gaierror():
            what = "has an unknown host name"
        case ConnectionRefusedError():
            what = "does not listen"
        case _:
            what = "broke off the connection"
    return Unreachable("unreachable", f"{where} {what}", hint=hint)


def _refused(status: int, raw: bytes) -> Refused:
    try:
        body = msgspec.json.decode(raw, type=ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        why = f"HTTP {status}, and not from an operator endpoint"
        return Refused("unexpected_answer", why, hint=OPERATOR_URL, details={"status": status})
    return refused_with_hint(status, body)


def refused_with_hint(status: int, body: ErrorAnswer) -> Refused:
    """Return the exception for an operation that the node refused, with a hint about what to do next."""
    hint = body.details.get("hint")
    hint = hint if isinstance(hint, str) else None
    if status == 401:
        hint = "set INTERLOCK_TOKEN to a token from interlock access token --for operator --name NAME"
    nearest, alternatives = body.details.get("nearest"), body.details.get("known")
    if isinstance(nearest, list) and nearest:
        hint = "did you mean " + " or ".join(str(name) for name in nearest) + "?"
    elif isinstance(alternatives, list) and alternatives:
        hint = "there are " + ", ".join(str(name) for name in alternatives)
    elif status == 404 and nearest is None:
        hint = OPERATOR_URL
    elif nearest is not None:
        hint = next((f"{verb} shows them" for what, verb in LISTED_BY.items() if what in body.details), None)
    return Refused(body.error, body.message, hint=hint, details=body.details)
