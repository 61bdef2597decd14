"""What can go wrong before a WebSocket stands, and whom we trust."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.net.in_process.test_http_client_tls import Authority
from tests.net.websocket_ends import PATIENCE_S, SUBPROTOCOL, RecordedMessages, port_of

from interlock.core.tls import tls_1_3
from interlock.net.websocket import DialFailed, DialledPipe, dial

UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def dialled(port: int, heard: RecordedMessages | None = None, scheme: str = "ws", **more: Any) -> DialledPipe:
    more.setdefault("timeout_s", PATIENCE_S)
    return await dial(
        f"{scheme}://127.0.0.1:{port}/ax",
        heard or RecordedMessages(),
        subprotocol=SUBPROTOCOL,
        max_bytes=10_000,
        **more,
    )


@contextlib.asynccontextmanager
async def answering(answer: bytes, *, hang_up: bool = True, asked: bool = True) -> AsyncIterator[int]:
    """A server that says these bytes to whatever it is asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if not hang_up:
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        done.set()

    done = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        if asked:
            await asyncio.wait_for(done.wait(), PATIENCE_S)


async def refusal(port: int, **more: Any) -> DialFailed:
    with pytest.raises(DialFailed) as failed:
        await dialled(port, **more)
    return failed.value


async def test_the_headers_and_the_subprotocol_are_sent() -> None:
    seen: list[Any] = []

    async def accept(peer: Any) -> None:
        seen.append(peer.request)
        await peer.wait_closed()

    async with websockets.serve(accept, "127.0.0.1", 0, subprotocols=[websockets.Subprotocol(SUBPROTOCOL)]) as server:
        heard = RecordedMessages()
        pipe = await dialled(port_of(server), heard, headers={"Authorization": "Bearer ils_x"})
        pipe.close()
        await heard.end()
    assert seen[0].headers["Authorization"] == "Bearer ils_x"
    assert seen[0].headers["Sec-WebSocket-Protocol"] == SUBPROTOCOL
    assert "Sec-WebSocket-Extensions" not in seen[0].headers


async def test_a_server_of_another_subprotocol_is_refused() -> None:
    async with websockets.serve(lambda peer: peer.wait_closed(), "127.0.0.1", 0) as server:
        assert SUBPROTOCOL in (await refusal(port_of(server))).reason


@pytest.mark.parametrize("status", [401, 403, 404, 500])
async def test_another_status_is_reported(status: int) -> None:
    async with answering(b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\nno" % status) as port:
        failed = await refusal(port)
    assert failed.status == status
    assert str(status) in failed.reason
    assert failed.unauthorised == (status in (401, 403))


async def test_a_redirect_is_not_followed() -> None:
    async with answering(b"HTTP/1.1 302 Found\r\nlocation: ws://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n") as port:
        assert (await refusal(port)).status == 302


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"\x00" * 500,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        UPGRADED + b"Sec-WebSocket-Accept: wrong\r\n\r\n",
        b"HTTP/1.1 200 " + b"x" * 100_000,
        b"HTTP/1.1 101 x\r\n" + b"a: b\r\n" * 10_000 + b"\r\n",
    ],
)
async def test_an_invalid_websocket_request_is_refused_with_a_reason(answer: bytes) -> None:
    async with answering(answer) as port:
        assert (await refusal(port)).reason


async def test_a_server_that_never_answers_is_given_up() -> None:
    async with answering(b"", hang_up=False) as port:
        assert "0.1 s" in (await refusal(port, timeout_s=0.1)).reason


async def test_an_address_where_nobody_answers_is_reported() -> None:
    async with answering(b"", asked=False) as port:
        pass
    assert "cannot be reached" in (await refusal(port)).reason


@pytest.mark.parametrize("url", ["http://127.0.0.1/ax", "ws:///ax", "127.0.0.1:7411", "", "ws://127.0.0.1/ax#part"])
async def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(DialFailed, match="not a WebSocket address"):
        await dial(url, RecordedMessages(), subprotocol=SUBPROTOCOL, max_bytes=1000)


@pytest.mark.parametrize(("name", "value"), [("x", "a\r\nb: c"), ("x\n", "a"), ("x", "\0"), ("größe", "a")])
async def test_a_header_cannot_smuggle_another(name: str, value: str) -> None:
    with pytest.raises(DialFailed, match="cannot be sent"):
        await dialled(1, headers={name: value})


async def test_a_password_in_the_address_is_in_no_message() -> None:
    with pytest.raises(DialFailed) as failed:
        await dial(
            "ws://me:secret@127.0.0.1:1/ax?token=secret", RecordedMessages(), subprotocol=SUBPROTOCOL, max_bytes=1000
        )
    assert "secret" not in str(failed.value)


async def test_bytes_behind_the_upgrade_are_delivered_after_the_dial_has_returned() -> None:
    async def accept(peer: Any) -> None:
        await peer.send("early")
        await peer.close(4409, "moved")

    async with websockets.serve(accept, "127.0.0.1", 0, subprotocols=[websockets.Subprotocol(SUBPROTOCOL)]) as server:
        heard = RecordedMessages()
        await dialled(port_of(server), heard)
        assert (heard.messages, heard.closed) == ([], [])
        assert await heard.end() == (4409, "moved")
        assert heard.messages == [b"early"]


@contextlib.asynccontextmanager
async def secured(context: ssl.SSLContext) -> AsyncIterator[int]:
    async with websockets.serve(
        lambda peer: peer.wait_closed(),
        "127.0.0.1",
        0,
        ssl=context,
        subprotocols=[websockets.Subprotocol(SUBPROTOCOL)],
        close_timeout=0.2,
    ) as server:
        yield port_of(server)


async def test_tls_1_3_with_a_trusted_certificate_passes(authority: Authority) -> None:
    async with secured(authority.server_context("127.0.0.1")) as port:
        heard = RecordedMessages()
        pipe = await dialled(port, heard, "wss", tls=tls_1_3(str(authority.trusted)))
        assert pipe.send(b"{}")
        pipe.close()
        await heard.end()


async def test_tls_1_2_is_refused_where_1_3_is_asked(authority: Authority) -> None:
    old = authority.server_context("127.0.0.1")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with secured(old) as port:
        failed = await refusal(port, scheme="wss", tls=tls_1_3(str(authority.trusted)))
        assert "no TLS connection" in failed.reason
        heard = RecordedMessages()
        pipe = await dialled(port, heard, "wss", tls=authority.client_context())
        pipe.close()
        await heard.end()


async def test_a_certificate_nobody_vouches_for_is_refused(authority: Authority, tmp_path: Path) -> None:
    async with secured(authority.server_context("127.0.0.1")) as port:
        assert "certificate" in (await refusal(port, scheme="wss", tls=tls_1_3())).reason
    async with secured(authority.server_context("127.0.0.2")) as port:
        assert "certificate" in (await refusal(port, scheme="wss", tls=tls_1_3(str(authority.trusted)))).reason
