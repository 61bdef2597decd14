"""The participants of rooms: they join, one in each room speaks, and all count what they hear.

    python -m bench.rooms.audience < job.json

The job comes on the first line of stdin. Every further line is a command, answered by one line of JSON:

    join                   everybody connects, and is welcomed
    pump COUNT AHEAD       the speaker of each room sends COUNT messages, AHEAD of them unheard by itself at a time
    pace PER_SECOND        one room's speaker sends so many a second, until `rest`; what the others hear waits in their
                           sockets until then: the work of participants is that of other machines
    rest
"""

import asyncio
import sys
import time
import uuid

import msgspec
import uvloop

from bench.crowd import each
from bench.processes import raise_descriptors
from interlock.net.message_pipe import MessagePipe
from interlock.net.websocket import dial

MAX_BYTES = 16 * 1024 * 1024
SAID = "the soil of bed three is dry, and rain is not expected before the weekend; shall I water it this evening? "
JOIN_S = 60.0
MARK = b'"at":"'
DIGITS = 20


class Job(msgspec.Struct):
    urls: list[list[str]]  # of each room, one for each participant
    tokens: list[list[str]] = []  # likewise
    pad: int = 0  # characters that each message is longer
    at_once: int = 64


class Heard(msgspec.Struct):
    seconds: float
    deliveries: int
    p50_us: float = 0.0
    p99_us: float = 0.0


class Listener:
    """Also the sink of its pipe."""

    def __init__(self, room: "Room", url: str, token: str | None) -> None:
        self.room, self.url, self.token = room, url, token
        self.pipe: MessagePipe | None = None
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def join(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.pipe = await dial(self.url, self, subprotocol=None, headers=headers, max_bytes=MAX_BYTES, timeout_s=JOIN_S)
        await self.welcomed

    def on_message(self, data: bytes) -> None:
        at = data.find(MARK)
        if at >= 0:
            self.room.hear(self, int(data[at + len(MARK) : at + len(MARK) + DIGITS]))
        elif not self.welcomed.done():
            self.welcomed.set_result(None)

    def on_oversized(self, found: object) -> None:
        raise AssertionError(found)

    def on_closed(self, code: int, reason: str) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionError(f"{code} {reason}"))
        elif code != 1000:
            print(f"lost: {code} {reason}", file=sys.stderr, flush=True)
            sys.exit(1)


class Room:
    def __init__(self, urls: list[str], tokens: list[str], pad: int) -> None:
        self.said = SAID + "." * pad
        self.listeners = [Listener(self, url, tokens[number] if tokens else None) for number, url in enumerate(urls)]
        self.heard = self.wanted = self.own = self.sent = self.count = self.ahead = 0
        self.delays: list[int] = []
        self.done = asyncio.Event()

    def hear(self, by: Listener, at_ns: int) -> None:
        self.heard += 1
        self.delays.append(time.monotonic_ns() - at_ns)
        if by is self.listeners[0]:
            self.own += 1
            while self.sent < self.count and self.sent - self.own < self.ahead:
                self.send()
        if self.heard == self.wanted:
            self.done.set()

    def send(self) -> None:
        self.sent += 1
        message = (
            f'{{"protocol":"mcpx/v0.1","id":"{uuid.uuid4()}","kind":"chat",'
            f'"payload":{{"text":"{self.said}","at":"{time.monotonic_ns():0{DIGITS}}"}}}}'
        )
        speaker = self.listeners[0].pipe
        assert speaker is not None and speaker.send(message.encode())

    def hold(self) -> None:
        for listener in self.listeners[1:]:
            assert listener.pipe is not None
            listener.pipe.pause_reading()

    async def catch_up(self) -> None:
        """Until everyone has heard what was sent."""
        for listener in self.listeners[1:]:
            assert listener.pipe is not None
            listener.pipe.resume_reading()
        self.wanted = self.sent * len(self.listeners)
        if self.heard < self.wanted:
            await asyncio.wait_for(self.done.wait(), JOIN_S)

    def begin(self, count: int, ahead: int) -> None:
        self.heard = self.own = self.sent = 0
        self.count, self.ahead, self.wanted = count, ahead, count * len(self.listeners)
        self.delays.clear()
        self.done.clear()
        for _ in range(min(ahead, count)):
            self.send()


async def pump(rooms: list[Room], count: int, ahead: int) -> Heard:
    began = time.monotonic()
    for room in rooms:
        room.begin(count, ahead)
    await asyncio.gather(*(room.done.wait() for room in rooms))
    seconds = time.monotonic() - began
    delays = sorted(delay for room in rooms for delay in room.delays)
    return Heard(
        seconds=seconds,
        deliveries=len(delays),
        p50_us=delays[len(delays) // 2] / 1e3,
        p99_us=delays[len(delays) * 99 // 100] / 1e3,
    )


async def pace(room: Room, per_second: float) -> None:
    room.begin(0, 0)
    room.wanted = -1
    began = time.monotonic()
    while True:
        if room.sent < (time.monotonic() - began) * per_second:
            room.send()
        else:
            await asyncio.sleep(0.5 / per_second)


async def main(job: Job) -> None:
    raise_descriptors()
    loop = asyncio.get_running_loop()
    rooms = [Room(urls, job.tokens[number] if job.tokens else [], job.pad) for number, urls in enumerate(job.urls)]
    pacing: asyncio.Task[None] | None = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, *more = line.split()
        began = time.monotonic()
        heard = Heard(seconds=0.0, deliveries=0)
        if command == "join":
            await each([one.join for room in rooms for one in room.listeners], job.at_once)
        elif command == "pump":
            heard = await pump(rooms, int(more[0]), int(more[1]))
        elif command == "pace":
            rooms[0].hold()
            pacing = loop.create_task(pace(rooms[0], float(more[0])))
        elif command == "rest" and pacing is not None:
            pacing.cancel()
            await rooms[0].catch_up()
            heard.deliveries = rooms[0].heard
        heard.seconds = heard.seconds or time.monotonic() - began
        print(msgspec.json.encode(heard).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.stdin.readline(), type=Job)))
