"""Answers, cancellations and notices to servers: does each arrive, and is it said when one does not?"""

import asyncio
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
import pytest_asyncio
from tests.servers.start import raw, serving
from tests.support.local_node import running
from tests.support.node_with_clock import SECONDS, ClockedNode

from interlock.core.calls.call import Pending
from interlock.links import pipes
from interlock.links.connected_link import PROGRESS_PER_NOTIFICATION, UNSOLICITED_PER_S, Noise, ServerLink
from interlock.links.pipes import HttpPipe, StdioPipe, Trouble, Undelivered, _Exchange
from interlock.links.server_messages import ServerQuestions
from interlock.net.message_pipe import PER_TURN
from interlock.process.child import Child, child_environment
from interlock.process.stderr import StderrRing

pytestmark = pytest.mark.asyncio(loop_scope="module")
BURST = 1800  # beyond any default queue; the fixture server keeps 2,000 messages
NOTICE = "notifications/roots/list_changed"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClockedNode]:
    with serving(raw("all", "--era", "legacy")) as web, serving(raw("all", "--era", "legacy")) as sse:
        servers = f'[servers.web]\nurl = "{web}"\n'
        servers += f'[servers.sse]\nurl = "{sse.removesuffix("/mcp")}/sse"\ntransport = "sse"\n'
        servers += f"[servers.pipe]\ncommand = {json.dumps(raw('all', '--era', 'legacy'))}\n"
        async with running(tmp_path_factory.mktemp("side"), servers) as (node, clock):
            yield ClockedNode(node, clock)


async def received(here: ClockedNode, link: str) -> list[int]:
    seen = (await here.call(f"{link}__seen").result())["structuredContent"]["messages"]
    return [json.loads(one["text"])["params"]["n"] for one in seen if one["method"] == NOTICE]


def link_of(here: ClockedNode, segment: str) -> ServerLink:
    return here.node.calls.keepers[segment].link


@pytest.mark.parametrize("segment", ["web", "sse", "pipe"])
async def test_every_message_of_a_burst_arrives(here: ClockedNode, segment: str) -> None:
    for number in range(BURST):
        link_of(here, segment).notify(NOTICE, {"n": number})
    if segment != "pipe":
        await here.until(lambda: not link_of(here, segment).pipe._side._under_way)  # type: ignore[union-attr]
    assert sorted(await received(here, segment)) == list(range(BURST))
    assert here.node.operations.links.get(segment).unsent == 0


@pytest.mark.parametrize("segment", ["web", "sse"])
@pytest.mark.parametrize(("limit", "value"), [("SIDE_BYTES_MAX", 2000), ("SIDE_WAITING_MAX", 20)])
async def test_messages_beyond_the_limit_are_counted_and_logged(
    here: ClockedNode,
    segment: str,
    limit: str,
    value: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = link_of(here, segment)
    before = here.node.operations.links.get(segment).unsent
    link.greeted(link.facts)  # type: ignore[arg-type]
    monkeypatch.setattr(pipes, limit, value)
    for _ in range(200):
        link.notify(NOTICE, {"n": -1})
    unsent = here.node.operations.links.get(segment).unsent - before
    assert 100 < unsent < 200
    said = [record.getMessage() for record in caplog.records if "was not delivered" in record.getMessage()]
    assert said == [
        f"link {segment}: a message was not delivered: too many messages to it wait already; more are counted"
    ]
    monkeypatch.undo()
    await here.until(lambda: not link.pipe._side._under_way)  # type: ignore[union-attr]
    assert link.pipe._side._bytes == 0  # type: ignore[union-attr]


class Owner:
    """Hears what a pipe tells."""

    def __init__(self) -> None:
        self.undelivered: list[tuple[Pending | None, Undelivered]] = []
        self.news = asyncio.Event()
        self.waiting: set[int] = set()

    def on_message(self, data: bytes, origin: Pending | None) -> None:
        pass

    def on_undelivered(self, origin: Pending | None, what: Undelivered) -> None:
        self.undelivered.append((origin, what))
        self.news.set()

    def on_pipe_lost(self, reason: str) -> None:
        pass


async def test_a_server_that_takes_no_message_does_not_block_them_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "SIDE_TAKEN_S", 0.2)
    monkeypatch.setattr(pipes, "SIDE_SWEEP_S", 0.05)
    owner = Owner()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes connections, nobody reads
        pipe = HttpPipe(owner, f"http://127.0.0.1:{silent.getsockname()[1]}/mcp", {}, 1024)
        for _ in range(20):
            pipe.send(b'{"jsonrpc":"2.0","method":"notifications/x"}', b"", None)
        async with asyncio.timeout(SECONDS):
            while len(owner.undelivered) < 20:
                owner.news.clear()
                await owner.news.wait()
        told = {(origin, what.trouble, what.detail) for origin, what in owner.undelivered}
        assert told == {(None, Trouble.LOST, "it was not taken within 0.2 s")}
        await pipe.close()
    assert len(owner.undelivered) == 20


