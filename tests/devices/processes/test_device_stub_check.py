"""Does `interlock device test` pass the reference stubs, and name what a broken one does wrong?"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.devices.emulated_chips import FIRMWARE, GAP_MS, boot, emulator, need, program_of
from tests.support.reserved_ports import reserve_port

from interlock.cli.app import run

need("arm-none-eabi-gcc", "qemu-system-arm", "avr-gcc", "qemu-system-avr")

TEST = ("device", "test", "--json", "--within", "3", "--unknown-ids")
SENSOR_A = """
profile = "a"
[link]
transport = "uart_cbor"
port = "/dev/ttyUSB0"
[[tool]]
id = 1
name = "read_sensor"
mutable = false
reversible = true
response = [{ name = "centigrade", type = "u32", scale = 0.01 }]
[[tool]]
id = 2
name = "set_led"
mutable = true
reversible = true
request = [{ name = "on", type = "bool" }]
"""
FAULTS_A = {
    "a frame with a wrong checksum is dropped": ("if (mcpax_next() != crc)", "if (mcpax_next() < 0)"),
    "an unknown id is answered with a status": ("int status = MCPAX_UNKNOWN_ID;", "int status = 0;"),
    "a heartbeat is echoed with its SEQ": ("HEARTBEAT, 0, frame[2], frame", "HEARTBEAT, 0, 1, frame"),
    "read_sensor refuses a payload of another length": (
        "&commands->req_len) == length",
        "&commands->req_len) <= length",
    ),
}
FAULTS_B = {
    "a heartbeat is answered with its id": (
        "put_number(id);\n    if",
        "put_number(id & 1);\n    if",
    ),
    "what has no id is not answered": ("if (id == NO_ID ||", "if ("),
    "an unknown id is answered with an error": ("    put(5);\n", "    put(4);\n"),
    "what is no CBOR map is dropped": (
        "    if (from != to) {\n        return;",
        "    if (from > to) {\n        return;",
    ),
}


def outcome_of(elf: Path, kind: str, folder: Path, *arguments: str) -> tuple[int, dict[str, str]]:
    port = reserve_port()
    with emulator(kind, elf, port, folder):
        if kind != "mcs51":
            boot(port)
        where = ("--port", f"socket://127.0.0.1:{port}", "--gap", str(1.5 * GAP_MS / 1000))
        command = [sys.executable, "-m", "interlock", *TEST, *where, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert ended.stdout, ended.stderr
    return ended.returncode, {check["name"]: check["result"] for check in json.loads(ended.stdout)["checks"]}


@pytest.mark.req("AX-8.N-6")
@pytest.mark.parametrize(("kind", "profile"), [("avr", "a"), ("arm", "b"), ("mcs51", "a"), ("mcs51", "b_reference")])
def test_the_reference_stubs_pass(kind: str, profile: str, tmp_path: Path) -> None:
    named: tuple[str, ...] = ("--profile", "b")
    if profile == "a":
        (tmp_path / "sensor.toml").write_text(SENSOR_A)
        named = (str(tmp_path / "sensor.toml"),)
    code, results = outcome_of(program_of(kind, profile), kind, tmp_path, *named)
    assert code == 0
    assert "failed" not in results.values()
    assert list(results.values()).count("passed") >= 8
    if profile == "a":
        assert results["read_sensor answers as described"] == "passed"
        assert results["set_led answers as described"] == "skipped"  # it would move something


@pytest.mark.req("AX-8.N-6")
@pytest.mark.parametrize("profile", ["a", "b"])
def test_each_fault_of_a_broken_stub_is_named(profile: str, tmp_path: Path) -> None:
    sources = tmp_path / "firmware"
    shutil.copytree(FIRMWARE, sources, ignore=shutil.ignore_patterns("build"))
    faults = FAULTS_A if profile == "a" else FAULTS_B
    stub = sources / f"mcpax_{profile}.c"
    text = stub.read_text()
    for right, wrong in faults.values():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    stub.write_text(text)
    build = tmp_path / "build"
    subprocess.run(
        ["make", "-s", "-C", str(sources), f"BUILD={build}", f"GAP_MS={GAP_MS}", f"{build}/arm_{profile}.elf"],
        check=True,
        timeout=60,
    )
    named: tuple[str, ...] = ("--profile", "b")
    if profile == "a":
        (tmp_path / "sensor.toml").write_text(SENSOR_A)
        named = (str(tmp_path / "sensor.toml"),)
    code, results = outcome_of(build / f"arm_{profile}.elf", "arm", tmp_path, *named)
    assert code == 1
    assert {name for name, result in results.items() if result == "failed"} >= set(faults)


def test_a_port_that_is_not_there_and_a_missing_profile_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["device", "test", "--profile", "a", "--port", f"socket://127.0.0.1:{reserve_port()}"]) == 1
    assert "cannot be opened" in capsys.readouterr().err
    assert run(["device", "test", "--profile", "a", "--port", "/dev/there-is-none"]) == 1
    capsys.readouterr()
    assert run(["device", "test", "--port", "/dev/null"]) == 2
    assert "--profile" in capsys.readouterr().err
