"""Devices to measure a gateway with, as a process of their own: `python -m bench.device_lines wire BAUD | crowd`.

`wire` prints the name of a pty and answers calls of Profile B there as late as a line of that speed would deliver the
last byte of the answer; for each call it prints the seconds that its bytes take. `crowd` prints a port of which every
connection is a device of Profile A that is alive: a heartbeat is echoed.
"""

import asyncio
import os
import sys
import time
import tty

import cbor2
from cobs import cobs

from bench.processes import raise_descriptors

BITS_PER_BYTE = 10  # with start and stop
SPIN_S = 0.0005  # before the time is up, sleeping is too coarse
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


async def crowd() -> None:
    raise_descriptors()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(256):
            writer.write(data)

    server = await asyncio.start_server(serve, "0.0.0.0", 0, backlog=4096)  # each has an address of loopback
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "wire":
        wire(int(sys.argv[2]))
    else:
        asyncio.run(crowd())
