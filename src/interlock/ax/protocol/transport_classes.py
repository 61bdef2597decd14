"""The registry of transport classes (MCP-AX 14 (c)): the one place that says which there are.

Registration, the capability annotation, the configuration and docs/ax-reference.md read it. A class of your own begins
with "x-", as no other may, and is named in `ax.transport_classes`; here it has the status "private".
"""

import re
from typing import Final, Literal

import msgspec

PRIVATE_PREFIX: Final = "x-"
PRIVATE_CLASS: Final = r"x-[a-z0-9_-]{1,61}"
NATIVE: Final = "native"


class TransportClass(msgspec.Struct, frozen=True, kw_only=True):
    """Transport class with its framing and payload. `reference` is where it is specified."""

    id: str
    framing: str
    payload: str
    reference: str
    status: Literal["draft", "private"] = "draft"


TRANSPORT_CLASSES: Final[list[TransportClass]] = [  # AX-14-3
    TransportClass(
        id=NATIVE, framing="HTTP, WebSocket or stdio lines", payload="JSON-RPC of MCP", reference="MCP-AX 9.1"
    ),
    TransportClass(id="uart_cbor", framing="UART with COBS", payload="CBOR", reference="MCP-AX 8.1"),
    TransportClass(id="ble_cbor", framing="BLE GATT characteristics", payload="CBOR", reference="MCP-AX 8.1"),
    TransportClass(id="spi_cbor", framing="SPI with a length prefix", payload="CBOR", reference="MCP-AX 8.1"),
    TransportClass(id="can_cbor", framing="CAN with ISO-TP segmentation", payload="CBOR", reference="MCP-AX 8.1"),
    TransportClass(id="mqtt_json", framing="MQTT topics", payload="JSON", reference="MCP-AX 8.1"),
]


def is_private_class(text: str) -> bool:
    return re.fullmatch(PRIVATE_CLASS, text, re.ASCII) is not None  # AX-14-3
