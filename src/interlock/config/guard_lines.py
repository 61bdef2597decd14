"""What a configuration says about the guard, line by line: what loosens it, and what makes it stricter.

Two configurations are compared by these lines. A line that loosens and is new, or one that made it stricter and is
gone, is what a person wants to hear of; everything else about a configuration is left out.
"""

from collections.abc import Iterator

import msgspec

from interlock.config.plan import Plan


class GuardLines(msgspec.Struct, frozen=True, kw_only=True):
    loose: frozenset[str] = frozenset()
    strict: frozenset[str] = frozenset()

    def loosened_since(self, before: "GuardLines") -> tuple[str, ...]:
        """In words, sorted."""
        gone = (f"no longer: {line}" for line in before.strict - self.strict)
        return tuple(sorted((*(self.loose - before.loose), *gone)))

    def tightened_by(self, now: "GuardLines") -> "GuardLines":
        """What is stricter counts at once: to loosen it again is news again."""
        return GuardLines(loose=self.loose & now.loose, strict=self.strict | now.strict)


def guard_lines(plan: Plan) -> GuardLines:
    return GuardLines(loose=frozenset(_loose(plan)), strict=frozenset(_strict(plan)))


def code_channels(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Those that say where an agent's verification code is sent."""
    return tuple(line for line in lines if line.startswith("approvals."))


def _loose(plan: Plan) -> Iterator[str]:
    gate, drivers, safety, approvals = plan.gate, plan.drivers, plan.safety, plan.approvals
    if gate.mode != "gated":
        yield f'gate.mode = "{gate.mode}"'
    if gate.unannotated == "allow":
        yield 'gate.unannotated = "allow"'
    for rule in plan.tools:
        said = rule.capability
        loosening = {"mutable": False, "reversible": True}
        yield from (
            f'[[tool]] "{rule.match}": {key} = {str(value).lower()}'
            for key, value in loosening.items()
            if said.get(key) is value
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
        yield from (f'safety.{key} "{one}"' for one in getattr(safety, key))
