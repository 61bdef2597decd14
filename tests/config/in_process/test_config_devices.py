"""Descriptions of devices: what is read, and what is refused with its file and line."""

import os
from pathlib import Path
from textwrap import dedent

import pytest
from tests.config.config_project import Project

from interlock.config.load import load, read_device_file

GOOD = """\
profile = "a"
[link]
transport = "uart_cbor"
port = "/dev/ttyUSB0"
[[tool]]
id = 1
name = "read"
mutable = false
reversible = true
response = [{ name = "value", type = "u32" }]
resp_len = 4
[[tool]]
id = 2
name = "write"
mutable = true
reversible = false
request = [{ name = "value", type = "u8" }]
req_len = 1
"""


def describe(project: Project, text: str, segment: str = "board") -> Path:
    file = project.folder / ".devices" / f"{segment}.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(dedent(text))
    return file


def test_a_pipe_in_place_of_a_description_is_not_waited_for(project: Project) -> None:
    (project.folder / ".devices").mkdir()
    pipe = project.folder / ".devices" / "board.toml"
    os.mkfifo(pipe)
    assert "is not a regular file" in project.problem("").message
    assert [problem.message for problem in read_device_file(pipe)] == ["is not a regular file"]  # type: ignore[union-attr]


def test_a_description_is_read_into_the_plan(project: Project) -> None:
    describe(project, GOOD)
    (device,) = project.load("").plan.devices.described
    assert device.segment == "board"
    assert [tool.name for tool in device.description.tools] == ["read", "write"]


@pytest.mark.parametrize(
    ("was", "now", "line", "says"),
    [
        ("id = 2", "id = 1", 13, "id 1 is that of tool number 1 already"),
        ('name = "write"', 'name = "read"', 14, "name 'read' is that of tool number 1 already"),
        ('name = "read"', 'name = "Read It"', 7, "the name 'Read It' is not 1 to 63 characters"),
        ("resp_len = 4", "resp_len = 3", 11, "the response of 'read' is 4 bytes long, and resp_len says 3"),
        ("req_len = 1", "req_len = 2", 18, "the request of 'write' is 1 bytes long, and req_len says 2"),
        ("mutable = false\n", "", 5, "'read' does not say whether it is mutable"),
        ("reversible = false\n", "", 12, "'write' does not say whether it is reversible"),
        ('port = "/dev/ttyUSB0"', 'prot = "/dev/ttyUSB0"', 4, "unknown key 'prot'; did you mean 'port'?"),
        ('port = "/dev/ttyUSB0"', 'port = "/dev/ttyUSB0"\nhost = "x"', 5, "'host' is no key of uart_cbor"),
        ('port = "/dev/ttyUSB0"\n', "", 2, "uart_cbor needs 'port'"),
        ('port = "/dev/ttyUSB0"', 'port = "/dev/ttyUSB0"\nbaud = "fast"', 5, "'baud': must be a whole number"),
        ('port = "/dev/ttyUSB0"', 'port = "/dev/ttyUSB0"\ncrc = "none"', 5, "a frame has a checksum"),
        ("id = 2", "id = 256", 13, "'id': expected 'int' <= 255"),
        ('type = "u8"', 'type = "enum"', 17, "'value' is an enum without values"),
        ("id = 2", 'id = 2\nlatency_class = "hasty"', 12, "the capability of 'write' is wrong"),
        ("id = 2", "id = 2\ncapability = { auth_scope = 3 }", 12, "the capability of 'write' is wrong"),
        ("id = 2", 'id = 2\nstatus = { hot = "x" }', 14, "'hot' is no status"),
        ("id = 2", 'id = 2\ninput_schema = { type = "objekt" }', 14, "input_schema of 'write' is no JSON Schema"),
        ('"uart_cbor"', '"can_cbor"', 3, "a device of profile 'a' has no transport can_cbor"),
        ('type = "u8"', 'type = "u8", maximum = 300', 17, "maximum 300 of 'value' is no u8, which has 0 to 255"),
        ('type = "u8"', 'type = "u8", scale = 0.1, maximum = 26', 17, "'value' is no u8, which has 0 to 25.5"),
        ('type = "u32"', 'type = "u32", maximum = 5e9', 10, "maximum 5000000000 of 'value' is no u32"),
        ('type = "u8"', 'type = "i8", minimum = -129', 17, "minimum -129 of 'value' is no i8"),
        ('type = "u8"', 'type = "f32", maximum = inf', 17, "maximum inf of 'value' is no f32"),
        ('type = "u8"', 'type = "u8", minimum = 9, maximum = 8', 17, "minimum 9 of 'value' is more than its maximum 8"),
        ('type = "u8"', 'type = "enum", values = { off = 1, on = 1 }', 17, "'off' and 'on' of 'value' are both 1"),
        ('type = "u8"', 'type = "enum", values = { off = 0, on = 256 }', 17, "'on' of 'value' is 256, which 1 bytes"),
        ('type = "u8"', 'type = "bytes", size = 254', 17, "makes a message of 257 bytes, and the link takes 256"),
        ('type = "u32"', 'type = "bytes", size = 253', 10, "the response of 'read' makes a message of 257 bytes"),
    ],
)
def test_errors_are_reported_with_file_and_line(project: Project, was: str, now: str, line: int, says: str) -> None:
    assert was in GOOD
    file = describe(project, GOOD.replace(was, now, 1))
    problems = project.problems("")
    found = [problem for problem in problems if says in str(problem)]
    assert found, problems
    assert (found[0].file, found[0].line) == (str(file), line)


