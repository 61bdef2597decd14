"""The owner of a transport of devices, as tests need it: what came is kept, and can be waited for."""

import asyncio
from collections.abc import Callable

from interlock.devices.protocol.description import DeviceDescription, LinkDescription

WAIT_S = 5.0


class Owner:
    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.lost: list[str] = []
        self.rest_s = 0.0  # of the last loss
        self.traffic: list[tuple[bool, bytes]] = []
        self._changed = asyncio.Event()

    def on_message(self, message: bytes) -> None:
        self.messages.append(message)
        self._changed.set()

    def on_transport_lost(self, reason: str, rest_s: float = 0.0) -> None:
        self.lost.append(reason)
        self.rest_s = rest_s
        self._changed.set()

    def on_traffic(self, sent: bool, data: bytes) -> None:
        self.traffic.append((sent, data))

    async def until(self, holds: Callable[["Owner"], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds(self):
                self._changed.clear()
                await self._changed.wait()

    async def next_message(self, after: int = 0) -> bytes:
        await self.until(lambda owner: len(owner.messages) > after)
        return self.messages[after]


def description(**link: object) -> DeviceDescription:
    profile = "json" if link["transport"] == "mqtt_json" else "b"
    return DeviceDescription(profile=profile, link=LinkDescription(**link))  # type: ignore[arg-type]
