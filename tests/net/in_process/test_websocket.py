"""One contract for both ends of a WebSocket: the dialling one and the accepting one."""

import asyncio
from typing import Any

import pytest
import websockets
from tests.net import websocket_ends as ends
from tests.net.websocket_ends import MAX_BYTES, PATIENCE_S, End

from interlock.net import websocket
from interlock.net.message_pipe import CUT, INTERNAL, NORMAL, NOT_UTF8, POLICY, TOO_BIG, UNACCEPTABLE
from interlock.wire.jsonrpc.oversized import MessageKind, Oversized


@pytest.fixture(params=[ends.dialled, ends.accepted], ids=["dialled", "accepted"])
def end(request: pytest.FixtureRequest) -> End:
    chosen: End = request.param
    return chosen


async def test_messages_pass_both_ways_whole_and_in_order(end: End) -> None:
    async with end() as (pipe, heard, peer):
        ours = [b'{"n":%d,"text":"%b"}' % (n, "größe".encode()) for n in range(200)]
        for message in ours:
            assert pipe.send(message)
        for message in ours:
            assert await asyncio.wait_for(peer.recv(), PATIENCE_S) == message.decode()
        for message in ours:
            await peer.send(message.decode())
        await heard.until(lambda heard: len(heard.messages) == len(ours))
        assert heard.messages == ours


async def test_a_message_in_many_frames_arrives_as_one(end: End) -> None:
    async with end() as (_, heard, peer):
        await peer.send(["{", '"a"', ":", "", "1", "}"])
        await heard.until(lambda heard: bool(heard.messages))
        assert heard.messages == [b'{"a":1}']


async def test_a_message_of_exactly_the_limit_passes_and_one_byte_more_ends_the_connection(end: End) -> None:
    async with end() as (pipe, heard, peer):
        await peer.send("x" * MAX_BYTES)
        await heard.until(lambda heard: bool(heard.messages))
        answer = '{"result":{"id":7,"text":"' + "x" * MAX_BYTES + '"},"id":5}'
        await peer.send(answer)
        await peer.send(iter(answer[start : start + 10_000] for start in range(0, len(answer), 10_000)))
        await peer.send("x" * (MAX_BYTES + 1))
        await peer.send("{}")
        await heard.until(lambda heard: len(heard.messages) == 2)
        assert heard.messages[1] == b"{}"
        response = Oversized(MAX_BYTES, MessageKind.RESPONSE, b"5")
        assert heard.oversized == [response, response, Oversized(MAX_BYTES, MessageKind.UNKNOWN)]
        assert pipe.send(b"{}")


async def test_a_message_without_end_in_small_frames_ends_the_connection(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "ENDLESS", 2)
    async with end() as (_, heard, peer):
        with pytest.raises(websockets.ConnectionClosed):
            await peer.send(iter(["x" * 10_000] * 1000))
        assert (await heard.end())[0] == TOO_BIG
        assert heard.messages == []


async def test_a_binary_frame_ends_the_connection_and_reaches_nobody(end: End) -> None:
    async with end() as (_, heard, peer):
        await peer.send(b"{}")
        assert await heard.end() == (UNACCEPTABLE, "sent a binary frame")
        await asyncio.wait_for(peer.wait_closed(), PATIENCE_S)
        assert peer.close_code == UNACCEPTABLE
        assert heard.messages == []


async def test_text_that_is_no_utf8_ends_the_connection(end: End) -> None:
    async with end() as (_, heard, peer):
        await peer.send(b'{"a":"\xff"}', text=True)
        assert (await heard.end())[0] == NOT_UTF8
        assert heard.messages == []


async def test_a_close_is_sent_with_our_reason_after_queued_messages(end: End) -> None:
    async with end() as (pipe, heard, peer):
        assert pipe.send(b'{"last":true}')
        pipe.close(POLICY, "namespace_conflict")
        pipe.close(NORMAL, "again")
        assert not pipe.send(b"{}")
        assert await asyncio.wait_for(peer.recv(), PATIENCE_S) == '{"last":true}'
        await asyncio.wait_for(peer.wait_closed(), PATIENCE_S)
        assert (peer.close_code, peer.close_reason) == (POLICY, "namespace_conflict")
        assert await heard.end() == (POLICY, "namespace_conflict")


async def test_a_reason_longer_than_a_frame_holds_is_cut_and_not_an_error(end: End) -> None:
    async with end() as (pipe, heard, peer):
        pipe.close(POLICY, "ö" * 500)
        await asyncio.wait_for(peer.wait_closed(), PATIENCE_S)
        assert peer.close_reason == "ö" * 61
        assert (await heard.end())[0] == POLICY


async def test_a_close_by_the_peer_is_reported_with_its_reason_after_its_last_message(end: End) -> None:
    async with end() as (_, heard, peer):
        await peer.send('{"last":true}')
        await peer.close(4409, "moved")
        assert await heard.end() == (4409, "moved")
        assert heard.messages == [b'{"last":true}']


