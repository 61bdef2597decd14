"""What differs between two plans, by the dotted keys a person would look for."""

from collections.abc import Iterator

import msgspec

from interlock.config.keys import SECTIONS
from interlock.config.plan import Plan

_ARRAYS = {each.field or each.name: f"[[{each.name}]]" for each in SECTIONS.values() if each.shape == "list"}


def differences(old: Plan, new: Plan) -> tuple[str, ...]:
    """In the order of the plan; servers one by one."""
    return tuple(_differences(old, new))


def _differences(old: Plan, new: Plan) -> Iterator[str]:
    for field in Plan.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before == after:
            continue
        if field == "servers":
            was = {server.segment: server for server in before}
            now = {server.segment: server for server in after}
            yield from (f"servers.{one}" for one in {**was, **now} if was.get(one) != now.get(one))
        elif isinstance(before, msgspec.Struct):
            yield from (
                f"{field}.{key}" for key in before.__struct_fields__ if getattr(before, key) != getattr(after, key)
            )
        else:
            yield field


def as_written(key: str) -> str:
    """The key as it stands in a file."""
    return _ARRAYS.get(key, key)


def section_of(key: str) -> str:
    return key.partition(".")[0]


def without(new: Plan, keys: tuple[str, ...], old: Plan) -> Plan:
    """The new plan, with the old values of these keys."""
    for key in keys:
        section, _, name = key.partition(".")
        if name:
            part = msgspec.structs.replace(getattr(new, section), **{name: getattr(getattr(old, section), name)})
            new = msgspec.structs.replace(new, **{section: part})
        else:
            new = msgspec.structs.replace(new, **{section: getattr(old, section)})
    return new
