"""Descriptions of devices for tests, read from the text of a file as a node reads it."""

import tomllib

from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.protocol.description_check import read_description


def described(text: str) -> DeviceDescription:
    read = read_description(tomllib.loads(text))
    assert isinstance(read, DeviceDescription), read
    return read
