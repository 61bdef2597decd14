"""Does the stub of Profile B stay within its buffers and its numbers, whatever size they are given?"""

import subprocess
from pathlib import Path

import pytest
from tests.devices.emulated_chips import FIRMWARE, need

from interlock.devices.protocol.cbor_codec import CborCodec, encoded
from interlock.devices.protocol.description import DeviceDescription, LinkDescription
from interlock.devices.protocol.device_tools import Announcement
from interlock.devices.protocol.framing import CobsFraming
from interlock.devices.protocol.messages import AnnouncementFrame, DeviceAnswer, Received

need("gcc")

CODEC = CborCodec(DeviceDescription(profile="b", link=LinkDescription(transport="uart_cbor")))
TOOLS = 64
HOST = """
#include <stdio.h>
#include "mcpax.h"
static uint8_t in[1024];
static size_t at, length;
uint8_t mcpax_port_has_byte(void) { return at < length; }
uint8_t mcpax_port_get(void) { return in[at++]; }
void mcpax_port_put(uint8_t byte) { putchar(byte); }
uint16_t mcpax_port_ticks(void) { static uint16_t ticks; return ticks += 1000; }
static int take(const uint8_t *args, uint8_t *resp, uint16_t *resp_len)
{
    uint16_t number;
    if (!mcpax_arg_uint(args, 0, &number)) return MCPAX_BAD_ARGUMENTS;
    *resp_len = (uint16_t)(mcpax_put_head(resp, CBOR_UINT, number) - resp);
    return 0;
}
int main(void)
{
    static mcpax_tool_t tools[TOOLS];
    for (int i = 0; i < TOOLS; i++) tools[i] = (mcpax_tool_t){ 55 + i, 4, {0, 0, 0, 0}, CBOR_UINT, take };
    tools[0].arg_count = 1;
    length = fread(in, 1, sizeof in, stdin);
    while (mcpax_port_has_byte()) mcpax_b_poll(tools, TOOLS);
    return 0;
}
"""


def compiled(folder: Path, frame_max: int, crc: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "host.c").write_text(HOST)
    settings = [f"-DMCPAX_B_FRAME_MAX={frame_max}", f"-DMCPAX_B_CRC={crc}", f"-DTOOLS={TOOLS}"]
    settings += ["-DMCPAX_TICKS_PER_MS=1", f"-I{FIRMWARE}", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
    sources = [str(folder / "host.c"), *(str(FIRMWARE / name) for name in ("mcpax_b.c", "mcpax_next.c"))]
    command = ["gcc", "-Wall", "-Wextra", "-Werror", *settings, *sources, "-o", str(folder / "host")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def said(folder: Path, framing: CobsFraming, *messages: bytes) -> list[Received]:
    wire = b"".join(framing.encode(message) for message in messages)
    ended = subprocess.run([folder / "host"], input=wire, capture_output=True, check=False, timeout=20)
    assert ended.returncode == 0, ended.stderr.decode()
    return [CODEC.decode_untrusted(message) for message in framing.feed_untrusted(ended.stdout, 0.0)]


@pytest.mark.parametrize(("frame_max", "crc"), [(25, 16), (64, 0)])
def test_tools_are_announced_within_frames_of_any_size(tmp_path: Path, frame_max: int, crc: int) -> None:
    made = compiled(tmp_path, frame_max, crc)
    assert made.returncode == 0, made.stderr
    framing = CobsFraming(max_message=frame_max, crc="crc16" if crc else "none")
    announcement, tools = Announcement(), None
    for registration in said(tmp_path, framing, encoded({1: "r"})):
        assert isinstance(registration, AnnouncementFrame)
        tools = announcement.add(registration)
    assert tools is not None and [tool.id for tool in tools] == list(range(55, 55 + TOOLS))


def test_numbers_beyond_sixteen_bits_and_maps_that_end_too_early_are_refused(tmp_path: Path) -> None:
    assert compiled(tmp_path, 254).returncode == 0
    framing = CobsFraming(max_message=254)
    calls = [encoded({1: 55, 2: 1, 3: {0: number}}) for number in (7, 65535, 65536, 70000, 2**40)]
    answers = said(tmp_path, framing, *calls, b"\xa2\x01\x78\xfa" + b"x" * 250, CODEC.encode_heartbeat(9))
    refused = DeviceAnswer(request_id=1, status=253)
    assert answers == [
        *(DeviceAnswer(request_id=1, payload=number) for number in (7, 65535)),
        *[refused] * 3,
        DeviceAnswer(request_id=9, payload={}),
    ]


@pytest.mark.parametrize(("frame_max", "crc"), [(22, 0), (24, 16), (255, 0)])
def test_a_frame_that_cannot_be_is_not_compiled(tmp_path: Path, frame_max: int, crc: int) -> None:
    assert "MCPAX_B_FRAME_MAX:" in compiled(tmp_path, frame_max, crc).stderr