async def test_a_cut_connection_is_reported_at_once(end: End) -> None:
    async with end() as (pipe, heard, peer):
        peer.transport.abort()
        code, reason = await heard.end()
        assert code in (CUT, 1005)  # an ASGI server cannot say 1006 once a connection was open
        assert reason
        assert not pipe.send(b"{}")


async def test_a_peer_that_breaks_the_framing_is_cut_off(end: End) -> None:
    async with end() as (_, heard, peer):
        peer.transport.write(b"\xff" * 64)
        code, reason = await heard.end()
        assert code == 1002
        assert reason


async def test_a_peer_that_does_not_read_gets_no_more_than_the_bound_and_then_loses_the_connection(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "STALL_AFTER_S", 0.2)
    async with end() as (pipe, heard, peer):
        peer.transport.pause_reading()
        message, taken = b"x" * 50_000, 0
        async with asyncio.timeout(PATIENCE_S):
            while pipe.send(message):
                taken += 1
                await asyncio.sleep(0)
        refused = [pipe.send(message) for _ in range(100)]
        assert not any(refused)
        assert await heard.end() == (CUT, "stopped reading")


async def test_a_writer_waits_until_the_peer_has_read_down_to_a_mark(end: End) -> None:
    async with end() as (pipe, heard, peer):
        assert isinstance(pipe, websocket.FramedPipe)
        await asyncio.wait_for(pipe.drain(50_000), PATIENCE_S)  # there is nothing to wait for
        peer.transport.pause_reading()
        async with asyncio.timeout(PATIENCE_S):
            while pipe.unsent_bytes <= 100_000:
                assert pipe.send(b"x" * 50_000)
                await asyncio.sleep(0)
        drained = asyncio.create_task(pipe.drain(50_000))
        await asyncio.sleep(0)
        assert not drained.done()
        assert pipe.send(b"{}")  # others may go on sending below the bound of the pipe
        peer.transport.resume_reading()
        reader = asyncio.create_task(read_all(peer))
        await asyncio.wait_for(drained, PATIENCE_S)
        assert pipe.unsent_bytes <= 50_000
        assert not heard.closed
        reader.cancel()


async def read_all(peer: Any) -> None:
    async for _ in peer:
        pass


async def test_a_waiting_writer_wakes_when_the_connection_is_lost(end: End) -> None:
    async with end() as (pipe, _, peer):
        assert isinstance(pipe, websocket.FramedPipe)
        peer.transport.pause_reading()
        async with asyncio.timeout(PATIENCE_S):
            while pipe.unsent_bytes <= 100_000:
                pipe.send(b"x" * 50_000)
                await asyncio.sleep(0)
        drained = asyncio.create_task(pipe.drain(50_000))
        await asyncio.sleep(0)
        pipe.abort()
        await asyncio.wait_for(drained, PATIENCE_S)


async def test_a_slow_peer_gets_everything_it_was_promised(end: End) -> None:
    async with end() as (pipe, heard, peer):
        sent = received = 0
        message = b"x" * 50_000
        async with asyncio.timeout(PATIENCE_S):
            while received < 200:
                while sent < 200 and pipe.send(message):
                    sent += 1
                assert await peer.recv() == message.decode()
                received += 1
        assert sent == 200
        assert heard.closed == []


async def test_a_paused_pipe_holds_the_flood_back_and_loses_nothing(end: End) -> None:
    async with end() as (pipe, heard, peer):
        await peer.send("first")
        await heard.until(lambda heard: bool(heard.messages))
        pipe.pause_reading()
        sending = asyncio.create_task(_send_many(peer, 400))
        await asyncio.wait({sending}, timeout=0.3)
        assert not sending.done()
        before = len(heard.messages)
        assert before < 50
        pipe.resume_reading()
        await heard.until(lambda heard: len(heard.messages) == 401)
        await sending


async def _send_many(peer: websockets.ClientConnection, count: int) -> None:
    for _ in range(count):
        await peer.send("x" * 50_000)


@pytest.mark.req("AX-6.3-3")
async def test_a_peer_that_answers_pings_stays_and_a_silent_peer_is_cut_off(end: End) -> None:
    assert (websocket.PING_EVERY_S, websocket.PONG_WITHIN_S) == (20.0, 10.0)
    async with end(ping_every_s=0.05, pong_within_s=0.1) as (pipe, heard, peer):
        await asyncio.wait({asyncio.create_task(peer.wait_closed())}, timeout=0.5)
        assert heard.closed == []
        peer.transport.pause_reading()
        code, _ = await heard.end()
        assert code in (INTERNAL, 1005)  # an ASGI server keeps its reason to itself
        assert not pipe.send(b"{}")


async def test_a_ping_of_the_peer_is_answered(end: End) -> None:
    async with end() as (_, heard, peer):
        await asyncio.wait_for(await peer.ping(), PATIENCE_S)
        assert heard.messages == []


async def test_an_aborted_pipe_is_closed_without_a_word(end: End) -> None:
    async with end() as (pipe, heard, peer):
        pipe.abort()
        await heard.end()
        await asyncio.wait_for(peer.wait_closed(), PATIENCE_S)
        assert peer.close_code == CUT
