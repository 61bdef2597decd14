"""Does `interlock device scaffold` write C that compiles and answers, and a description that loads?"""

import json
import subprocess
from pathlib import Path

import pytest
from tests.devices.device_descriptions import described
from tests.devices.emulated_chips import FIRMWARE, boot, built, emulator, need
from tests.support.reserved_ports import reserve_port

from interlock.cli.app import run
from interlock.config.load import read_device_file
from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.protocol.scaffold import CannotScaffold, scaffold, toml

need("avr-gcc", "arm-none-eabi-gcc", "sdcc", "qemu-system-arm")

A = """
profile = "a"
description = "A thermostat: \\"hall\\" */ #include <evil>"

[link]
transport = "uart_cbor"
port = "/dev/ttyUSB0"
baud = 9600

[[tool]]
id = 1
name = "read-temperature"
description = "Reads */ the /* room"
mutable = false
reversible = true
response = [
  { name = "t", type = "i16", scale = 0.1, unit = "°C" },
  { name = "mode", type = "enum", values = { off = 0, on = 1 } },
]

[[tool]]
id = 2
name = "2set"
mutable = true
reversible = true
status = { "7" = "too_hot" }
request = [
  { name = "t", type = "i16", scale = 0.1, minimum = 5.0, maximum = 30.0 },
  { name = "note", type = "text", size = 4 },
]

[[event]]
id = 64
name = "pressed"
response = [{ name = "count", type = "u16" }]
"""
B = A.replace('"a"', '"b"', 1).replace("baud = 9600", 'baud = 9600\ncrc = "crc16"')


def arm(folder: Path, name: str, profile: str, *flags: str) -> Path:
    compiled = ["arm-none-eabi-gcc", "-mcpu=cortex-m0", "-mthumb", "-nostdlib", "-Os", "-std=c99", "-Wall", "-Wextra"]
    compiled += ["-Werror", "-ffreestanding", "-T", str(FIRMWARE / "ports" / "microbit.ld"), f"-I{FIRMWARE}", *flags]
    compiled += ["-DMCPAX_TICKS_PER_MS=32", "-DMCPAX_GAP_MS=400u", str(folder / name)]
    compiled += [str(FIRMWARE / each) for each in (f"mcpax_{profile}.c", "mcpax_next.c", "ports/microbit.c")]
    subprocess.run([*compiled, "-lgcc", "-o", str(folder / "stub.elf")], check=True, timeout=60)
    return folder / "stub.elf"


@pytest.mark.req("AX-8.N-6")
@pytest.mark.parametrize(("text", "profile", "flags"), [(A, "a", ()), (B, "b", ("-DMCPAX_B_CRC=16",))])
def test_generated_firmware_compiles_and_answers_and_its_description_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, profile: str, flags: tuple[str, ...]
) -> None:
    source = tmp_path / "thermostat.toml"
    source.write_text(text)
    assert run(["device", "scaffold", str(source), "--out", str(tmp_path / "out"), "--json"]) == 0
    files = [Path(each) for each in json.loads(capsys.readouterr().out)["files"]]
    assert [each.name for each in files] == ["thermostat.c", "thermostat.toml"]
    loaded = read_device_file(files[1])
    assert isinstance(loaded, DeviceDescription)
    before = described(text)
    assert [(tool.id, tool.name, tool.request, tool.status) for tool in loaded.tools] == [
        (tool.id, tool.name, tool.request, tool.status) for tool in before.tools
    ]
    assert (loaded.events, loaded.description) == (before.events, before.description)
    if profile == "a":
        assert [(tool.req_len, tool.resp_len) for tool in loaded.tools] == [(0, 3), (6, 0)]
        for name in ("mcpax_a.c", "mcpax_next.c"):
            assert (FIRMWARE / name).exists()
    else:
        assert [(tool.arg_types, tool.ret_type) for tool in loaded.tools] == [((), 5), ((1, 3), 5)]
    elf = arm(tmp_path / "out", "thermostat.c", profile, *flags)
    port = reserve_port()
    with emulator("arm", elf, port, tmp_path):
        boot(port)
        tested = ["device", "test", str(files[1]), "--port", f"socket://127.0.0.1:{port}", "--within", "5"]
        assert run(tested) == 0, capsys.readouterr().out
        said = capsys.readouterr().out
        # called as if it were a read: what may change something fails until its handler is filled in
        (called := tmp_path / "called.toml").write_text(
            files[1].read_text().replace("mutable = true", "mutable = false")
        )
        assert run([*tested[:2], str(called), *tested[3:]]) != 0
        assert "failed with 252" in capsys.readouterr().out
    assert "PASS  MCP-AX B." in said and "FAIL" not in said
    assert "read-temperature answers as described\n" in said
    assert run(["device", "scaffold", str(source), "--out", str(tmp_path / "out")]) != 0  # nothing is replaced
    assert "there already" in capsys.readouterr().err


