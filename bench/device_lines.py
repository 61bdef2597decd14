"""Devices to measure a gateway with, as processes: `python -m bench.device_lines wire BAUD | relay PORT | crowd`.

`wire` prints the name of a pty and answers calls of Profile B there as late as a line of that speed would deliver the
last byte of the answer; for each call it prints the seconds that its bytes take. `relay` prints a port and copies bytes
between one connection to it and a pty. `crowd` prints two ports: every connection to the first is a device of Profile A
that echoes heartbeats and answers calls, one to the second a device that sends noise without end.
"""

import asyncio
import os
import select
import socket
import sys
import time
import tty

import cbor2
from cobs import cobs

from bench.processes import raise_descriptors
from interlock.devices.protocol.description import LinkDescription
from interlock.devices.protocol.framing import framing_of

BITS_PER_BYTE = 10  # with start and stop
SPIN_S = 0.0005  # before the time is up, sleeping is too coarse
CALL, RESPONSE = 1, 2  # types of frames of Profile A
NOISE_BYTES = 64 * 1024
ANNOUNCED = {1: "r", 3: [{0: 1, 1: [], 2: 5}]}


def wire(baud: int) -> None:
    master, line = os.openpty()
    tty.setraw(line)
    print(os.ttyname(line), flush=True)
    begun = b""
    while True:
        data = os.read(master, 4096)
        came = time.perf_counter()
        *frames, begun = (begun + data).split(b"\0")
        for frame in frames:
            asked = cbor2.loads(cobs.decode(frame))
            answer = ANNOUNCED if asked[1] == "r" else {2: asked[2], 4: {0: 21} if asked[1] == 1 else {}}
            said = cobs.encode(cbor2.dumps(answer)) + b"\0"
            taken = (len(frame) + 1 + len(said)) * BITS_PER_BYTE / baud
            _wait_until(came + taken)
            os.write(master, said)
            if asked[1] == 1:
                print(taken, flush=True)


def _wait_until(moment: float) -> None:
    if (rest := moment - time.perf_counter() - SPIN_S) > 0:
        time.sleep(rest)
    while time.perf_counter() < moment:
        pass


def relay(line: str) -> None:
    port = os.open(line, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(port)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        peer, _ = server.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    poll = select.epoll()
    poll.register(port, select.EPOLLIN)
    poll.register(peer, select.EPOLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready == port:
                peer.sendall(os.read(port, 4096))
            elif data := peer.recv(4096):
                os.write(port, data)
            else:
                return


async def crowd() -> None:
    raise_descriptors()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        framing = framing_of(LinkDescription(transport="uart_cbor"), "a")
        while data := await reader.read(256):
            for message in framing.feed_untrusted(data, time.monotonic()):
                is_call = message[0] == CALL
                writer.write(framing.encode(bytes((RESPONSE, *message[1:3], 21, 0)) if is_call else message))

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        print("flooding", flush=True)
        noise = os.urandom(NOISE_BYTES)
        while True:
            writer.write(noise)
            await writer.drain()

    server = await asyncio.start_server(serve, "0.0.0.0", 0, backlog=4096)  # each has an address of loopback
    flooding = await asyncio.start_server(flood, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flooding.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["wire", baud]:
            wire(int(baud))
        case ["relay", line]:
            relay(line)
        case _:
            asyncio.run(crowd())
