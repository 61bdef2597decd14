"""Remote drivers: which transport is spoken, and what goes over the wire for a call."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from tests.drivers.driver_stage import DriverStage, call_tool, caller, driver_stage, lend_link, wait_until_settled
from tests.servers.start import raw, serving

from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.provider.provider import DriverProvider

KEY = "driven-mcp@1"
ONCE: dict[str, Any] = {"connection_options": {"max_retries": 0, "timeout_ms": 5000}}


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[DriverStage]:
    async with driver_stage(tmp_path) as stage:
        yield stage


class Wire:
    """What passes between a client and a server, and over how many connections."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self.sent = bytearray()
        self.connections = 0
        self.url = ""

    async def __aenter__(self) -> "Wire":
        self._listener = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}{self._server.path}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection(self._server.hostname, self._server.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, record: bool) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    if record:
                        self.sent += data
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, back, True), pump(there, writer, False))

    def posts(self, method: str) -> int:
        return len(re.findall(rb'"method":"%b"' % re.escape(method.encode()), bytes(self.sent)))


def remote(stage: DriverStage, url: str, transport: str, **more: Any) -> DriverProvider:
    options = {**ONCE, **more}
    return stage.provider(server={"kind": "remote", "url": url}, transport=transport, **options)


@pytest.mark.req("AIP-transport-8")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("stream", [(), ("--stream",)], ids=["json", "events"])
async def test_ten_calls_are_ten_posts_over_connections_that_are_used_again(
    stage: DriverStage, era: str, stream: tuple[str, ...]
) -> None:
    with serving(raw("echo", "--era", era, *stream)) as url:
        async with Wire(url) as wire:
            provider = await wait_until_settled(remote(stage, wire.url, "http"))
            assert provider.state is DriverState.READY
            for number in range(10):
                lease = await lend_link(provider)
                assert (await call_tool(lease, n=number))["n"] == number
                lease.release()
            assert wire.posts("tools/call") == 10
            assert wire.connections <= 4
            if era == "modern":
                assert b"mcp-method: tools/list\r\n" in bytes(wire.sent)
            await provider.stop()


@pytest.mark.req("AIP-transport-10")
async def test_a_server_declared_as_sse_that_moved_to_streamable_http_is_reached_with_a_warning(
    stage: DriverStage,
) -> None:
    with serving(raw("echo", "--era", "legacy")) as url:
        provider = await wait_until_settled(remote(stage, url, "sse"))
        assert provider.state is DriverState.READY
        assert stage.node.calls.keepers[KEY].link.transport == "http"
        (warning,) = [problem for problem in provider.problems if problem.code == "transport_mismatch"]
        assert warning.severity == "warning"
        assert "http" in warning.message
        lease = await lend_link(provider)
        assert (await call_tool(lease, n=1))["n"] == 1
        lease.release()


@pytest.mark.req("AIP-transport-10")
async def test_a_server_declared_as_http_that_only_speaks_sse_is_reached_with_a_warning(stage: DriverStage) -> None:
    with serving(raw("echo", "--era", "legacy")) as url:
        provider = await wait_until_settled(remote(stage, url.replace("/mcp", "/sse"), "http"))
        assert provider.state is DriverState.READY
        assert stage.node.calls.keepers[KEY].link.transport == "sse"
        assert "transport_mismatch" in [problem.code for problem in provider.problems]


@pytest.mark.req("AIP-transport-10")
async def test_a_refused_credential_is_no_reason_to_try_the_other_transport(stage: DriverStage) -> None:
    with serving(raw("echo", "--era", "legacy", "--token", "secret")) as url:
        async with Wire(url) as wire:
            auth = {"type": "bearer", "secret": "WRONG"}
            await stage.node.links.credentials.set_secret("wrong", "not-it")
            server = {"kind": "remote", "url": wire.url, "auth": auth}
            provider = await wait_until_settled(stage.provider(server=server, transport="http", **ONCE))
            assert provider.state is DriverState.UNAUTHED
            assert b"GET " not in bytes(wire.sent)
            error = await provider.acquire(caller())
            assert isinstance(error, DriverRefusal)
            assert error.code == "auth_required"


