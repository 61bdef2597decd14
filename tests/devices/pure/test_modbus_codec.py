"""Registers and coils to requests of Modbus and back: types, orders, and answers that are none."""

import random
from typing import Any

import pytest

from interlock.devices.protocol.description import (
    DeviceDescription,
    Field,
    LinkDescription,
    ModbusRegister,
    ToolDescription,
)
from interlock.devices.protocol.device_tools import input_schema, output_schema
from interlock.devices.protocol.messages import DeviceAnswer, DeviceFault
from interlock.devices.protocol.modbus_codec import ModbusCodec, is_answer, register_faults


def tool(*registers: ModbusRegister) -> ToolDescription:
    return ToolDescription(id=1, name="t", mutable=True, reversible=True, registers=registers)


def codec(*tools: ToolDescription) -> ModbusCodec:
    link = LinkDescription(transport="modbus_tcp", host="plc")
    return ModbusCodec(DeviceDescription(profile="modbus", link=link, tools=tools))


def holding(
    address: int = 0x10, *, write: bool = False, order: str = "big", words: str = "big", **field: Any
) -> ModbusRegister:
    made = Field(name="v", **field)
    return ModbusRegister(table="holding", address=address, field=made, write=write, order=order, word_order=words)  # type: ignore[arg-type]


VALUES = [
    (holding(type="u16"), 0x1234, "1234"),
    (holding(type="u16", order="little"), 0x1234, "3412"),
    (holding(type="i16", scale=0.1, unit="%"), -12.5, "ff83"),
    (holding(type="u8"), 7, "0007"),
    (holding(type="i8"), -2, "fffe"),
    (holding(type="u32"), 0x12345678, "12345678"),
    (holding(type="u32", words="little"), 0x12345678, "56781234"),
    (holding(type="u32", order="little"), 0x12345678, "34127856"),
    (holding(type="u32", order="little", words="little"), 0x12345678, "78563412"),
    (holding(type="f32"), 21.5, "41ac0000"),
    (holding(type="bool"), True, "0001"),
    (holding(type="enum", values={"off": 0, "on": 3}), "on", "0003"),
    (holding(type="text", size=3), "ab", "61620000"),
    (holding(type="bytes", size=4), "AQIDBA==", "01020304"),
]


@pytest.mark.parametrize(("register", "value", "words"), VALUES)
def test_a_value_is_read_and_written_as_its_type_and_orders_say(
    register: ModbusRegister, value: Any, words: str
) -> None:
    data = bytes.fromhex(words)
    reading = tool(register)
    count = len(data) // 2
    assert codec(reading).encode_call(1, reading, {}) == bytes.fromhex(f"0001 05 03 0010 {count:04x}")
    answer = codec(reading).decode_untrusted(bytes([0, 1, 2 + len(data), 3, len(data)]) + data)
    assert isinstance(answer, DeviceAnswer)
    assert codec(reading).result(reading, answer.payload) == {"v": value}

    writing = tool(holding_of(register))
    message = codec(writing).encode_call(2, writing, {"v": value})
    head = "0002 05 06 0010" if count == 1 else f"0002 {6 + len(data):02x} 10 0010 {count:04x} {len(data):02x}"
    assert message == bytes.fromhex(head) + data
    echo = message[3:] if count == 1 else message[3:8]
    assert codec(writing).result(writing, [echo]) == {}


def holding_of(register: ModbusRegister) -> ModbusRegister:
    return ModbusRegister(
        table="holding",
        address=register.address,
        field=register.field,
        write=True,
        order=register.order,
        word_order=register.word_order,
    )