async def test_a_message_that_a_child_does_not_read_is_reported_as_undelivered() -> None:
    owner = Owner()
    pipe = StdioPipe(owner)
    pipe.child = Child(
        [sys.executable, "-c", "import signal; signal.pause()"],
        child_environment({}, os.environ),
        None,
        max_message_bytes=1024,
        sink=pipe,
        stderr=StderrRing(now=time.time),
        reaper=None,
    )
    await pipe.child.start()
    for _ in range(1000):
        pipe.send(b"x" * 1024, b"", None)
    assert owner.undelivered
    assert {(origin, what.trouble) for origin, what in owner.undelivered} == {(None, Trouble.BUSY)}
    await pipe.child.stop(grace_s=0)


CHATTER = {
    "log": {"method": "notifications/message", "params": {"level": "info", "data": "x"}},
    "progress": {"method": "notifications/progress", "params": {"progressToken": 10**9, "progress": 1}},
    "vendor": {"method": "notifications/vendor/beat"},
    "ping": {"id": 7, "method": "ping"},
    "stray answer": {"id": 10**9, "result": {}},
}


@pytest.mark.parametrize("kind", CHATTER)
async def test_unsolicited_messages_are_read_in_small_turns_and_up_to_a_limit(
    here: ClockedNode, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of a call's own: nothing else would slow it down."""
    link = link_of(here, "web")
    monkeypatch.setattr(link, "_clock", SimpleNamespace(now=lambda: 1e9, wall=link._clock.wall))  # one second for all
    monkeypatch.setattr(ServerQuestions, "respond", lambda *_: None)
    heard: list[bytes] = []
    take = link.on_message
    monkeypatch.setattr(link, "on_message", lambda data, origin: heard.append(data) or take(data, origin))
    assert isinstance(link.pipe, HttpPipe)
    stream = _Exchange(link.pipe)
    stream.on_stream(200, [])
    said = json.dumps({"jsonrpc": "2.0", **CHATTER[kind]})
    stream.on_chunk(f"data: {said}\n\n".encode() * (2 * UNSOLICITED_PER_S))
    turns = [len(heard)]
    for _ in range(2 * UNSOLICITED_PER_S):
        await asyncio.sleep(0)
        turns.append(len(heard))
    stream.abort()
    link.noise._since = 0.0
    assert max(later - sooner for sooner, later in itertools.pairwise([0, *turns])) <= PER_TURN
    assert len(heard) == UNSOLICITED_PER_S


async def test_progress_that_a_client_asked_for_is_read_without_a_pause_up_to_a_higher_limit() -> None:
    noise = Noise()
    pauses = [noise.count_progress(1e9) for _ in range(UNSOLICITED_PER_S * PROGRESS_PER_NOTIFICATION)]
    assert pauses[:10_000] == [None] * 10_000
    assert pauses[:-1] == [None] * (len(pauses) - 1)
    assert pauses[-1] == 1.0


async def test_many_receivers_of_one_notification_count_as_more() -> None:
    noise = Noise()
    for _ in range(10):
        assert noise.count_unsolicited(1e9) is None
        noise.count_receivers(1000)
    assert noise.count_unsolicited(1e9) == 1.0
