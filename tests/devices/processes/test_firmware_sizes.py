"""Do the stubs keep to the budgets of MCP-AX, and hold nothing of what is the gateway's?"""

import importlib.util
import re
import subprocess
import sys
from types import ModuleType

import pytest
from tests.devices.emulated_chips import FIRMWARE, ROOT, built, need

need("avr-gcc", "arm-none-eabi-gcc", "sdcc")


@pytest.fixture(scope="module")
def measured() -> ModuleType:
    for kind in ("avr", "arm", "mcs51"):
        built(kind)
    spec = importlib.util.spec_from_file_location("firmware_sizes", ROOT / "tools" / "firmware_sizes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["firmware_sizes"] = module
    spec.loader.exec_module(module)
    return module


def symbols(program: str, name: str) -> dict[str, tuple[int, str]]:
    said = subprocess.run([program, str(built("avr") / name)], capture_output=True, text=True, check=True).stdout
    return {name: (int(address, 16), kind) for address, kind, name in re.findall(r"^(\w+) (\w) (\S+)$", said, re.M)}


@pytest.mark.req("AX-8.3-4", "AX-8.3-5", "AX-B.2-1", "AX-8.N-4")
def test_stubs_keep_to_their_budgets_and_the_page_says_so(measured: ModuleType) -> None:
    rows = measured.sizes()
    assert measured.above_budget(rows) == []
    assert {row.chip for row in rows if row.stub[0] == "A" and row.ram_max == 4} == {"ATmega328P", "8051"}
    programs = [row for row in rows if row.stub[0] == "B" and "table" not in row.stub]
    assert {row.chip for row in programs} == {"ATmega328P", "Cortex-M0", "8051"}
    assert {(row.code_max, row.ram_max) for row in programs} == {(2047, 255)}
    assert measured.is_current(rows, measured.PAGE.read_text()), "run python tools/firmware_sizes.py"
    too_large = rows[-1]._replace(code=512)
    assert measured.above_budget([too_large])


@pytest.mark.req("AX-8.3-4")
def test_tables_are_in_program_memory_and_there_is_no_heap(measured: ModuleType) -> None:
    for stub, table in (("avr_a.elf", "commands"), ("avr_b_16_tools.elf", "tools")):
        found = symbols("avr-nm", stub)
        address, kind = found[table]
        assert kind == "t" and address < 0x8000  # RAM is from 0x800000
        assert not [name for name in found if re.search(r"malloc|calloc|realloc|^free$|sbrk|__brkval|__flp", name)]


@pytest.mark.req("AX-8.3-1")
def test_sources_and_programs_know_nothing_of_what_is_the_gateways(measured: ModuleType) -> None:
    foreign = re.compile(rb"json|http|sse\b|text/event|session|oauth|bearer|password|token|qualified", re.I)
    sources = [FIRMWARE / "mcpax.h", *FIRMWARE.glob("mcpax_*.c"), *FIRMWARE.glob("ports/*.c")]
    sources += FIRMWARE.glob("examples/*.c")
    programs = [*built("avr").glob("*.elf")]
    assert len(sources) >= 8 and len(programs) >= 12
    for file in programs:
        assert not foreign.search(file.read_bytes()), file.name
    for file in sources:
        found = foreign.search(file.read_bytes())
        assert found is None, (file.name, found)