def test_a_name_that_two_fields_share_is_reported_once(project: Project) -> None:
    twice = '{ name = "value", type = "u8" }, { name = "value", type = "u8" }'
    describe(project, GOOD.replace('{ name = "value", type = "u8" }', twice).replace("req_len = 1", "req_len = 2"))
    assert "two fields have the name 'value'" in project.problem("").message


def test_only_a_device_that_is_polled_says_how(project: Project) -> None:
    describe(project, PROFILE_B.format(baud=9600) + 'presence = "cts"\n')
    assert "announces itself" in project.problem("").message


PROFILE_B = """\
profile = "b"
[link]
transport = "uart_cbor"
port = "/dev/ttyUSB0"
baud = {baud}
"""


@pytest.mark.req("AX-B.2-2")
@pytest.mark.parametrize("baud", [9600, 115200, 921600])
def test_a_self_describing_device_has_9600_baud_or_more(project: Project, baud: int) -> None:
    describe(project, PROFILE_B.format(baud=baud))
    assert project.load("").plan.devices.described
    file = describe(project, PROFILE_B.format(baud=4800))
    problem = project.problem("")
    assert (problem.file, problem.line) == (str(file), 5)
    assert "9600 baud or more" in problem.message
    describe(project, GOOD.replace('port = "/dev/ttyUSB0"', 'port = "/dev/ttyUSB0"\nbaud = 4800'))
    assert project.load("").plan.devices.described  # what a device of profile a speaks is its own affair


@pytest.mark.req("AX-8.N-3", "AX-8.1-2")
def test_what_cannot_be_undone_needs_a_link_that_finds_wrong_bytes(project: Project) -> None:
    final = '[[tool]]\nid = 1\nname = "cut"\nmutable = true\nreversible = false\n'
    describe(project, PROFILE_B.format(baud=9600) + final)
    assert "'cut' cannot be undone, and nothing on this link finds a wrong byte" in project.problem("").message
    for allowing in ('crc = "crc16"', "allow_unchecked = true"):
        describe(project, PROFILE_B.format(baud=9600) + f"{allowing}\n" + final)
        assert project.load("").plan.devices.described


