"""Where the entries of this registry come from, and how they differ from a registry that is kept beside it.

A later revision of the draft may give the same names another status. Such a registry is imported for comparison only:
it changes no entry and judges no tool, and the differences are said in words that people read.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from interlock.names.protocol.entry import RegistryEntry, SevenFields
from interlock.names.protocol.registry import NamesRegistry

_FIELDS: Final = tuple(field for field in SevenFields.__struct_fields__ if field != "surface_name")
_ABSENT: Final = "it has no entry of this name"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing a name in this registry and in a registry that is kept beside it."""

    source: str
    imported_on: str
    status: str | None  # that it has there; None: no entry there
    differences: tuple[str, ...]


def origin(registry: NamesRegistry, entry: RegistryEntry) -> str:
    """Return in words where an entry comes from."""
    if entry.source:
        return f"imported from {entry.source}"
    draft = registry.initial.get(entry.surface_name)
    return f"{draft}, initial contents" if draft is not None else "registered here"


def compare_name(registry: NamesRegistry, name: str) -> Iterator[Comparison]:
    """Yield the comparison of a name with each registry that has it. An initial entry is compared with every registry,
    because a later revision of the draft may have left the name out.
    """
    entry = registry.entries.get(name)
    for url, others in registry.beside.items():
        other = others.get(name)
        if other is None and name not in registry.initial:
            continue
        status = other.status.value if other is not None else None
        imported_on = registry.sources[url].imported_on
        yield Comparison(source=url, imported_on=imported_on, status=status, differences=differences(entry, other))


def count_differing(entries: Mapping[str, RegistryEntry], others: Mapping[str, RegistryEntry]) -> int:
    """Return how many entries of another registry are missing or different in this one."""
    return sum(bool(differences(entries.get(name), other)) for name, other in others.items())


def differences(own: RegistryEntry | None, other: RegistryEntry | None) -> tuple[str, ...]:
    """Return in words how the entry of another registry differs from the entry of this registry.

    CSV and XML have no schemas, so schemas are only compared if the other entry has them.
    """
    if other is None:
        return (_ABSENT,) if own is not None else ()
    if own is None:
        return (f"there is no entry here; there it is {other.status.value}",)
    texts = []
    for field in _FIELDS:
        here, there = _text(own, field), _text(other, field)
        if here != there:
            texts.append(f"{field.replace('_', ' ')}: {here} here, {there} there")
    if other.specification.has_schemas:
        for kind in ("argument", "return"):
            here, there = (getattr(each.specification, f"{kind}_digest") or "none" for each in (own, other))
            if here != there:
                texts.append(f"{kind} schema: {here} here, {there} there")
    return tuple(texts)


def _text(entry: RegistryEntry, field: str) -> str:
    return entry.status.value if field == "status" else str(getattr(entry, field))
