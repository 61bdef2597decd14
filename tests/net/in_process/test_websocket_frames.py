"""Frames as a peer may cut them: both ends of our WebSocket against bytes written by hand (RFC 6455 5)."""

import asyncio
import contextlib
import os
import struct
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import websockets
from starlette.websockets import WebSocket
from tests.net import websocket_ends as ends
from tests.net.websocket_ends import MAX_BYTES, PATIENCE_S, End, RecordedMessages

from interlock.net.message_pipe import NORMAL
from interlock.net.websocket import dial
from interlock.wire.jsonrpc.oversized import MessageKind, Oversized

TEXT, CONT, PING, PONG, CLOSE = 0x1, 0x0, 0x9, 0xA, 0x8
FIN = 0x80


@pytest.fixture(params=[ends.dialled, ends.accepted], ids=["dialled", "accepted"])
def end(request: pytest.FixtureRequest) -> End:
    chosen: End = request.param
    return chosen


def frame(peer: object, data: bytes, opcode: int = TEXT, *, fin: bool = True, masked: bool | None = None) -> bytes:
    """As the peer is to write it: a client masks, a server does not."""
    if masked is None:
        masked = isinstance(peer, websockets.ClientConnection)
    bit = 0x80 if masked else 0
    head = bytes([(FIN if fin else 0) | opcode])
    if len(data) < 126:
        head += bytes([bit | len(data)])
    elif len(data) < 1 << 16:
        head += bytes([bit | 126]) + struct.pack("!H", len(data))
    else:
        head += bytes([bit | 127]) + struct.pack("!Q", len(data))
    if not masked:
        return head + data
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_frames_are_received_whole_however_they_are_cut(end: End, size: int) -> None:
    messages = [b"{}", b"x" * 125, b"y" * 126, '{"größe":1}'.encode(), b"z" * 300]
    async with end() as (_, heard, peer):
        for piece in pieces(b"".join(frame(peer, one) for one in messages), size):
            peer.transport.write(piece)
            await asyncio.sleep(0)
        await heard.until(lambda heard: len(heard.messages) == len(messages))
        assert heard.messages == messages


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, MAX_BYTES])
async def test_every_form_of_length_passes_both_ways(end: End, length: int) -> None:
    message = b"x" * length
    async with end() as (pipe, heard, peer):
        assert pipe.send(message)
        assert await asyncio.wait_for(peer.recv(), PATIENCE_S) == message.decode()
        peer.transport.write(frame(peer, message))
        await heard.until(lambda heard: bool(heard.messages))
        assert heard.messages == [message]


async def test_control_frames_between_the_parts_of_a_message_do_not_disturb_it(end: End) -> None:
    async with end() as (_, heard, peer):
        parts = [
            frame(peer, b"before"),
            frame(peer, b'{"a"', fin=False),
            frame(peer, b"hello", PING),
            frame(peer, b":1", CONT, fin=False),
            frame(peer, b"", PONG),
            frame(peer, b"}", CONT),
            frame(peer, b"after"),
        ]
        peer.transport.write(b"".join(parts))
        await heard.until(lambda heard: len(heard.messages) == 3)
        assert heard.messages == [b"before", b'{"a":1}', b"after"]


@pytest.mark.parametrize("broken", ["masking", "reserved", "opcode", "interleaved", "long ping", "fragmented ping"])
async def test_a_frame_that_breaks_the_rules_ends_the_connection_after_what_came_before(end: End, broken: str) -> None:
    async with end() as (pipe, heard, peer):
        masked = not isinstance(peer, websockets.ClientConnection)
        wrong = {
            "masking": frame(peer, b"{}", masked=masked),
            "reserved": bytes([0xC1]) + frame(peer, b"{}")[1:],
            "opcode": frame(peer, b"{}", 0x3),
            "interleaved": frame(peer, b"{", fin=False) + frame(peer, b"{}"),
            "long ping": frame(peer, b"x" * 126, PING),
            "fragmented ping": frame(peer, b"x", PING, fin=False),
        }[broken]
        peer.transport.write(frame(peer, b"first") + wrong + frame(peer, b"last"))
        code, reason = await heard.end()
        assert (code, heard.messages) == (1002, [b"first"])
        assert reason
        assert not pipe.send(b"{}")