def test_avr_and_8051_compile_it_as_well(tmp_path: Path) -> None:
    built("avr")
    avr = ["avr-gcc", "-mmcu=atmega328p", "-Os", "-std=c99", "-Wall", "-Wextra", "-Werror"]
    mcs51 = ["sdcc", "-mmcs51", "--std-c99"]
    for description, command in (
        (A, avr),
        (A, [*mcs51, "--stack-auto"]),
        (B, [*avr, "-DMCPAX_B_CRC=16"]),
        (B, [*mcs51, "-DMCPAX_B_CRC=16"]),
    ):
        for name, text in scaffold("thermostat", described(description)).items():
            (tmp_path / Path(name).name).write_text(text)
        command = [*command, "-c", f"-I{FIRMWARE}", "thermostat.c", "-o", "stub.rel"]
        made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert made.returncode == 0 and not made.stderr, made.stderr


@pytest.mark.parametrize(("text", "place"), [(A, "byte 0, little-endian"), (B, "0")])
def test_events_and_statuses_of_the_description_are_in_the_c_file(text: str, place: str) -> None:
    source = scaffold("thermostat", described(text))["thermostat.c"]
    assert f" * out, {place}: count, u16\n */\n#define EVENT_PRESSED 0x40\n" in source
    assert "status 7: too_hot" in source
    assert source.count("return UNFINISHED;") == 1 and source.count("TODO") == 2


def test_the_status_of_an_unfinished_handler_is_none_of_the_description() -> None:
    source = scaffold("thermostat", described(A.replace('"7"', '"252"')))["thermostat.c"]
    assert "#define UNFINISHED 251\n" in source


def test_a_stub_built_otherwise_than_described_does_not_compile(tmp_path: Path) -> None:
    files = scaffold("thermostat", described(B))
    (tmp_path / "thermostat.c").write_text(files["thermostat.c"])
    with pytest.raises(subprocess.CalledProcessError):
        arm(tmp_path, "thermostat.c", "b")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (A.replace("baud = 9600", 'crc = "crc16"'), "CRC-8"),
        (A.replace("baud = 9600", 'status = "first"'), "status last"),
        (A.replace(", size = 4", ""), "fixed length"),
        (A.replace('name = "2set"', 'name = "read_temperature"'), "one name in C"),
        (A + '[[event]]\nid = 65\nname = "a-b"\n[[event]]\nid = 66\nname = "a_b"\n', "one name in C"),
        (B.replace("baud = 9600", 'framing = "frame"'), "COBS"),
    ],
)
def test_descriptions_that_the_stub_does_not_support_are_refused(text: str, why: str) -> None:
    with pytest.raises(CannotScaffold, match=why):
        scaffold("thermostat", described(text))


def test_a_description_written_out_is_read_as_the_same() -> None:
    for text in (A, B):
        assert described(toml(described(text))) == described(text)
