"""What a registry of many names costs: `python -m bench.names [--quick]`.

A registry of 100,000 entries on a log of its own in the temporary folder: how long an import, a start, a lookup and
each published form take.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import msgspec
from msgspec import Raw

from bench import surfaces
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.core.store_backends import build_audit
from interlock.names.actions import Publisher
from interlock.names.protocol.entry import EntryStatus, RegistryEntry, Revision
from interlock.names.protocol.publication import Form, Publication, publish
from interlock.names.state import RegistryState
from interlock.store.sqlite.store import SqliteNamesLog

ENTRIES, QUICK_ENTRIES = 100_000, 10_000
LOOKUPS = 100_000
LOOKUP_MAX_US = 50.0
PUBLICATION_MAX_S = 5.0
COLUMNS = ("what", "time")
ABOUT = (
    "A registry with two schemas for each entry, on a log of its own. A lookup is what each tool of an arriving list "
    "takes; a form is published again only after a change. A list is checked when it arrives at a node that has seen "
    "none of it: with tools to the letter of their specifications, reworded, wider, wrong or not registered, or mixed "
    "as they come."
)
SCHEMA = Raw(b'{"type":"object","properties":{"q":{"type":"string"},"n":{"type":"integer"}},"required":["q"]}')


class NameFigures(msgspec.Struct, frozen=True, kw_only=True):
    entries: int
    lookup_us: float
    seconds: dict[str, float]
    bind_ms: dict[str, float] = {}  # the session-bind check of a list, by what its tools are like


def measure(quick: bool, say: Callable[[str], None]) -> NameFigures:
    say("names")
    count = QUICK_ENTRIES if quick else ENTRIES
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(_measure(Path(folder), count))
    bind_ms = surfaces.measure(count, 3 if quick else surfaces.TURNS)
    return msgspec.structs.replace(figures, bind_ms=bind_ms)


async def _measure(folder: Path, count: int) -> NameFigures:
    audit = build_audit("sqlite", folder)
    await audit.open()
    recorder = Recorder(audit)
    seconds: dict[str, float] = {}
    document = publish(_publication(count), "json")
    state = RegistryState(SqliteNamesLog(folder), recorder, Clock())
    await state.open()
    publisher = Publisher(state, lambda: ("eve",))
    begun = time.perf_counter()
    await publisher.import_("bench", document, "https://registry.example.org", is_trusted=True)
    seconds["import"] = time.perf_counter() - begun
    await recorder.flush()
    await state.close()
    state = RegistryState(SqliteNamesLog(folder), recorder, Clock())
    begun = time.perf_counter()
    await state.open()
    seconds["start"] = time.perf_counter() - begun
    publisher = Publisher(state, lambda: ("eve",))
    for form in get_args(Form):
        begun = time.perf_counter()
        publisher.published(form)
        seconds[f"publish {form}"] = time.perf_counter() - begun
    asked = [f"vendor{number % count}_tool" for number in range(LOOKUPS)]
    begun = time.perf_counter()
    for name in asked:
        if state.entry(name) is None:
            raise RuntimeError(name)
    lookup_us = (time.perf_counter() - begun) / LOOKUPS * 1e6
    await state.close()
    await audit.close()
    return NameFigures(entries=count, lookup_us=lookup_us, seconds=seconds)


def _publication(count: int) -> Publication:
    revision = Revision(
        revision=1,
        specification_reference="RFC 9999",
        authentication_scope="member-recognition",
        registered="2026-11-17",
        argument_schema=SCHEMA,
        return_schema=SCHEMA,
        schema_source="registrant",
        semantics="section 2",
    )
    entries = tuple(
        RegistryEntry(
            surface_name=f"vendor{number}_tool",
            specification_reference="RFC 9999",
            authentication_scope="member-recognition",
            vendor_prefix=f"vendor{number}_",
            change_controller=f"Vendor {number}",
            status=EntryStatus.ACTIVE,
            first_registered="2026-11-17",
            revisions=(revision,),
        )
        for number in range(count)
    )
    return Publication(entries=entries, updated="2026-11-17", today="2026-11-17")


def words(figures: NameFigures) -> list[str]:
    return [f"{figures.entries:,} entries. {ABOUT}"]


def rows(figures: NameFigures) -> Iterator[list[str]]:
    yield ["look a name up", f"{figures.lookup_us:.2f} us"]
    for what, taken in figures.seconds.items():
        yield [what, f"{taken:.2f} s"]
    for kind, ms in figures.bind_ms.items():
        yield [f"check a list of {surfaces.TOOLS:,} tools, {kind}", f"{ms:.1f} ms"]


def promises(figures: NameFigures) -> Iterator[tuple[str, float, bool, str]]:
    many = f"{figures.entries:,} names"
    yield (
        f"a lookup among {many} under {LOOKUP_MAX_US:.0f} us",
        figures.lookup_us,
        figures.lookup_us < LOOKUP_MAX_US,
        "us",
    )
    slowest = max(taken for what, taken in figures.seconds.items() if what.startswith("publish"))
    yield f"publication of {many} under {PUBLICATION_MAX_S:.0f} s", slowest, slowest < PUBLICATION_MAX_S, "s"
    if figures.bind_ms:
        worst = max(figures.bind_ms.values())
        promise = f"the check of {surfaces.TOOLS:,} arriving tools against {many} under {surfaces.WANTED_MS:.0f} ms"
        yield promise, worst, worst < surfaces.WANTED_MS, "ms"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.names", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the entries")
    figures = measure(parser.parse_args().quick, print)
    for row in rows(figures):
        print(f"{row[0]:48} {row[1]}")
    kept = list(promises(figures))
    for promise, _, is_kept, _ in kept:
        print(f"{'kept' if is_kept else 'MISSED'}: {promise}")
    return 0 if all(is_kept for _, _, is_kept, _ in kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
