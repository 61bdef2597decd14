"""Differences between two plans: the keys that differ, and how the difference affects the guard.

`differences` names every changed key; the node uses it to find out what to do about a changed configuration, and
`without` to keep the old value of a key that cannot change in a running node.
"""

import msgspec

from interlock.config.plan import Plan
from interlock.config.schema import sections


def differences(old: Plan, new: Plan) -> tuple[str, ...]:
    """Return the keys whose values differ between two plans, such as gate.mode or servers.files."""
    keys: list[str] = []
    for field in new.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before == after:
            continue
        if field == "servers":
            old_servers = {server.segment: server for server in before}
            new_servers = {server.segment: server for server in after}
            segments = (old_servers | new_servers).keys()
            changed = [segment for segment in segments if old_servers.get(segment) != new_servers.get(segment)]
            keys += (f"servers.{segment}" for segment in changed)
        elif isinstance(before, msgspec.Struct):
            changed = [key for key in before.__struct_fields__ if getattr(before, key) != getattr(after, key)]
            keys += (f"{field}.{key}" for key in changed)
        else:
            keys.append(field)
    return tuple(keys)


def as_written(key: str) -> str:
    """Return the name of a plan's key as it is written in a configuration file, for example [[tool]] for `tools`."""
    names = (each.name for each in sections().values() if each.shape == "list" and each.field == key)
    return next((f"[[{name}]]" for name in names), key)


def section_of(key: str) -> str:
    """Return the section of a key such as node.listen."""
    return key.partition(".")[0]


def without(new: Plan, keys: tuple[str, ...], old: Plan) -> Plan:
    """Return a copy of the new plan in which the values of `keys` are replaced by those of the old plan."""
    for key in keys:
        section, _, name = key.partition(".")
        if name:
            part = msgspec.structs.replace(getattr(new, section), **{name: getattr(getattr(old, section), name)})
            new = msgspec.structs.replace(new, **{section: part})
        else:
            new = msgspec.structs.replace(new, **{section: getattr(old, section)})
    return new