@pytest.mark.req("AIP-transport-10")
async def test_a_server_that_cannot_be_reached_is_not_tried_with_the_other_transport(stage: DriverStage) -> None:
    asked_for: list[bytes] = []

    async def failing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked_for.append(await reader.readline())
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(failing, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    provider = await wait_until_settled(remote(stage, f"http://127.0.0.1:{port}/mcp", "http"))
    assert provider.state is DriverState.UNAVAILABLE
    assert {line.split()[0] for line in asked_for} == {b"POST"}
    listener.close()


class EventStreamServer:
    """HTTP+SSE of 2024-11-05, which answers its calls when `together` have come, the last one first."""

    def __init__(self, together: int, announced: str = "/post/here?session=7") -> None:
        self._together, self.announced = together, announced
        self.heads: list[str] = []  # the first line of every request
        self._writers: list[asyncio.StreamWriter] = []
        self._streams: list[asyncio.StreamWriter] = []
        self._calls: list[dict[str, Any]] = []
        self.url = ""

    async def __aenter__(self) -> "EventStreamServer":
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/events"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head.splitlines()[0])
                if head.startswith("GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
                    writer.write(f"event: endpoint\ndata: {self.announced}\n\n".encode())
                    self._streams.append(writer)
                    return
                length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                assert length is not None
                message = json.loads(await reader.readexactly(int(length[1])))
                if not self._streams or " /events " in head.splitlines()[0]:
                    writer.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
                    continue
                self._take(message)
                writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")

    def _take(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "initialize":
                greeting = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {}}
                self._answer(message, greeting | {"serverInfo": {"name": "events", "version": "1"}})
            case "tools/list":
                self._answer(message, {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
            case "tools/call":
                self._calls.append(message)
                if len(self._calls) == self._together:
                    for call in reversed(self._calls):
                        self._answer(call, {"content": [], "structuredContent": call["params"]["arguments"]})

    def _answer(self, request: dict[str, Any], result: dict[str, Any]) -> None:
        said = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result})
        self._streams[-1].write(f"event: message\ndata: {said}\n\n".encode())


@pytest.mark.req("AIP-transport-7")
async def test_twenty_calls_at_once_share_one_event_stream_and_are_answered_by_id(stage: DriverStage) -> None:
    async with EventStreamServer(together=20) as server:
        provider = await wait_until_settled(remote(stage, server.url, "sse"))
        assert provider.state is DriverState.READY, provider.reason
        lease = await lend_link(provider)
        answers = await asyncio.gather(*(call_tool(lease, n=number) for number in range(20)))
        lease.release()
        assert [answer["n"] for answer in answers] == list(range(20))
        assert [head for head in server.heads if head.startswith("GET")] == ["GET /events HTTP/1.1"]
        posts = {head for head in server.heads if head.startswith("POST")}
        assert posts == {"POST /post/here?session=7 HTTP/1.1"}
        await provider.stop()


@pytest.mark.req("AIP-transport-7")
@pytest.mark.parametrize(
    ("announced", "reason"),
    [
        ("http://{other}/post", "on another host"),
        ("//{other}/post", "on another host"),
        ("https://{own}/post", "on another host"),
        ("http://[", "no address"),
    ],
)
async def test_an_endpoint_of_another_origin_is_refused_and_receives_nothing(
    stage: DriverStage, announced: str, reason: str
) -> None:
    async with EventStreamServer(together=1) as other, EventStreamServer(together=1) as server:
        own, elsewhere = urlsplit(server.url).netloc, urlsplit(other.url).netloc
        server.announced = announced.format(own=own, other=elsewhere)
        provider = await wait_until_settled(remote(stage, server.url, "sse"))
        assert provider.state is DriverState.UNAVAILABLE
        assert provider.reason == f"its SSE endpoint is {reason}"
        assert other.heads == []
        # As always, the other transport was tried at the URL that the driver names (AIP-transport-10).
        assert set(server.heads) <= {"GET /events HTTP/1.1", "POST /events HTTP/1.1"}


async def test_a_query_with_a_secret_is_part_of_the_url_on_the_wire_alone(stage: DriverStage) -> None:
    await stage.node.links.credentials.set_secret("api-key", "s3cret&more")
    with serving(raw("echo", "--era", "legacy")) as url:
        async with Wire(url) as wire:
            server = {"kind": "remote", "url": wire.url, "query": {"key": "${secrets.API_KEY}"}}
            kept = [{"slug": "api-key", "name": "Key", "description": "Its key."}]
            provider = await wait_until_settled(stage.provider(server=server, transport="http", secrets=kept, **ONCE))
            assert b"POST /mcp?key=s3cret%26more HTTP/1.1" in bytes(wire.sent)
            assert "s3cret" not in str(stage.node.operations.links.list_all())
            assert "s3cret" not in (provider.reason or "")


async def test_a_remote_server_is_not_put_to_sleep(stage: DriverStage) -> None:
    with serving(raw("echo", "--era", "legacy")) as url:
        provider = await wait_until_settled(remote(stage, url, "http", metadata={"idle_timeout_ms": 1000}))
        instance = provider._instances.find(None)  # type: ignore[union-attr]
        assert instance is not None
        assert instance.watch is None