async def test_a_head_that_announces_too_much_is_refused_before_anything_of_it_comes(end: End) -> None:
    async with end() as (_, heard, peer):
        masked = isinstance(peer, websockets.ClientConnection)
        peer.transport.write(frame(peer, b"first"))
        peer.transport.write(bytes([FIN | TEXT, (0x80 if masked else 0) | 127]) + struct.pack("!Q", 1 << 62))
        assert (await heard.end())[0] == 1009
        assert heard.messages == [b"first"]


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_frame_that_is_too_large_is_skipped_however_it_is_cut(
    end: End, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with end() as (pipe, heard, peer):
        monkeypatch.setattr(pipe, "_max_bytes", 300)
        over = b'{"result":"' + b"y" * 500 + b'","id":512345}'
        stream = b"".join((frame(peer, b"first"), frame(peer, over), frame(peer, over), frame(peer, b"last")))
        for piece in pieces(stream, size):
            peer.transport.write(piece)
            await asyncio.sleep(0)
        await heard.until(lambda heard: len(heard.messages) == 2)
        assert heard.messages == [b"first", b"last"]
        assert heard.oversized == [Oversized(300, MessageKind.RESPONSE, b"512345")] * 2


async def test_bytes_after_a_close_are_ignored(end: End) -> None:
    async with end() as (_, heard, peer):
        closing = frame(peer, struct.pack("!H", NORMAL) + b"bye", CLOSE)
        peer.transport.write(frame(peer, b"last") + closing + frame(peer, b"ghost"))
        assert await heard.end() == (NORMAL, "bye")
        assert heard.messages == [b"last"]


async def test_a_sink_that_closes_in_the_middle_receives_no_more(end: End) -> None:
    async with end() as (pipe, heard, peer):
        usual = heard.on_message

        def close(data: bytes) -> None:
            usual(data)
            pipe.close(4000, "enough")

        heard.on_message = close  # type: ignore[method-assign]
        peer.transport.write(frame(peer, b"one") + frame(peer, b"two") + frame(peer, b"three"))
        assert await heard.end() == (4000, "enough")
        assert heard.messages == [b"one"]


async def test_answers_to_what_came_together_are_all_sent_and_in_order(end: End) -> None:
    async with end() as (pipe, heard, peer):
        heard.on_message = lambda data: pipe.send(b"re: " + data)  # type: ignore[assignment,method-assign]
        peer.transport.write(b"".join(frame(peer, b"%d" % number) for number in range(50)))
        for number in range(50):
            assert await asyncio.wait_for(peer.recv(), PATIENCE_S) == f"re: {number}"


async def test_messages_sent_before_a_close_in_the_same_turn_arrive(end: End) -> None:
    async with end() as (pipe, heard, peer):
        for number in range(20):
            assert pipe.send(b"%d" % number)
        pipe.close(4000, "done")
        said = [await asyncio.wait_for(peer.recv(), PATIENCE_S) for _ in range(20)]
        assert said == [str(number) for number in range(20)]
        await asyncio.wait_for(peer.wait_closed(), PATIENCE_S)
        assert (peer.close_code, await heard.end()) == (4000, (4000, "done"))


async def test_a_client_that_does_not_wait_for_the_upgrade_is_cut_off() -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def door(socket: WebSocket) -> None:
        asked.set()
        await answered.wait()

    async with ends.serving(door) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(
            b"GET /ax HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        await asyncio.wait_for(asked.wait(), PATIENCE_S)
        writer.write(frame(None, b"{}", masked=True))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()
        answered.set()


async def test_frames_directly_after_the_upgrade_are_not_lost() -> None:
    """Also where it is cut in the middle of a frame."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
        accept = websockets.utils.accept_key(key.partition(b":")[2].strip().decode()).encode()
        answer = b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n"
        whole = answer % accept + b"Sec-WebSocket-Protocol: mcpax.v1\r\n\r\n"
        whole += frame(None, b"one") + frame(None, b"x" * 300)
        writer.write(whole[:-100])
        await writer.drain()
        await reader.read(1)  # a pong, once the first part was heard
        writer.write(whole[-100:])
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        heard = RecordedMessages()
        port = server.sockets[0].getsockname()[1]
        pipe = await dial(f"ws://127.0.0.1:{port}/ax", heard, subprotocol="mcpax.v1", max_bytes=MAX_BYTES)
        await heard.until(lambda heard: heard.messages == [b"one"])
        assert pipe.send(b"go on")
        await heard.until(lambda heard: len(heard.messages) == 2)
        assert heard.messages == [b"one", b"x" * 300]
        pipe.abort()
        await heard.end()
