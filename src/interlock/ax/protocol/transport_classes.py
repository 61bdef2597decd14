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


def check_classes(classes: list[TransportClass]) -> str | None:
    """Return why the registry cannot be used, or None."""
    ids = [transport_class.id for transport_class in classes]
    if len(set(ids)) < len(ids):
        return "a transport class stands in the registry twice"
    for transport_class in classes:
        if transport_class.id.startswith(PRIVATE_PREFIX) is not (transport_class.status == "private"):
            return (
                f'transport class "{transport_class.id}": private classes, and only they, begin with "{PRIVATE_PREFIX}"'
            )
    return None
