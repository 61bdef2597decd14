"""A bare broadcast: what one connection sends, every connection of the same path gets. No check, no store, no order.

python -m bench.rooms.broadcast_server PORT
"""

import asyncio
import sys
from collections import defaultdict

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve

from bench.processes import raise_descriptors

rooms: dict[str, set[ServerConnection]] = defaultdict(set)


async def handle(connection: ServerConnection) -> None:
    assert connection.request is not None
    room = rooms[connection.request.path]
    room.add(connection)
    await connection.send("welcome")
    try:
        async for message in connection:
            broadcast(room, message)
    finally:
        room.discard(connection)


async def main(port: int) -> None:
    raise_descriptors()
    async with serve(handle, "127.0.0.1", port, compression=None, ping_interval=None, backlog=1024):
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
