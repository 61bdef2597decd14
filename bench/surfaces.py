"""What the session-bind check costs: a list of 1,000 tools, held to a registry of 100,000 entries.

python -m bench.surfaces. CPU time of the process, the least of several turns, for lists of one kind each and for one as
they come: four of five tools to the letter of their specification, the others reworded, wider or wrong.
"""

import gc
import sys
import time
from typing import Any

import msgspec
from msgspec import Raw

from interlock.catalog.routes import LIST_STEPS_MAX
from interlock.names.protocol.entry import EntryStatus, RegistryEntry, Revision
from interlock.names.protocol.grammar import Lookalikes
from interlock.names.protocol.judgement import SurfacePolicy, SurfaceVerdict
from interlock.names.surface_check import SurfaceChecks
from interlock.wire.schemas.budget import Effort
from interlock.wire.schemas.digest import schema_digest

ENTRIES, TOOLS, TURNS = 100_000, 1_000, 7
WANTED_MS = 50.0

Item = dict[str, Raw]


class Registry:
    def __init__(self, entries: dict[str, RegistryEntry]) -> None:
        self._entries = entries
        self.near = Lookalikes(entries).near

    def entry(self, name: str) -> RegistryEntry | None:
        return self._entries.get(name)

    def is_trusted(self, entry: RegistryEntry) -> bool:
        return True


class Nothing:
    def get(self, tool: str) -> None:
        return None

    def is_accepted(self, tool: str, digest: str) -> bool:
        return False

    def ask(self, segment: str, tool: str, digest: str, shown: dict[str, Any]) -> None: ...


def argument(number: int, **more: Any) -> dict[str, Any]:
    properties = {
        "query": {"type": "string", "description": "What to look for."},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100 + number, "default": 10},
        "mode": {"enum": ["fast", "slow"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    }
    return {"type": "object", "properties": {**properties, **more}, "required": ["query"]}


RETURNED = {
    "type": "object",
    "properties": {"hits": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "string"}}}}},
    "required": ["hits"],
}


RETURN_DIGEST = schema_digest(RETURNED)


def name_of(number: int) -> str:
    letters = ""
    for _ in range(5):
        number, letter = divmod(number, 26)
        letters += chr(97 + letter)
    return f"bench_{letters}"


def raw(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))


def entry(number: int) -> RegistryEntry:
    wanted = argument(number)
    revision = Revision(
        revision=1,
        specification_reference="RFC 9999",
        authentication_scope="member-recognition",
        registered="2026-11-17",
        argument_schema=raw(wanted),
        return_schema=raw(RETURNED),
        argument_digest=schema_digest(wanted) if number < TOOLS else "sha256:not-looked-at",
        return_digest=RETURN_DIGEST,
        schema_source="registrant",
    )
    return RegistryEntry(
        surface_name=name_of(number),
        specification_reference="RFC 9999",
        authentication_scope="member-recognition",
        vendor_prefix="bench_",
        change_controller="Bench",
        status=EntryStatus.ACTIVE,
        first_registered="2026-11-17",
        revisions=(revision,),
    )


KINDS: dict[str, tuple[SurfaceVerdict | None, Any]] = {
    "to the letter": (SurfaceVerdict.IDENTICAL, argument),
    "reworded": (SurfaceVerdict.IDENTICAL, lambda number: {**argument(number), "description": "In other words."}),
    "wider": (SurfaceVerdict.COMPATIBLE, lambda number: argument(number, extra={"type": "string"})),
    "wrong": (SurfaceVerdict.MISMATCH, lambda number: argument(number, query={"type": "integer"})),
}


def items_of(kind: str, count: int = TOOLS) -> list[tuple[str, Item]]:
    make = KINDS[kind][1]
    return [
        (name_of(number), {"inputSchema": raw(make(number)), "outputSchema": raw(RETURNED)}) for number in range(count)
    ]


def milliseconds(registry: Registry, items: list[tuple[str, Item]]) -> tuple[float, set[SurfaceVerdict | None]]:
    """The list as it arrives at a node that has seen none of it."""
    checks = SurfaceChecks(registry, SurfacePolicy, Nothing(), Nothing(), registry.near)
    gc.collect()
    started, effort = time.process_time(), Effort(LIST_STEPS_MAX)
    found = [checks.judge("bench", f"bench.{name}", (name,), item, None, effort) for name, item in items]
    taken = time.process_time() - started
    return taken * 1000, {None if one is None else one.judgement.verdict for one in found}


def measure(entries: int = ENTRIES, turns: int = TURNS) -> dict[str, float]:
    """Milliseconds for a list of each kind."""
    registry = Registry({name_of(number): entry(number) for number in range(entries)})
    mixed = [*items_of("to the letter")[: TOOLS * 8 // 10]]
    for kind in ("reworded", "wider", "wrong"):
        mixed += items_of(kind)[len(mixed) : len(mixed) + TOOLS // 15]
    unregistered = [(f"free_{name_of(number)}", item) for number, (_, item) in enumerate(items_of("to the letter"))]
    lists = {"as they come": mixed, "unregistered": unregistered, **{kind: items_of(kind) for kind in KINDS}}
    taken: dict[str, float] = {}
    for kind, items in lists.items():
        made = [milliseconds(registry, items) for _ in range(turns)]
        verdicts = made[0][1]
        if kind in KINDS and verdicts != {KINDS[kind][0]}:
            raise RuntimeError(f"{kind}: {verdicts}")
        taken[kind] = min(ms for ms, _ in made)
    return taken


def main() -> int:
    found = measure()
    for kind, least in found.items():
        print(f"{TOOLS} tools, {kind}: {least:.1f} ms")
    return 0 if max(found.values()) < WANTED_MS else 1


if __name__ == "__main__":
    sys.exit(main())
