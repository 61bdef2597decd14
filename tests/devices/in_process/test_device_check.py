"""Does `interlock device test` keep from moving anything, and come to its end with every device?"""

import asyncio
import socket
from collections.abc import Sequence

import msgspec
import pytest
from tests.support.reserved_ports import reserve_port

from interlock.devices.cli import stub_check as checks
from interlock.devices.cli import stub_check as line_module
from interlock.devices.cli.stub_check import Line, StubCheck
from interlock.devices.protocol import frame_codec
from interlock.devices.protocol.description import DeviceDescription, Field, LinkDescription, ToolDescription
from interlock.devices.transports.simulated_port import Faults, SimulatedPort

READ = ToolDescription(id=1, name="read", mutable=False, reversible=True, response=(Field(name="level"),))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SILENCE_S", 0.02)


def described(profile: str, *tools: ToolDescription, **link: object) -> DeviceDescription:
    made = LinkDescription(transport="uart_cbor", port=f"socket://127.0.0.1:{reserve_port()}", **link)  # type: ignore[arg-type]
    return DeviceDescription(profile=profile, link=made, tools=tools)  # type: ignore[arg-type]


async def checked(
    device: DeviceDescription, tools: Sequence[ToolDescription] | None = None, *, may_call_unknown: bool = False
) -> tuple[dict[str, str], list[bytes]]:
    """The result of each check of a simulated device, and what that was told."""
    told: list[bytes] = []

    def hear(is_ours: bool, message: bytes, happened: object) -> None:
        if not is_ours:
            told.append(message)

    port = SimulatedPort(device, Faults(), hear)
    await port.open(device.link.port or "")
    expected = device if tools is None else msgspec.structs.replace(device, tools=tuple(tools))

    def run() -> dict[str, str]:
        line = Line(expected)
        try:
            check = StubCheck(line, expected, within_s=0.3, gap_s=0.15, may_call_unknown=may_call_unknown)
            return {item.name: item.result for item in check.run()}
        finally:
            line.close()

    try:
        return await asyncio.to_thread(run), told
    finally:
        await asyncio.sleep(0.01)  # it sees that the line was closed
        await port.close()


@pytest.mark.parametrize("profile", ["a", "b"])
async def test_an_id_that_nobody_described_is_called_only_where_that_is_asked_for(profile: str) -> None:
    name = f"an unknown id is answered with {'a status' if profile == 'a' else 'an error'}"
    for may_call_unknown in (False, True):
        results, told = await checked(described(profile, READ), may_call_unknown=may_call_unknown)
        assert results[name] == ("passed" if may_call_unknown else "skipped")
        called = b"\x01\xff\x03" if profile == "a" else b"\xa3\x01\x18\xff\x02\x0c\x03\xa0"
        assert (called in told) == may_call_unknown
        assert results["read answers as described"] == "passed"


async def test_an_announcement_against_the_description_is_a_result() -> None:
    other = msgspec.structs.replace(READ, request=(Field(name="what", type="text"),))
    results, _ = await checked(described("b", READ), [other])
    assert results["described tools are announced as described"] == "failed"
    assert results["read answers as described"] == "failed"


async def test_profile_b_in_frames_is_spoken_to_in_frames() -> None:
    results, told = await checked(described("b", READ, framing="frame"), may_call_unknown=True)
    assert "failed" not in results.values()
    assert results["read answers as described"] == "passed"
    assert {message[0] for message in told} <= {frame_codec.CALL, frame_codec.HEARTBEAT, frame_codec.REGISTRATION}


async def test_a_device_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "DRAIN_S", 0.1)
    device = described("b", READ)
    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof() and not writer.is_closing():
            writer.write(b"\x02\x01\x00")
            await asyncio.sleep(0.01)
        writer.close()
        ended.set()

    listener = socket.create_server(("127.0.0.1", int((device.link.port or "").rpartition(":")[2])))
    server = await asyncio.start_server(talk, sock=listener)
    line = await asyncio.to_thread(Line, device)
    async with asyncio.timeout(3):
        await asyncio.to_thread(line.drain, 0.05)
    line.close()
    await ended.wait()
    server.close()
