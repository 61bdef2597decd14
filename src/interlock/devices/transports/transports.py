"""The transports of devices by the names that descriptions give them, imported when one is used."""

from importlib import import_module

from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.transports.connections import Connections
from interlock.devices.transports.transport import Transport, TransportFailed, TransportOwner

TRANSPORTS = {
    "uart_cbor": "uart:UartTransport",
    "ble_cbor": "ble:BleTransport",
    "spi_cbor": "spi:SpiTransport",
    "can_cbor": "can_bus:CanTransport",
    "mqtt_json": "mqtt:MqttTransport",
    "modbus_tcp": "modbus:ModbusTransport",
    "modbus_rtu": "modbus:ModbusTransport",
}


def make_transport(
    segment: str, description: DeviceDescription, owner: TransportOwner, connections: Connections
) -> Transport:
    """A transport that is not open yet. Raises TransportFailed where a library that it needs is not installed."""
    name = description.link.transport
    module, _, attribute = TRANSPORTS[name].partition(":")
    try:
        transport = getattr(import_module(f"interlock.devices.transports.{module}"), attribute)
    except ModuleNotFoundError as error:
        raise TransportFailed(f"{name} needs the library {error.name}: install the extra interlock[devices]") from error
    made: Transport = transport(segment, description, owner, connections)
    return made
