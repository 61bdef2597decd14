"""The description of a device: the content of `.devices/SEGMENT.toml`, as values (AX-B.1-1).

There are four profiles:

    a       The device knows command numbers alone. Names, layouts and capabilities are all in the description, and
            `mutable` and `reversible` are written out for every tool, because no default is safe for hardware.
    b       The device describes itself. The description names, narrows and classifies the ids that it announces.
    json    A device on MQTT, with tools by name.
    modbus  A device whose registers are mapped to tools.

The types check what types can check. Everything else is checked in `description_check`, with the place in the file.
"""

from typing import Annotated, Literal

import msgspec

from interlock.net.protocol.address_scope import is_loopback

TOOL_ID_MAX = 255  # uint8_t of the reference structs
SIMULATED = "simulated"  # the port of a device that the node itself plays
TOOLS_MAX = 64  # of one device (AX-B.2-5)
MQTT_PORT, MQTT_PORT_TLS = 1883, 8883
PARITIES = {"none": "N", "even": "E", "odd": "O"}  # as the libraries of serial lines call them

Profile = Literal["a", "b", "json", "modbus"]
Order = Literal["little", "big"]
FieldType = Literal["u8", "u16", "u32", "i8", "i16", "i32", "f32", "bool", "enum", "bytes", "text"]
Checksum = Literal["auto", "none", "crc8", "crc16"]
Presence = Literal["poll", "cts", "gpio", "assume"]

ToolId = Annotated[int, msgspec.Meta(ge=0, le=TOOL_ID_MAX)]
CanId = Annotated[int, msgspec.Meta(ge=0, le=0x1FFFFFFF)]  # 29 bits
CborType = Annotated[int, msgspec.Meta(ge=0, le=7)]  # major types of CBOR


class Field(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field of a message: an argument of a call, or a member of a result."""

    name: str
    type: FieldType = "u8"
    size: int | None = None  # bytes and text: of a fixed field; None: all that is left, for the last one
    tag: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None  # of a TLV
    values: dict[str, int] = {}  # enum: the number of each name
    scale: float = 1.0  # what a person reads = number * scale + offset
    offset: float = 0.0
    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False  # TLV alone
    description: str | None = None


class ModbusRegister(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The register that a tool of a Modbus device reads or writes."""

    table: Literal["holding", "input", "coil", "discrete"]
    address: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    field: Field
    write: bool = False
    order: Order = "big"  # of the two bytes of a register
    word_order: Order = "big"  # of the registers of one value


class ToolDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of one tool: the number of its command, the layout of its messages, and its effects."""

    id: ToolId
    name: str
    description: str | None = None
    mutable: bool | None = None
    reversible: bool | None = None
    idempotent: bool = False
    latency_class: str | None = None
    capability: dict[str, object] = {}  # further keys of x-mcpax-capability
    payload: Literal["struct", "tlv", "raw"] = "struct"
    order: Order = "little"
    request: tuple[Field, ...] = ()
    response: tuple[Field, ...] = ()
    req_len: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None  # what the device's table says, to be compared
    resp_len: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    arg_types: tuple[CborType, ...] | None = None  # profile b: as announced; what a description says is compared
    ret_type: CborType | None = None
    status: dict[str, str] = {}  # names of the numbers other than 0, by the number as text
    input_schema: dict[str, object] | None = None
    output_schema: dict[str, object] | None = None
    registers: tuple[ModbusRegister, ...] = ()


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of an event: a message that a device sends without a request, under an id of its own."""

    id: ToolId
    name: str
    description: str | None = None
    order: Order = "little"
    response: tuple[Field, ...] = ()


class LinkDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connection to a device: the table [link] of its description. `check_description` refuses keys that do not
    belong to the transport.
    """

    transport: Literal["uart_cbor", "ble_cbor", "spi_cbor", "can_cbor", "mqtt_json", "modbus_tcp", "modbus_rtu"]
    # every transport
    max_frame: Annotated[int, msgspec.Meta(ge=16, le=4095)] = 256  # bytes of one message
    heartbeat_ms: Annotated[int, msgspec.Meta(ge=50)] = 5000
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] = 1000  # of one attempt
    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2
    in_flight: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    emit_jsonrpc: bool = False
    allow_unchecked: bool = False  # an irreversible tool over a link without a checksum
    allow_values: bool = False  # results that are no maps become {"value": ...}
    # uart_cbor, modbus_rtu
    port: str | None = None  # a device file, socket://HOST:PORT, or simulated
    baud: int = 115200
    parity: Literal["none", "even", "odd"] = "none"
    framing: Literal["cobs", "frame"] | None = None  # None: "frame" for profile a, "cobs" for b
    sof: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0x7E
    len: Literal["auto", 1, 2] = "auto"
    crc: Checksum = "auto"  # of "cobs": auto is none
    status: Literal["last", "first"] = "last"
    gap_ms: float | None = None  # silence that ends a frame; None: 20 character times, at least 5 ms
    reset_on_open: bool = False  # DTR and RTS fall when the port is closed: many boards reset when they rise again
    presence: Presence = "poll"
    gpio: str | None = None  # presence or readiness: a file that reads 1 while it holds
    # ble_cbor
    address: str | None = None
    service: str | None = None
    write: str | None = None  # characteristics
    notify: str | None = None
    # spi_cbor
    bus: int = 0
    chip: int = 0
    speed_hz: int = 500_000
    poll_ms: float = 5.0
    # can_cbor
    interface: str = "socketcan"
    channel: str | None = None
    rx_id: CanId | None = None
    tx_id: CanId | None = None
    # mqtt_json
    host: str | None = None
    tcp_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    username: str | None = None
    password: str | None = None  # ${secrets.NAME}
    tls: bool | None = None  # False has to be written for a broker elsewhere
    topic: str | None = None  # the <link> of mcpax/<link>/down; None: the segment
    # modbus
    unit: Annotated[int, msgspec.Meta(ge=0, le=247)] = 1
    # modbus_rtu
    echo: bool = True  # after a lost answer the unit is asked to echo (function 8), which tells a late one apart

    @property
    def broker(self) -> tuple[str, int, bool]:
        """Return host and port of the MQTT broker, and whether it is reached with TLS."""
        host = self.host or "localhost"
        tls = self.tls if self.tls is not None else not is_loopback(host)
        return host, self.tcp_port or (MQTT_PORT_TLS if tls else MQTT_PORT), tls


class DeviceDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The complete description of a device, as in `.devices/SEGMENT.toml`."""

    profile: Profile
    link: LinkDescription
    description: str | None = None
    tools: tuple[ToolDescription, ...] = msgspec.field(default=(), name="tool")
    events: tuple[Event, ...] = msgspec.field(default=(), name="event")
