"""Do the commands that look at devices say what is wrong with one, and what to do?"""

import fcntl
import os
import select
import shlex
import shutil
import subprocess
import sys
import threading
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.program import Inline, Interlock
from tests.operator.fake_node import FakeOperations, link

from interlock.devices.protocol.cbor_codec import encoded
from interlock.devices.protocol.framing import CobsFraming
from interlock.node.cli.set_up_checks import device_remedy

DESCRIBED = """
profile = "b"
[link]
transport = "uart_cbor"
port = "simulated"
[[tool]]
id = 1
name = "read"
mutable = false
reversible = true
"""


@pytest.fixture
def described(interlock: Interlock) -> Path:
    file = interlock.folder / ".devices" / "vent.toml"
    file.parent.mkdir()
    file.write_text(DESCRIBED)
    return file


def test_a_description_is_checked_wherever_it_occurs(inline: Inline, described: Path) -> None:
    assert inline("check", str(described)).out == f"{described}: in order, profile b, 1 tool\n"
    described.write_text(DESCRIBED.replace('"read"', '"read"\nmutabel = true'))
    elsewhere = described.parent.parent / "vent.toml"
    shutil.copy(described, elsewhere)
    for file in (described, elsewhere):
        done = inline("check", str(file))
        assert done.code == 1
        assert f"{file}:9: error: " in done.out and "'mutable'" in done.out and "1 error" in done.out, done.out


def test_devices_are_counted(inline: Inline, interlock: Interlock, described: Path) -> None:
    (interlock.folder / "interlock.toml").write_text("")
    assert "0 servers, 1 device, " in inline("check").out


def test_init_says_what_it_wrote_and_which_description_is_wrong(inline: Inline, described: Path) -> None:
    described.write_text("profile = 1\n")
    done = inline("init", "--no-key")
    assert done.code == 0
    assert "wrote interlock.toml" in done.out
    assert "the device vent cannot be used: " in done.err and "vent.toml:1: " in done.err
    assert inline("check").code == 1


def test_a_library_that_is_not_there_is_named(
    inline: Inline, described: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if "cobs" in name or "interlock.devices" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cobs", None)
    for words in (("simulate", "--port", str(tmp_path / "vent.pty")), ("test", "--port", "socket://127.0.0.1:1")):
        done = inline("device", words[0], str(described), *words[1:])
        assert done.code == 1
        assert "needs the library cobs: install the extra interlock[devices]" in done.err


def test_a_device_that_the_node_plays_is_not_tested_at_a_port(inline: Inline, described: Path) -> None:
    done = inline("device", "test", str(described))
    assert done.code == 1
    assert "played by the node itself" in done.err


def test_the_remedy_of_a_device_is_that_of_its_reason() -> None:
    for reason, said in (
        ("it needs the library cobs: install the extra interlock[devices]", "pip install 'interlock[devices]'"),
        ("/dev/ttyUSB9: No such file or directory", "correct port in .devices/vent.toml"),
        ("/dev/ttyUSB0: Permission denied", "dialout"),
        ("work/.devices/vent.toml:3: it has no name", "correct the description"),
        ("no sign of life for 15 s", "cable"),
    ):
        assert said in device_remedy("vent", reason)[0]


@pytest.mark.skipif(shutil.which("avr-gcc") is None, reason="needs avr-gcc")
def test_the_build_line_of_a_scaffold_builds_it(inline: Inline, described: Path, tmp_path: Path) -> None:
    done = inline("device", "scaffold", str(described), "--out", str(tmp_path / "out"))
    line = done.err.partition("for instance: ")[2].splitlines()[0]
    subprocess.run(shlex.split(line), cwd=Path(__file__).parents[3], check=True, timeout=60)
    assert (tmp_path / "out" / "vent.elf").exists()


def test_the_port_of_a_device_is_shown(inline: Inline, node: FakeOperations) -> None:
    device = {"profile": "a", "port": "/dev/ttyUSB0", "sent": 1, "received": 1, "retries": 0, "discarded": {}}
    device |= {"unplugged": 0, "waiting": 0, "seen": None, "missing": []}
    node.link_list = [link("vent", kind="device", transport="uart_cbor", device=device)]
    assert "profile a at /dev/ttyUSB0, never seen" in inline("status", "vent").out


EVENT = '[[event]]\nid = 64\nname = "pressed"\nresponse = [{ name = "count", type = "u8" }]\n'


@pytest.fixture
def talking(described: Path) -> Iterator[list[bytes]]:
    """A device at a pty that says the same event for ever; what it was told."""
    master, slave = os.openpty()
    tty.setraw(slave)
    described.write_text(DESCRIBED.replace('"simulated"', f'"{os.ttyname(slave)}"') + EVENT)
    framed = CobsFraming(max_message=256).encode(encoded({1: 64, 3: {0: 3}}))
    told: list[bytes] = []
    ended = threading.Event()

    def talk() -> None:
        while not ended.wait(0.02):
            os.write(master, framed)
            if select.select([master], [], [], 0)[0]:
                told.append(os.read(master, 100))

    speaker = threading.Thread(target=talk)
    speaker.start()
    yield told
    ended.set()
    speaker.join()
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize("is_named", [True, False], ids=["no node runs", "a description file"])
def test_without_a_node_the_monitor_reads_the_port_itself_and_sends_nothing(
    inline: Inline, described: Path, talking: list[bytes], is_named: bool
) -> None:
    done = inline("device", "monitor", "vent" if is_named else str(described), "-n", "2")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("< event pressed count=3") for line in lines), lines
    assert "nothing is sent" in done.err
    assert talking == []


def test_a_device_without_a_port_is_monitored_through_its_node_alone(inline: Inline, described: Path) -> None:
    assert "no serial port" in inline("device", "monitor", str(described)).err
    assert inline("device", "monitor", "vent").code != 0
    described.write_text(DESCRIBED.replace('"simulated"', '"/dev/nothing-here"'))
    failed = inline("device", "monitor", "vent")
    assert failed.code == 1
    assert "the port of vent cannot be read: /dev/nothing-here" in failed.err


def test_a_port_that_a_node_holds_is_refused_with_what_to_do(inline: Inline, described: Path) -> None:
    master, slave = os.openpty()
    try:
        described.write_text(DESCRIBED.replace('"simulated"', f'"{os.ttyname(slave)}"'))
        fcntl.flock(slave, fcntl.LOCK_EX)
        tested = inline("device", "test", str(described))
        watched = inline("device", "monitor", str(described))
    finally:
        os.close(master)
        os.close(slave)
    assert (tested.code, watched.code) == (1, 1)
    assert "stop the node, or move the description out of .devices" in tested.err
    assert "device monitor SEGMENT" in watched.err
