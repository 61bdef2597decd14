"""Differences between two plans: the keys that differ, and how the difference affects the guard.

`differences` names every changed key; the node uses it to find out what to do about a changed configuration, and
`without` to keep the old value of a key that cannot change in a running node.

`GuardLines` are for the approvers. A configuration file may be written by programs that are not the operator, so a
change that loosens the guard is shown to a person and waits for a signature (`approvals.guard_changes`). Two kinds of
change loosen it: a new line that loosens, and a strict line that is gone.
"""

from collections.abc import Iterator

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
    """Return a key of the plan as a configuration file has it, for example [[tool]] for `tools`."""
    names = (each.name for each in sections().values() if each.shape == "list" and each.field == key)
    return next((f"[[{name}]]" for name in names), key)


def section_of(key: str) -> str:
    """Return the section of a key such as node.listen."""
    return key.partition(".")[0]


def without(new: Plan, keys: tuple[str, ...], old: Plan) -> Plan:
    """Return the new plan, in which these keys have their values of the old plan."""
    for key in keys:
        section, _, name = key.partition(".")
        if name:
            part = msgspec.structs.replace(getattr(new, section), **{name: getattr(getattr(old, section), name)})
            new = msgspec.structs.replace(new, **{section: part})
        else:
            new = msgspec.structs.replace(new, **{section: getattr(old, section)})
    return new


class GuardLines(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a configuration that make the guard looser or stricter, each as a line of text."""

    loose: frozenset[str] = frozenset()
    strict: frozenset[str] = frozenset()

    def loosened_since(self, before: "GuardLines") -> tuple[str, ...]:
        """Return a line for every change since `before` that makes the guard looser, sorted."""
        gone = (f"no longer: {line}" for line in before.strict - self.strict)
        return tuple(sorted((*(self.loose - before.loose), *gone)))

    def tightened_by(self, now: "GuardLines") -> "GuardLines":
        """Return these settings, changed only where `now` makes the guard stricter.

        If the guard is loosened again later, that is reported again.
        """
        return GuardLines(loose=self.loose & now.loose, strict=self.strict | now.strict)


def guard_lines(plan: Plan) -> GuardLines:
    """Return the settings of a plan that make the guard looser or stricter."""
    return GuardLines(loose=frozenset(_loose(plan)), strict=frozenset(_strict(plan)))


def code_channels(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the lines that say where the verification codes of agents are sent."""
    return tuple(line for line in lines if line.startswith("approvals."))


def _loose(plan: Plan) -> Iterator[str]:
    """Yield the settings of a plan because of which fewer calls are held, checked or confirmed."""
    gate, drivers, safety, approvals = plan.gate, plan.drivers, plan.safety, plan.approvals
    if gate.mode != "gated":
        yield f'gate.mode = "{gate.mode}"'
    if gate.unannotated == "allow":
        yield 'gate.unannotated = "allow"'
    for rule in plan.tools:
        capability = rule.capability
        loosening = {"mutable": False, "reversible": True}
        yield from (
            f'[[tool]] "{rule.match}": {key} = {str(value).lower()}'
            for key, value in loosening.items()
            if capability.get(key) is value
        )
    for server in plan.servers:
        yield from (
            f'servers.{server.segment}.tools: {tool} = "{word}"'
            for tool, word in server.classes.items()
            if word != "irreversible"
        )
    yield from (
        f"drivers.{key} = true" for key in ("trust_workspace", "allow_unverified_install") if getattr(drivers, key)
    )
    yield from (f'drivers.sandbox: {id} = "{word}"' for id, word in drivers.sandbox.items())
    yield from (f"safety.{key} = true" for key in ("tolerance_relaxes_confirm", "preapproved") if getattr(safety, key))
    yield from (f'safety.auto_approve "{pattern}"' for pattern in safety.auto_approve)
    registry = plan.registry
    if registry.enforce in ("warn", "off"):
        yield f'registry.enforce = "{registry.enforce}"'
    yield from (
        f'registry.per_name: {name} = "{word}"' for name, word in registry.per_name.items() if word in ("warn", "off")
    )
    if not plan.aql.danger.enforce:
        yield "aql.danger.enforce = false"
    for channel in approvals.channels:
        if channel == "command":
            yield f"approvals.command = {' '.join(approvals.command)}"
        elif channel == "webhook":
            yield f"approvals.webhook_url = {approvals.webhook_url}"
        elif channel == "smtp":
            yield f"approvals.smtp_to = {' '.join(approvals.smtp_to)}, by {approvals.smtp_url}"


def _strict(plan: Plan) -> Iterator[str]:
    """Yield the settings of a plan because of which more calls are held, checked or confirmed."""
    safety = plan.safety
    yield from (f'gate.also "{glob}"' for glob in plan.gate.also)
    for rule in plan.tools:
        if rule.pin:
            yield f'[[tool]] "{rule.match}": pin = true'
        if rule.capability.get("reversible") is False:
            yield f'[[tool]] "{rule.match}": reversible = false'
    for server in plan.servers:
        yield from (
            f'servers.{server.segment}.tools: {tool} = "{word}"'
            for tool, word in server.classes.items()
            if word == "irreversible"
        )
    if plan.registry.strict:
        yield "registry.strict = true"
    if safety.mode != "disabled":
        yield f'safety.mode = "{safety.mode}"'
    for key in ("require", "deny", "requires_approval"):
        yield from (f'safety.{key} "{pattern}"' for pattern in getattr(safety, key))
