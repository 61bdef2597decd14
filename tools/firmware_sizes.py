"""The table of docs/devices-firmware.md: sizes of the stubs of firmware/, measured where their compilers are.

Compilers change what they make: `--check` holds the budgets of MCP-AX, and compares the table itself only where the
versions are those that it names.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "devices-firmware.md"
BUILD = ROOT / ".cache" / "firmware"
GAP_MS = 400  # as tests/devices/emulated_chips.py builds them
MCS51_CODE = ("CSEG", "CONST", "GSINIT", "HOME")
MCS51_RAM = ("DSEG", "OSEG", "ISEG", "BSEG", "PSEG", "XSEG", "XISEG")
BEGIN, END = "<!-- sizes: written by tools/firmware_sizes.py -->", "<!-- end of sizes -->"


class Size(NamedTuple):
    stub: str
    chip: str
    code: int  # bytes of flash, constants included
    ram: int  # bytes of .data and .bss
    code_max: int | None
    ram_max: int | None


def sizes() -> list[Size]:
    rows = [
        Size("A: the protocol alone", "ATmega328P", *_elf("avr-size", "avr_mcpax_a.o"), None, 4),
        Size("A: six commands", "ATmega328P", *_elf("avr-size", "avr_a.elf"), None, None),
        Size("A: six commands", "Cortex-M0", *_elf("arm-none-eabi-size", "arm_a.elf"), None, None),
        Size("A: the protocol alone", "8051", _mcs51_a(*MCS51_CODE), _mcs51_a(*MCS51_RAM), None, 4),
    ]
    for name, what in (
        ("reference", "B: the draft's two tools"),
        ("reference_crc16", "B: the same, with CRC-16"),
        ("16_tools", "B: sixteen tools"),
    ):
        rows.append(Size(what, "ATmega328P", *_elf("avr-size", f"avr_b_{name}.elf"), 2047, 255))
        rows.append(Size(what, "Cortex-M0", *_elf("arm-none-eabi-size", f"arm_b_{name}.elf"), 2047, 255))
        rows.append(Size(what, "8051", *_mcs51_program(f"b_{name}"), 2047, 255))
    for chip, prefix, nm in (("ATmega328P", "avr", "avr-nm"), ("Cortex-M0", "arm", "arm-none-eabi-nm")):
        table = _symbol(nm, f"{prefix}_b_16_tools.elf", "tools")
        rows.append(Size("B: the table of sixteen tools", chip, table, 0, 511, 0))
    rows.append(Size("B: the table of sixteen tools", "8051", _area("mcs51_b_16_tools/many_b", "CONST"), 0, 511, 0))
    return rows


def versions() -> str:
    named = []
    for program in ("avr-gcc", "arm-none-eabi-gcc", "sdcc"):
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"\d+\.\d+\.\d+", said.replace("TD- ", ""))
        named.append(f"{program} {found.group() if found else '?'}")
    return ", ".join(named)


def table(rows: list[Size]) -> str:
    lines = [f"Measured with {versions()}.", "", "| stub | chip | flash | RAM | may be |", "|---|---|---|---|---|"]
    for row in rows:
        limits = [
            f"{what} {most}" for what, most in (("flash", row.code_max), ("RAM", row.ram_max)) if most is not None
        ]
        lines.append(f"| {row.stub} | {row.chip} | {row.code} | {row.ram} | {', '.join(limits) or '-'} |")
    return "\n".join(lines)


def above_budget(rows: list[Size]) -> list[str]:
    return [
        f"{row.stub} on {row.chip}: {is_} bytes of {what}, {most} at most"
        for row in rows
        for what, is_, most in (("flash", row.code, row.code_max), ("RAM", row.ram, row.ram_max))
        if most is not None and is_ > most
    ]


def is_current(rows: list[Size], page: str) -> bool:
    written = page.partition(BEGIN)[2].partition(END)[0].strip()
    return f"Measured with {versions()}." not in written or written == table(rows)


def _elf(program: str, name: str) -> tuple[int, int]:
    said = subprocess.run([program, str(BUILD / name)], capture_output=True, text=True, check=True).stdout
    text, data, bss = (int(cell) for cell in said.splitlines()[1].split()[:3])
    return text + data, data + bss


def _symbol(program: str, name: str, symbol: str) -> int:
    said = subprocess.run([program, "-S", str(BUILD / name)], capture_output=True, text=True, check=True).stdout
    return int(re.search(rf"^\w+ (\w+) \w {symbol}$", said, re.MULTILINE).group(1), 16)  # type: ignore[union-attr]


def _area(module: str, name: str) -> int:
    """Bytes of this area in an object of sdcc."""
    found = re.search(rf"^A {name} size (\w+)", (BUILD / f"{module}.rel").read_text(), re.MULTILINE)
    return int(found.group(1), 16) if found else 0


def _mcs51_a(*names: str) -> int:
    """Bytes of these areas in the objects of Profile A's protocol."""
    return sum(_area(f"mcs51_a/{module}", name) for module in ("mcpax_a", "mcpax_next") for name in names)


def _mcs51_program(name: str) -> tuple[int, int]:
    """Of a whole program: what the linker says; its RAM is all below the stack, with the registers, and has to be
    the chip's own."""
    text = (BUILD / f"mcs51_{name}.mem").read_text()
    found = re.search(
        r"^Stack starts at: 0x(\w+).*^ +EXTERNAL RAM +0 .*^ +ROM\S* +0x\w+ +0x\w+ +(\d+)", text, re.M | re.S
    )
    if found is None:
        raise ValueError(f"{name} takes external RAM")
    return int(found.group(2)), int(found.group(1), 16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    options = parser.parse_args()
    for kind in ("avr", "arm", "mcs51"):
        subprocess.run(
            ["make", "-s", "-C", str(ROOT / "firmware"), f"BUILD={BUILD}", f"GAP_MS={GAP_MS}", kind], check=True
        )
    rows = sizes()
    page = PAGE.read_text()
    for line in above_budget(rows):
        print(line, file=sys.stderr)
    if options.check:
        return int(bool(above_budget(rows)) or not is_current(rows, page))
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}")
    return int(bool(above_budget(rows)))


if __name__ == "__main__":
    sys.exit(main())