def test_coils_and_inputs_are_bits() -> None:
    read = tool(
        ModbusRegister(table="coil", address=3, field=Field(name="open", type="bool")),
        ModbusRegister(table="discrete", address=4, field=Field(name="closed", type="bool")),
    )
    assert codec(read).encode_call(9, read, {}) == bytes.fromhex("0009 05 01 0003 0001 05 02 0004 0001")
    assert codec(read).result(read, [b"\x01\x01\x01", b"\x02\x01\x00"]) == {"open": True, "closed": False}
    write = tool(ModbusRegister(table="coil", address=3, field=Field(name="open", type="bool"), write=True))
    assert codec(write).encode_call(9, write, {"open": True}) == bytes.fromhex("0009 05 05 0003 ff00")
    assert codec(write).encode_call(9, write, {"open": False}) == bytes.fromhex("0009 05 05 0003 0000")
    assert input_schema(write)["required"] == ["open"]
    assert set((output_schema(read) or {})["properties"]) == {"open", "closed"}


def test_arguments_that_do_not_fit_are_refused_before_they_are_sent() -> None:
    write = tool(holding(type="u16", write=True, maximum=100))
    for arguments in ({"v": 101}, {"v": -1}, {"v": "1"}, {}, {"v": 1, "w": 1}):
        with pytest.raises(DeviceFault) as caught:
            codec(write).encode_call(1, write, arguments)
        assert caught.value.code == "argument_invalid"


def test_an_exception_has_its_number_and_its_name() -> None:
    answer = codec(tool(holding())).decode_untrusted(bytes.fromhex("0001 02 8302"))
    assert answer == DeviceAnswer(request_id=1, status=2, name="illegal_data_address")
    answer = codec(tool(holding())).decode_untrusted(bytes.fromhex("0001 02 8377"))
    assert answer == DeviceAnswer(request_id=1, status=0x77, name=None)


def test_a_heartbeat_reads_what_the_first_tool_reads() -> None:
    assert codec(tool(holding(0x77))).encode_heartbeat(5) == bytes.fromhex("0005 05 03 0077 0001")


def test_answers_to_something_else_are_invalid() -> None:
    read = tool(holding(type="u8"))
    for unit in (b"\x04\x02\0\1", b"\x03\x02\1\1", b"\x03\x04\0\0\0\1", b"\x03\x02\0", b"\x03"):
        with pytest.raises(DeviceFault) as caught:
            codec(read).result(read, [unit])
        assert caught.value.code == "response_invalid"
    write = tool(holding(type="u8", write=True))
    with pytest.raises(DeviceFault):
        codec(write).result(write, [b"\x06\0\x11\0\1"])  # another address


def test_a_write_is_answered_with_what_was_to_be_written_and_where() -> None:
    for request, answer in (
        ("06 0010 1234", "06 0010 1234"),
        ("05 0010 ff00", "05 0010 ff00"),
        ("10 0010 0002 04 12345678", "10 0010 0002"),
        ("06 0010 1234", "86 02"),
        ("03 0010 0001", "03 02 1234"),
    ):
        assert is_answer(bytes.fromhex(request), bytes.fromhex(answer))
    for request, answer in (
        ("06 0010 1234", "06 0010 1235"),
        ("06 0010 1234", "06 0011 1234"),
        ("05 0010 ff00", "05 0010 0000"),
        ("10 0010 0002 04 12345678", "10 0010 0001"),
        ("06 0010 1234", "90 02"),
        ("03 0010 0001", "04 02 1234"),
    ):
        assert not is_answer(bytes.fromhex(request), bytes.fromhex(answer))


def test_garbage_raises_the_one_error() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        message = chance.randbytes(chance.randrange(12))
        try:
            codec(tool(holding())).decode_untrusted(message)
        except DeviceFault as fault:
            assert fault.code == "malformed"


def test_registers_that_cannot_be_are_named() -> None:
    def faults(register: ModbusRegister) -> str:
        return "; ".join(register_faults(register))

    assert "bool" in faults(ModbusRegister(table="coil", address=0, field=Field(name="v")))
    assert "written" in faults(ModbusRegister(table="input", address=0, field=Field(name="v"), write=True))
    assert "size" in faults(holding(type="text"))
    assert "123" in faults(holding(type="text", size=300))
    assert "last address" in faults(holding(0xFFFF, type="u32"))
    assert faults(holding(type="f32")) == ""
