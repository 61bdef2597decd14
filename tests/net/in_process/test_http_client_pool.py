"""Which connection carries which request, and what becomes of requests that get none?"""

import asyncio
import time
from typing import Any

import pytest
from tests.net.http_client_peer import (
    BOUND_S,
    OK,
    STREAM,
    Peer,
    Server,
    Sink,
    all_of,
    chunk,
    client_of,
    post,
    serving,
    turns,
)
from tests.support.reserved_ports import reserve_port

from interlock.net.http import client as http
from interlock.net.http.client import HttpClient
from interlock.net.http.connection import FailureKind, Handle, HttpFailure


async def echo(peer: Peer) -> None:
    """Answer every request with its own body until the client goes."""
    try:
        while True:
            body = (await peer.request()).partition(b"\r\n\r\n")[2]
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        pass


async def echo_all(server: Server) -> None:
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(echo(await server.peer()))


async def answered_over(server: Server, client: HttpClient, answer: bytes = OK) -> Peer:
    """Open a connection by one whole exchange."""
    sink = post(client)
    peer = await server.peer()
    await peer.serve(answer)
    await sink.answer()
    return peer


async def test_requests_in_sequence_use_one_connection() -> None:
    async with serving() as server, client_of(server) as client:
        peer = await answered_over(server, client)
        for number in range(50):
            sink = post(client, b"%d" % number)
            assert (await peer.request()).endswith(b"\r\n\r\n%d" % number)
            await peer.send(OK)
            assert await sink.answer() == (200, b"ok")
        assert server.accepted == 1


