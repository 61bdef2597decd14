"""What was counted of a plain call, version by version: `instructions.json`, and its section of docs/benchmarks.md.

`python -m bench.instructions --write "what it is"` counts, keeps the counts and writes the section again.
"""

import re
from pathlib import Path
from typing import Final

import msgspec

from bench.processes import ROOT

FILE: Final = Path(__file__).with_name("instructions.json")
PAGE: Final = ROOT / "docs" / "benchmarks.md"
TITLE: Final = "## Cost of a plain call in instructions"
ABOUT: Final = (
    "Counted, not timed: `python -m bench.instructions`. A client of 2026-07-28 on a line front calls a tool of a "
    "server of 2026-07-28 whose end answers at once, in the same turn: from the bytes of the request to the bytes of "
    "the answer, without a socket. Instructions are counted by callgrind over 4,000 and over 8,000 calls, and the "
    "difference is divided by 4,000. Bytecodes are counted by a trace function over 200 calls. All on CPython {python}."
)


class Count(msgspec.Struct, frozen=True, kw_only=True):
    program: str
    instructions: int
    bytecodes: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    python: str
    counts: tuple[Count, ...]


def read_counts() -> Counts:
    return msgspec.json.decode(FILE.read_bytes(), type=Counts)


def section() -> str:
    kept = read_counts()
    rows = [f"| {one.program} | {one.instructions:,} | {one.bytecodes:,} |" for one in kept.counts]
    table = "\n".join(["| program | instructions per call | bytecodes per call |", "|---|---|---|", *rows])
    return "\n\n".join([TITLE, ABOUT.format(python=kept.python), table])


def keep(count: Count, python: str) -> None:
    """In place of an earlier count of the same program."""
    others = [one for one in read_counts().counts if one.program != count.program]
    encoded = msgspec.json.encode(Counts(python=python, counts=(*others, count)))
    FILE.write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")


def write_section() -> None:
    """Into the page, where the rest of it stays as it is."""
    before = re.split(rf"^{re.escape(TITLE)}$", PAGE.read_text(), flags=re.MULTILINE)[0].rstrip()
    PAGE.write_text(f"{before}\n\n{section()}\n")