@pytest.mark.req("AX-B.1-1")
@pytest.mark.parametrize("key", ["mutable", "reversible"])
def test_the_effects_of_registers_have_to_be_declared(project: Project, key: str) -> None:
    text = """
    profile = "modbus"
    [link]
    transport = "modbus_tcp"
    host = "127.0.0.1"
    [[tool]]
    id = 1
    name = "read"
    mutable = false
    reversible = true
    registers = [{ table = "input", address = 10, field = { name = "celsius", type = "u16" } }]
    """
    describe(project, text)
    assert project.load("").plan.devices.described
    describe(project, "\n".join(line for line in text.splitlines() if key not in line))
    assert f"'read' does not say whether it is {key}" in project.problem("").message


LINKS = """\
profile = "{profile}"
[link]
transport = "{transport}"
{keys}
{tool}
"""
TOOL = '[[tool]]\nid = 1\nname = "read"\nmutable = false\nreversible = true\n'


@pytest.mark.req("AX-10.4-2")
def test_links_of_devices_need_no_tls_but_a_broker_elsewhere_says_so(project: Project) -> None:
    for transport, keys in (
        ("uart_cbor", 'port = "/dev/ttyUSB0"'),
        ("spi_cbor", ""),
        ("can_cbor", 'channel = "can0"\nrx_id = 1\ntx_id = 2'),
        ("ble_cbor", 'address = "C0:FF:EE:00:00:01"'),
    ):
        describe(project, LINKS.format(profile="b", transport=transport, keys=keys, tool=TOOL))
        assert project.load("").plan.devices.described
    for host, tls, is_taken in (
        ("localhost", "", True),
        ("127.0.0.1", "", True),
        ("broker.example.com", "", False),
        ("broker.example.com", "tls = true", True),
        ("broker.example.com", "tls = false", True),
    ):
        describe(
            project, LINKS.format(profile="json", transport="mqtt_json", keys=f'host = "{host}"\n{tls}', tool=TOOL)
        )
        if is_taken:
            assert project.load("").plan.devices.described
        else:
            assert "reached with TLS" in project.problem("").message


def test_two_devices_do_not_share_a_line_nor_a_server_its_segment(project: Project) -> None:
    describe(project, GOOD)
    describe(project, GOOD, "other")
    assert "its port is that of 'board' already" in project.problem("").message
    (project.folder / ".devices" / "other.toml").unlink()
    problem = project.problem('[servers.board]\ncommand = ["true"]\n')
    assert "'board' is the segment of a server already" in problem.message
    describe(project, GOOD, "Wrong Name")
    assert any("Wrong Name.toml" in str(problem.file) for problem in project.problems(""))


@pytest.mark.parametrize(
    "text", ["", "profile = 3", "[link]", "tool = 3\nprofile='a'\nlink={}", "link = []", "[[tool]]\n[[tool]]"]
)
def test_nonsense_is_refused_in_words(project: Project, text: str) -> None:
    describe(project, text)
    assert project.problems("")


def test_the_node_may_simulate_many_devices(project: Project) -> None:
    for segment in ("one", "two"):
        describe(project, GOOD.replace("/dev/ttyUSB0", "simulated"), segment)
    assert len(project.load("").plan.devices.described) == 2


def test_a_lenient_reading_keeps_a_wrong_description_to_its_device(project: Project) -> None:
    describe(project, GOOD)
    for segment, text in (("wrong", "profile = 1\n"), ("nonsense", "= [")):
        describe(project, text, segment)
    project.file.write_text("")
    loaded = load(project.file, project.env, {}, lenient=True)
    faults = {device.segment: device.fault for device in loaded.plan.devices.described}
    assert faults["board"] is None
    assert "wrong.toml:1: " in (faults["wrong"] or "") and "nonsense.toml:1" in (faults["nonsense"] or "")
    assert {Path(one.file or "").name for one in loaded.warnings} == {"wrong.toml", "nonsense.toml"}
