"""Messages of a Modbus device: a call is the requests of its registers and coils, one after the other.

Modbus has no messages of several requests, so one is defined here for the transport: the request id (two bytes) and the
protocol data units of Modbus, each behind one byte of its length. The answer has the same form. An exception ends it:
the requests behind it were not sent.

Values of several registers have a byte order within a register and an order of registers, which differ by
manufacturer. A written value is confirmed by the unit, and the confirmation is compared with the request.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from interlock.devices.protocol.description import DeviceDescription, ModbusRegister, ToolDescription
from interlock.devices.protocol.layouts import decode_payload, encode_payload, size_of
from interlock.devices.protocol.messages import Codec, DeviceAnswer, DeviceFault, Received, check_names

ID_MAX: Final = 0xFFFF
WORDS_MAX: Final = 123  # registers that one request may write
EXCEPTION: Final = 0x80  # this bit of the function code says that it failed
COIL_ON: Final = 0xFF00

READ: Final = {"coil": 0x01, "discrete": 0x02, "holding": 0x03, "input": 0x04}
WRITE_COIL: Final = 0x05
WRITE_WORD: Final = 0x06
WRITE_WORDS: Final = 0x10

EXCEPTIONS: Final = {
    0x01: "illegal_function",
    0x02: "illegal_data_address",
    0x03: "illegal_data_value",
    0x04: "server_device_failure",
    0x05: "acknowledge",
    0x06: "server_device_busy",
    0x08: "memory_parity_error",
    0x0A: "gateway_path_unavailable",
    0x0B: "gateway_target_failed_to_respond",
}


class ModbusCodec(Codec):
    """The codec of Modbus devices, in which a message is a sequence of register and coil requests."""

    id_max = ID_MAX

    def __init__(self, description: DeviceDescription) -> None:
        first = next((register for tool in description.tools for register in tool.registers), None)
        table, address = ("holding", 0) if first is None else (first.table, first.address)
        self._heartbeat = struct.pack(">BHH", READ[table], address, 1)

    def encode_call(self, request_id: int, tool: ToolDescription, arguments: Mapping[str, Any]) -> bytes:
        check_names(arguments, {register.field.name for register in tool.registers if register.write})
        return _joined(request_id, [_request(register, arguments) for register in tool.registers])

    def encode_heartbeat(self, request_id: int) -> bytes:
        """Return a harmless read request, which serves as a heartbeat. Any answer shows that the device is alive, even
        an exception.
        """
        return _joined(request_id, [self._heartbeat])

    def decode_untrusted(self, message: bytes) -> Received:
        request_id, units = split_untrusted(message)
        last = units[-1]
        if not last[0] & EXCEPTION:
            return DeviceAnswer(request_id=request_id, payload=units)
        if len(last) != 2 or last[1] == 0:
            raise DeviceFault("malformed", "an exception without its number")
        return DeviceAnswer(request_id=request_id, status=last[1], name=EXCEPTIONS.get(last[1]))

    def result(self, tool: ToolDescription, payload: Any) -> dict[str, Any]:
        if len(payload) != len(tool.registers):
            raise DeviceFault("response_invalid", f"{len(payload)} answers instead of {len(tool.registers)}")
        content = {}
        for register, unit in zip(tool.registers, payload, strict=True):
            if register.write:
                write = WRITE_WORD if word_count(register) == 1 else WRITE_WORDS
                function = WRITE_COIL if register.table == "coil" else write
                if len(unit) != 5 or unit[:3] != struct.pack(">BH", function, register.address):
                    raise DeviceFault("response_invalid", "not the answer to what was written", register.field.name)
            else:
                content[register.field.name] = _value(register, unit)
        return content


def split_untrusted(message: bytes) -> tuple[int, list[bytes]]:
    """Split a message into the request id and at least one protocol data unit. Raise DeviceFault (malformed) if that is
    impossible.
    """
    units = []
    at = 2
    while at < len(message):
        end = at + 1 + message[at]
        if end > len(message) or end == at + 1:
            break
        units.append(message[at + 1 : end])
        at = end
    request_id = int.from_bytes(message[:2], "big")
    if at != len(message) or not units or request_id == 0:
        raise DeviceFault("malformed", "not an id with units behind their lengths")
    return request_id, units


def is_answer(request: bytes, answer: bytes) -> bool:
    """Return whether a Modbus message can be the answer to a request. The answer to a write repeats its address and
    value.
    """
    function = request[0]
    if answer[0] & EXCEPTION:
        return answer[0] == function | EXCEPTION
    if function in (WRITE_COIL, WRITE_WORD, WRITE_WORDS):
        return answer == request[:5]
    count = int.from_bytes(request[3:5], "big")
    size = (count + 7) // 8 if function in (READ["coil"], READ["discrete"]) else 2 * count
    return answer[0] == function and len(answer) == 2 + size and answer[1] == size


def word_count(register: ModbusRegister) -> int:
    """Return the number of registers that the value occupies."""
    return ((size_of(register.field) or 1) + 1) // 2


def register_faults(register: ModbusRegister) -> Iterator[str]:
    """Yield the faults in the description of a register, as text for people."""
    field = register.field
    if register.table in ("coil", "discrete"):
        if field.type != "bool":
            yield f"a {register.table} is a bool, not {field.type}"
    elif size_of(field) is None:
        yield f"{field.name!r} needs its size in bytes"
    elif word_count(register) > WORDS_MAX:
        yield f"{field.name!r} takes more than {WORDS_MAX} registers"
    elif register.address + word_count(register) - 1 > 0xFFFF:
        yield f"{field.name!r} ends beyond the last address"
    if register.write and register.table in ("input", "discrete"):
        yield f"registers of the table {register.table} cannot be written"


def _joined(request_id: int, units: list[bytes]) -> bytes:
    return request_id.to_bytes(2, "big") + b"".join(bytes((len(unit),)) + unit for unit in units)


def _request(register: ModbusRegister, arguments: Mapping[str, Any]) -> bytes:
    is_bit = register.table in ("coil", "discrete")
    if not register.write:
        count = 1 if is_bit else word_count(register)
        return struct.pack(">BHH", READ[register.table], register.address, count)
    name = register.field.name
    written = {name: arguments[name]} if name in arguments else {}
    data = encode_payload("struct", "big", (register.field,), written)
    if is_bit:
        return struct.pack(">BHH", WRITE_COIL, register.address, COIL_ON if data == b"\1" else 0)
    if len(data) % 2:
        if register.field.type in ("bytes", "text"):
            data += b"\0"
        else:
            data = (b"\xff" if register.field.type == "i8" and data[0] & 0x80 else b"\0") + data
    words = _reordered(register, data)
    if len(words) == 2:
        return struct.pack(">BH", WRITE_WORD, register.address) + words
    return struct.pack(">BHHB", WRITE_WORDS, register.address, len(words) // 2, len(words)) + words


def _reordered(register: ModbusRegister, data: bytes) -> bytes:
    """Convert data between the usual byte order, high byte first, and the byte order of a register. The same function
    converts in both directions.
    """
    words = [data[at : at + 2] for at in range(0, len(data), 2)]
    if register.order == "little":
        words = [word[::-1] for word in words]
    if register.word_order == "little":
        words.reverse()
    return b"".join(words)


def _value(register: ModbusRegister, unit: bytes) -> Any:
    field = register.field
    is_bit = register.table in ("coil", "discrete")
    length = 1 if is_bit else 2 * word_count(register)
    if unit[0] != READ[register.table] or len(unit) != 2 + length or unit[1] != length:
        raise DeviceFault("response_invalid", "not the answer to what was read", field.name)
    data = unit[2:]
    if is_bit:
        return bool(data[0] & 1)
    data = _reordered(register, data)
    size = size_of(field) or 1
    if len(data) > size:
        if field.type in ("bytes", "text"):
            data = data[:size]
        else:
            high, data = data[:-size], data[-size:]
            if high != (b"\xff" if field.type == "i8" and data[0] & 0x80 else b"\0"):
                raise DeviceFault("response_invalid", f"more than {field.type} holds", field.name)
    return decode_payload("struct", "big", (field,), data)[field.name]
