"""A private transport class that is added to the registry before anything reads it (MCP-AX 14)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.req("AX-14-3")
def test_a_private_class_that_is_added_to_the_registry_is_accepted_everywhere() -> None:
    program = """
from interlock.ax.protocol import capability as transports
lora = transports.TransportClass(id="x-lora", framing="LoRa", payload="CBOR", reference="ours", status="private")
transports.TRANSPORT_CLASSES.append(lora)
from interlock.ax.protocol.capability import Capability, InvalidAnnotation, read_capability
from interlock.config.schema import sections
from tools.ax_reference import METHODS, check_classes, main, page
import msgspec
assert check_classes(transports.TRANSPORT_CLASSES) is None
assert isinstance(read_capability({"transport": "x-lora"}), Capability)
assert isinstance(read_capability({"transport": "x-other"}), InvalidAnnotation)
assert "x-lora" in METHODS[0].params["properties"]["transport_class"]["enum"]
assert "`x-lora`" in page()
from interlock.ax.protocol.registration.codec import read_register_untrusted
said = b'{"subserver_id":"550e8400-e29b-41d4-a716-446655440000","segment":"a","transport_class":"x-%b"}'
assert read_register_untrusted(msgspec.Raw(said % b"lora")).transport_class == "x-lora"
assert read_register_untrusted(msgspec.Raw(said % b"Other")).details["known"][-1] == "x-lora"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
