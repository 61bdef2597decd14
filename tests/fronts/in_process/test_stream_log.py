"""Is a stream that is taken up again kept for one connection at a time?"""

from typing import NoReturn

from interlock.fronts.exchange import Exchange, Head
from interlock.fronts.sessions import StreamLog, StreamLogs


class Transport:
    def __init__(self) -> None:
        self.unsent = b""
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.unsent += data

    def abort(self) -> None:
        self.unsent, self.aborted = b"", True


class Connection:
    def __init__(self) -> None:
        self.transport = Transport()

    def wrote(self) -> None: ...

    def on_finished(self, exchange: Exchange) -> None: ...


def exchange() -> Exchange:
    return Exchange(Connection(), Head(b"GET", b"/mcp", [], True, True), b"", True)


def unread(log: StreamLog, known: int = 1) -> Transport:
    """A connection by which the stream was taken up, and whose client reads nothing."""
    one = exchange()
    log.resume(one, known)
    transport: Transport = one.protocol.transport
    return transport


def test_a_session_that_ends_costs_no_look_at_the_streams_of_others() -> None:
    class Unwalked(dict[int, StreamLog]):
        def values(self) -> NoReturn:
            raise AssertionError("the streams of all sessions were walked")

    logs = StreamLogs()
    mine, others = [logs.open("mine", exchange()) for _ in range(2)], logs.open("other", exchange())
    for log in (*mine, others):
        log.add(b"{}")
    logs._logs = Unwalked(logs._logs)
    logs.forget("mine")
    logs.forget("mine")
    assert [log.events for log in mine] == [[], []] and len(others.events) == 1
    assert logs.find_after("mine", b"1-1") is None and logs.find_after("other", b"3-1") is not None


def test_a_stream_requested_by_several_connections_is_kept_for_the_last() -> None:
    for is_over in (False, True):
        log = StreamLogs().open("session", exchange())
        log.add(b"{}")
        log.add(b'"%b"' % (b"x" * 1000))
        if is_over:
            log.finish()
        taken = [unread(log) for _ in range(5)]
        assert [one.aborted for one in taken] == [True, True, True, True, False]
        assert len(taken[-1].unsent) > 1000
        assert sum(len(one.unsent) for one in taken) == len(taken[-1].unsent)
