"""A serial line that is a pty: what opening and closing its port does to the lines beside the bytes."""

import os
import termios
from collections.abc import Iterator

import pytest
from tests.devices.device_owner import Owner, description

from interlock.devices.transports.transport import SharedConnections
from interlock.devices.transports.uart import UartTransport

CFLAG = 2  # of what tcgetattr returns


@pytest.fixture
def line() -> Iterator[tuple[int, str]]:
    """Its descriptor and its name, fresh: as every port it hangs up when it is closed."""
    master, slave = os.openpty()
    settings = termios.tcgetattr(slave)
    settings[CFLAG] |= termios.HUPCL
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    yield slave, os.ttyname(slave)
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize("resets", [False, True])
async def test_a_port_lets_go_of_dtr_only_where_the_board_is_to_be_reset(line: tuple[int, str], resets: bool) -> None:
    """DTR that fell when the port was closed rises when it is opened, which resets many boards."""
    slave, port = line
    link = description(transport="uart_cbor", port=port, reset_on_open=resets)
    transport = UartTransport("valve", link, Owner(), SharedConnections())
    await transport.open()
    try:
        assert bool(termios.tcgetattr(slave)[CFLAG] & termios.HUPCL) is resets
    finally:
        await transport.close()