async def test_a_stream_that_ended_in_order_leaves_its_connection_to_the_next_request() -> None:
    async with serving() as server, client_of(server) as client:
        first = post(client)
        peer = await server.peer()
        await peer.serve(STREAM + chunk(b"data: 1\n\n") + b"0\r\n\r\n")
        await first.end()
        second = post(client)
        await peer.serve(OK)
        assert await second.answer() == (200, b"ok")
        assert server.accepted == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=1\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nKeep-Alive: max=5, Timeout=0\r\ncontent-length: 2\r\n\r\nok",
        OK + b"garbage",
        OK + OK,
        OK + b"HTTP/1.1 2",
        b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\nok",
    ],
)
async def test_a_connection_that_cannot_be_trusted_again_is_closed_after_its_answer(answer: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        peer = await answered_over(server, client, answer)
        assert await peer.eof() == b""
        await answered_over(server, client)
        assert server.accepted == 2


@pytest.mark.parametrize(
    "value", [b"timeout=5", b"timeout=5, max=100", b"max=5", b"timeout=soon", b"timeout=" + b"9" * 50]
)
async def test_a_server_that_keeps_connections_is_asked_again_on_the_same_connection(value: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        answer = b"HTTP/1.1 200 OK\r\nKeep-Alive: %b\r\ncontent-length: 2\r\n\r\nok" % value
        peer = await answered_over(server, client, answer)
        second = post(client)
        await peer.serve(answer)
        assert await second.answer() == (200, b"ok")
        assert server.accepted == 1


async def test_a_connection_is_closed_before_the_server_would_time_it_out() -> None:
    async with serving() as server, client_of(server) as client:
        began = time.monotonic()
        peer = await answered_over(
            server, client, b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=2\r\ncontent-length: 2\r\n\r\nok"
        )
        assert await peer.eof() == b""
        assert 0.9 < time.monotonic() - began < 2


async def test_idle_connections_are_closed_and_a_busy_connection_is_not() -> None:
    async with serving() as server, client_of(server, idle_s=0.05) as client:
        stream = post(client)
        streaming = await server.peer()
        await streaming.request()
        await streaming.send(STREAM)
        idle = await answered_over(server, client)
        assert await idle.eof() == b""
        await streaming.send(b"0\r\n\r\n")
        assert await stream.end() == ("stream_end",)
        assert await streaming.eof() == b""


async def test_an_idle_connection_that_the_server_closes_is_not_used() -> None:
    async with serving() as server, client_of(server) as client:
        peer = await answered_over(server, client)
        await peer.close()
        await turns()
        await answered_over(server, client)
        assert server.accepted == 2


async def test_a_connection_that_is_just_closing_is_not_used() -> None:
    async with serving() as server, client_of(server) as client:
        peer = await answered_over(server, client)
        peer.writer.close()
        async with asyncio.timeout(BOUND_S):
            while not client._idle[0].is_closing():
                await turns(1)
        await answered_over(server, client)
        assert server.accepted == 2


async def test_the_connection_used_last_is_used_first() -> None:
    async with serving() as server, client_of(server) as client:
        sinks = [post(client), post(client)]
        earlier, later = await server.peer(), await server.peer()
        await earlier.serve(OK)
        await later.serve(OK)
        for sink in sinks:
            await sink.answer()
        third = post(client)
        await later.serve(OK)
        assert await third.answer() == (200, b"ok")


@pytest.mark.parametrize("seconds", [0, 1])
async def test_a_server_that_keeps_no_connections_is_not_asked_again_on_the_same_connection(seconds: int) -> None:
    async with serving() as server, client_of(server, max_connections=1) as client:
        sinks = [post(client), post(client)]
        for _ in sinks:
            peer = await server.peer()
            await peer.serve(b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=%d\r\ncontent-length: 2\r\n\r\nok" % seconds)
            assert await peer.eof() == b""
        assert [await sink.answer() for sink in sinks] == [(200, b"ok")] * 2


@pytest.mark.parametrize("bytes_nobody_asked_for", [OK, b"x", b"HTTP/1.1 408 Request Timeout\r\n\r\n", b"\r\n"])
async def test_an_idle_connection_that_gets_bytes_is_closed(bytes_nobody_asked_for: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        peer = await answered_over(server, client)
        await peer.send(bytes_nobody_asked_for)
        assert await peer.eof() == b""
        await answered_over(server, client)
        assert server.accepted == 2


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_used_connection_that_closes_without_an_answer_is_not_safe_to_retry(how: str) -> None:
    async with serving() as server, client_of(server) as client:
        peer = await answered_over(server, client)
        sink = post(client)
        await peer.request()
        await getattr(peer, how)()
        failure = await sink.failure()
        assert (failure.kind, failure.retry_safe) == (FailureKind.LOST_BEFORE_ANSWER, False)
        assert server.accepted == 1


async def test_requests_beyond_the_connections_wait_their_turn() -> None:
    async with serving() as server, client_of(server, max_connections=2) as client:
        sinks = [post(client, b"%d" % number) for number in range(6)]
        peers = [await server.peer(), await server.peer()]
        order = []
        for _ in range(3):
            for peer in peers:
                order.append((await peer.request())[-1:])
            for peer in peers:
                await peer.send(OK)
        assert [await sink.answer() for sink in sinks] == [(200, b"ok")] * 6
        assert sorted(order[:2]) == [b"0", b"1"]
        assert order[2:] == [b"2", b"3", b"4", b"5"]
        assert server.accepted == 2


async def test_a_request_made_from_an_answer_goes_behind_those_that_wait() -> None:
    async with serving() as server, client_of(server, max_connections=1) as client:
        first, second, third = post(client, b"1"), post(client, b"2"), Sink()
        first.hooks["answer"] = lambda: post(client, b"3", third)
        peer = await server.peer()
        assert [request[-1:] for request in await peer.serve(OK, OK, OK)] == [b"1", b"2", b"3"]
        assert await second.answer() == await third.answer() == (200, b"ok")


async def test_a_full_queue_refuses_and_says_that_nothing_was_sent() -> None:
    async with serving() as server, client_of(server, max_connections=1, max_waiting=2) as client:
        peer = await answered_over(server, client)
        sinks = [post(client) for _ in range(3)]
        refused = post(client)
        assert refused.events == []
        failure = await refused.failure()
        assert (failure.kind, failure.retry_safe) == (FailureKind.BUSY, True)
        await peer.serve(OK, OK, OK)
        assert [await sink.answer() for sink in sinks] == [(200, b"ok")] * 3


async def test_after_many_streams_no_more_connections_stay_than_are_worth_keeping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streams may have waited for people; that many connections at once is nothing that calls will need."""
    monkeypatch.setattr(http, "IDLE_AFTER_STREAMS_MAX", 3)
    async with serving() as server, client_of(server) as client:
        sinks = [post(client) for _ in range(10)]
        peers = [await server.peer() for _ in sinks]
        for peer in peers:
            await peer.serve(STREAM + chunk(b"data: 1\n\n") + b"0\r\n\r\n")
        await all_of(sink.end() for sink in sinks)
        assert len(client._idle) == 3
        assert await all_of(peer.eof() for peer in peers[3:]) == [b""] * 7
        await answered_all(client, peers[:3])
        assert len(client._idle) == 3


async def answered_all(client: HttpClient, peers: list[Peer]) -> None:
    sinks = [post(client) for _ in peers]
    for peer in peers:
        await peer.serve(OK)
    assert await all_of(sink.answer() for sink in sinks) == [(200, b"ok")] * len(peers)


async def test_five_hundred_requests_at_once_each_get_their_own_answer() -> None:
    async with serving() as server, client_of(server, max_connections=40) as client:
        echoing = asyncio.create_task(echo_all(server))
        sinks = [post(client, b"request %d" % number) for number in range(500)]
        answers = await all_of(sink.answer() for sink in sinks)
        assert answers == [(200, b"request %d" % number) for number in range(500)]
        assert server.accepted <= 40
        echoing.cancel()
        await asyncio.gather(echoing, return_exceptions=True)


async def test_abort_closes_the_connection_and_silences_the_sink() -> None:
    async with serving() as server, client_of(server) as client:
        sink = Sink()
        handle = client.request(b"POST", b"/mcp", b"", b"{}", sink)
        peer = await server.peer()
        await peer.request()
        handle.abort()
        handle.abort()
        assert await peer.eof() == b""
        await peer.send(OK)
        await turns()
        assert sink.events == []


async def test_an_aborted_request_makes_room_for_a_request_that_waits() -> None:
    async with serving() as server, client_of(server, max_connections=1) as client:
        handle = client.request(b"POST", b"/mcp", b"", b"1", Sink())
        waiting = post(client, b"2")
        await (await server.peer()).request()
        handle.abort()
        peer = await server.peer()
        assert (await peer.serve(OK))[0].endswith(b"2")
        assert await waiting.answer() == (200, b"ok")


async def test_an_aborted_request_in_the_queue_is_never_sent() -> None:
    async with serving() as server, client_of(server, max_connections=1) as client:
        first, silent, third = post(client, b"1"), Sink(), Sink()
        handle = client.request(b"POST", b"/mcp", b"", b"2", silent)
        post(client, b"3", third)
        handle.abort()
        assert [request[-1:] for request in await (await server.peer()).serve(OK, OK)] == [b"1", b"3"]
        assert await first.answer() == await third.answer() == (200, b"ok")
        assert silent.events == []


async def test_a_request_aborted_while_its_connection_opens_leaves_the_connection_idle() -> None:
    async with serving() as server, client_of(server) as client:
        silent = Sink()
        client.request(b"POST", b"/mcp", b"", b"1", silent).abort()
        peer = await server.peer()
        await turns()
        later = post(client, b"2")
        assert (await peer.serve(OK))[0].endswith(b"2")
        assert await later.answer() == (200, b"ok")
        assert silent.events == []
        assert server.accepted == 1


async def test_a_refusal_that_is_aborted_before_it_is_sent_is_not_sent() -> None:
    async with serving() as server, client_of(server, max_waiting=0) as client:
        sink = Sink()
        client.request(b"POST", b"/mcp", b"", b"", sink).abort()
        await turns()
        assert sink.events == []


async def test_a_handle_that_has_ended_does_not_touch_the_next_request() -> None:
    async with serving() as server, client_of(server) as client:
        sink = Sink()
        handle = client.request(b"POST", b"/mcp", b"", b"1", sink)
        peer = await server.peer()
        await peer.serve(OK)
        await sink.answer()
        second = post(client, b"2")
        await peer.request()
        handle.abort()
        handle.pause()
        await peer.send(OK)
        assert await second.answer() == (200, b"ok")


@pytest.mark.parametrize("moment", ["stream", "chunk"])
async def test_a_sink_may_abort_from_inside_an_event(moment: str) -> None:
    async with serving() as server, client_of(server) as client:
        sink = Sink()
        handle: Handle = client.request(b"POST", b"/mcp", b"", b"", sink)
        sink.hooks[moment] = handle.abort
        peer = await server.peer()
        await peer.serve(STREAM + chunk(b"data: 1\n\n") + b"0\r\n\r\n")
        assert await peer.eof() == b""
        assert sink.names == ["stream", "chunk"][: 1 if moment == "stream" else 2]


@pytest.mark.parametrize("moment", ["answer", "fail"])
async def test_a_sink_that_raises_harms_no_other_request(moment: str) -> None:
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    async with serving() as server, client_of(server, max_connections=1) as client:
        first, second = post(client), post(client)
        first.hooks[moment] = lambda: 1 // 0
        peer = await server.peer()
        if moment == "answer":
            await peer.serve(OK)
        else:
            await peer.request()
            await peer.close()
        await first.end()
        sinks = [second, post(client)]
        echoing = asyncio.create_task(echo_all(server))
        ends = [await sink.end() for sink in sinks]
        echoing.cancel()
        await asyncio.gather(echoing, return_exceptions=True)
        # The loop closes the connection on which the sink raised; the request just sent on it is told so.
        assert [end[0] for end in ends] in (["answer", "answer"], ["fail", "answer"])
    assert any(isinstance(context.get("exception"), ZeroDivisionError) for context in raised)


async def test_an_answer_before_the_request_is_read_is_delivered_and_the_connection_closed() -> None:
    async with serving() as server, client_of(server) as client:
        sink = post(client, b"x" * 30_000_000)
        peer = await server.peer()
        async with asyncio.timeout(BOUND_S):
            await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n")
        assert await sink.answer() == (413, b"")
        await peer.eof()
        await answered_over(server, client)
        assert server.accepted == 2


async def test_a_refused_connection_fails_every_request_that_waits_for_it() -> None:
    async with client_of(reserve_port(), max_connections=3) as client:
        sinks = [post(client) for _ in range(20)]
        assert all(sink.events == [] for sink in sinks)
        for failure in await all_of(sink.failure() for sink in sinks):
            assert (failure.kind, failure.retry_safe) == (FailureKind.CONNECT_REFUSED, True)
            assert "127.0.0.1" not in failure.detail


async def test_a_server_that_comes_back_is_reached_again() -> None:
    port = reserve_port()
    async with client_of(port) as client:
        assert (await post(client).failure()).kind is FailureKind.CONNECT_REFUSED
        async with serving(port=port) as server:
            await answered_over(server, client)


async def test_a_name_that_does_not_resolve_is_named_as_such() -> None:
    client = HttpClient("http://nothing.invalid:80", max_body_bytes=1)
    failure = await post(client).failure()
    assert (failure.kind, failure.retry_safe) == (FailureKind.NAME_RESOLUTION, True)
    assert "nothing.invalid" not in failure.detail
    await client.close()


async def test_a_server_that_closes_every_connection_at_once_fails_each_request_once() -> None:
    async with serving() as server, client_of(server) as client:

        async def close_all() -> None:
            while True:
                await (await server.peer()).close()

        closing = asyncio.create_task(close_all())
        for failure in await all_of(sink.failure() for sink in [post(client) for _ in range(20)]):
            assert failure.kind in (
                FailureKind.LOST_BEFORE_ANSWER,
                FailureKind.CONNECT_REFUSED,
            )
            assert failure.retry_safe == (failure.kind is FailureKind.CONNECT_REFUSED)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)


async def test_closing_the_client_ends_every_request_and_closes_every_connection() -> None:
    async with serving() as server, client_of(server, max_connections=2) as client:
        idle = await answered_over(server, client)
        in_flight, streaming, waiting = post(client), post(client), post(client)
        await idle.request()
        other = await server.peer()
        await other.request()
        await other.send(STREAM)
        await client.close()
        assert [sink.names for sink in (in_flight, streaming, waiting)] == [["fail"], ["stream", "fail"], ["fail"]]
        failures: list[HttpFailure] = [sink.events[-1][1] for sink in (in_flight, streaming, waiting)]
        assert [(failure.kind, failure.retry_safe) for failure in failures] == [
            (FailureKind.CLOSED, False),
            (FailureKind.CLOSED, False),
            (FailureKind.CLOSED, True),
        ]
        assert await idle.eof() == await other.eof() == b""
        await client.close()


@pytest.mark.parametrize("passed", range(8))
async def test_closing_at_any_moment_of_opening_ends_the_request(passed: int) -> None:
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        await turns(passed)
        async with asyncio.timeout(BOUND_S):
            await client.close()
        assert sink.names == ["fail"]
        assert (await sink.failure()).kind is FailureKind.CLOSED


async def test_a_request_during_closing_is_not_sent() -> None:
    async with serving() as server, client_of(server) as client:
        await answered_over(server, client)
        closing = asyncio.create_task(client.close())
        await turns(1)
        failure = await post(client).failure()
        assert (failure.kind, failure.retry_safe) == (FailureKind.CLOSED, True)
        await closing


async def test_a_refusal_is_sent_before_closing_is_done() -> None:
    async with serving() as server, client_of(server, max_waiting=0) as client:
        sink = post(client)
        await client.close()
        assert sink.names == ["fail"]


async def test_a_closed_client_refuses_requests() -> None:
    async with serving() as server, client_of(server) as client:
        await answered_over(server, client)
        await client.close()
        failure = await post(client).failure()
        assert (failure.kind, failure.retry_safe) == (FailureKind.CLOSED, True)
        assert server.accepted == 1


async def test_a_client_that_was_never_used_can_be_closed() -> None:
    await HttpClient("http://127.0.0.1:1", max_body_bytes=1).close()
