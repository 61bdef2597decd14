"""What a changed configuration may let through before an approver has signed the change.

`signed_values` computes what is stored of a plan that counts as signed: the values of all keys that are about the
guard. `hold_back` joins stored values with a new plan. Where the new plan is looser, the signed values stay; where it
is stricter, the new ones count (`config.order`). `describe_loosening` names what is held back, for people.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.config.effective import effective, masked_text
from interlock.config.order import ANY_CHANGE, FREE, Order, find_order, from_stored, orders_of, to_stored
from interlock.config.plan import Dial, Plan, Spawn
from interlock.config.plan_tree import hide_password
from interlock.config.secret_uses import CUT, SECRETS, describe_link, device_uses

LINE_CHARS_MAX: Final = 400
# Where signed values are stored, in the store of the node itself.
SIGNED: Final = ("guard-signed", "signed")
CHANNELS: Final = "approvals.channels"
SECRET_USES: Final = "withheld_secrets"  # noqa: S105  (the name of a field)


def ordered_keys(plan: type[Plan]) -> Iterator[tuple[str, str | None, Order, Any]]:
    """Yield each key of a plan: the name of its section, its name in the section, the order of its values from strict
    to loose, and its type.

    A section that declares one order for all of its keys, and one that is a list, is one key, without a field.
    """
    for section in msgspec.structs.fields(plan):
        order = find_order(section.type)
        bare = section.type.__origin__ if hasattr(section.type, "__metadata__") else section.type
        if order is not None or not (isinstance(bare, type) and issubclass(bare, msgspec.Struct)):
            yield section.name, None, order or ANY_CHANGE, section.type
            continue
        orders = orders_of(bare)
        for key in msgspec.structs.fields(bare):
            yield section.name, key.name, orders.get(key.name, ANY_CHANGE), key.type


def signed_values(plan: Plan) -> dict[str, Any]:
    """Return the values of a plan that are stored when a person signs the plan: JSON values by dotted key, without
    secrets.
    """
    values = {}
    for section, key, order, _ in ordered_keys(type(plan)):
        if order is not FREE:
            whole = plan if key is None else getattr(plan, section)
            values[_dotted(section, key)] = to_stored(order, getattr(whole, key or section), whole)
    return values


def join_signed(signed: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the values to store when a person signs this plan. They are combined with the values of the last signed
    plan.

    Servers, rooms and uses of secrets that are gone keep their values: an entry that is removed and written again is no
    new one. A server that is reached in another way keeps what limited the former way.
    """
    values = signed_values(plan)
    stored = {key: signed[key] for key in ("servers", "room", SECRET_USES) if isinstance(signed.get(key), dict)}
    for server in plan.servers:
        before, value = stored.get("servers", {}).get(server.segment), values["servers"][server.segment]
        unused = ("sandbox", "container") if isinstance(server.reach, Dial) else ("egress",)
        if isinstance(before, dict):
            kept_limits = {name: before[name] for name in unused if name in before}
            values["servers"][server.segment] = {**value, **kept_limits}
    return {**values, **{key: {**before, **values[key]} for key, before in stored.items()}}


def join_bindings(signed: Mapping[str, Any], bindings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the signed values of a configuration, with `bindings` added to the uses of secrets that count as
    confirmed.
    """
    uses = signed.get(SECRET_USES)
    return {**signed} if uses is None else {**signed, SECRET_USES: {**uses, **bindings}}


def withhold_secrets(signed: Mapping[str, Any], written: Plan) -> Plan:
    """Return the written plan, without those uses of stored secrets that no person has confirmed."""
    confirmed = _signed_value(signed, SECRET_USES, None, SECRETS, dict, written)
    return msgspec.structs.replace(written, withheld_secrets=SECRETS.join(confirmed, (), written))


def hold_back(signed: Mapping[str, Any], written: Plan) -> Plan:
    """Return the plan that may take effect before a person signs the written one. Each key that is looser than when it
    was last signed keeps its signed value.

    A key that is new since the plan was signed counts as signed with its default, and so does a stored value that can
    no longer be read.
    """
    plan = written
    for section, key, order, type_ in ordered_keys(type(written)):
        if order is FREE:
            continue
        whole = plan if key is None else getattr(plan, section)
        value = getattr(whole, key or section)
        # AX-11.N-1: the stricter of the signed and the written value
        try:
            joined = order.join(_signed_value(signed, section, key, order, type_, whole), value, whole)
        except (TypeError, ValueError, LookupError, AttributeError):
            # a fingerprint or a record of another form
            joined = order.join(_signed_value({}, section, key, order, type_, whole), value, whole)
        if joined != value:
            changed = msgspec.structs.replace(whole, **{key or section: joined})
            plan = changed if key is None else msgspec.structs.replace(plan, **{section: changed})
    return plan


def _signed_value(
    signed: Mapping[str, Any], section: str, key: str | None, order: Order, type_: Any, whole: msgspec.Struct
) -> Any:
    name = _dotted(section, key)
    if name in signed:
        try:
            return from_stored(order, signed[name], type_)
        except msgspec.ValidationError:
            pass
    field = next(each for each in msgspec.structs.fields(type(whole)) if each.name == (key or section))
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return from_stored(order, to_stored(order, default, whole), type_)


def _dotted(section: str, key: str | None) -> str:
    return section if key is None else f"{section}.{key}"


def describe_loosening(held: Plan, written: Plan) -> tuple[str, ...]:
    """Return lines that compare the configuration in effect (`held`) with the written one, in which some values wait
    for a signature. A person reads them before signing.

    Secrets are masked. Nothing is cut off, because a person signs all of it: a long line continues in further ones.
    """
    lines = [
        *_differences("", effective(held), effective(written)),
        *_receivers(held, written),
        *_devices(held, written),
        *(f"secrets: {use}" for use in held.withheld_secrets),
        *_programs(held, written),
    ]
    return tuple(part for line in lines for part in _folded(line))


def _folded(line: str) -> Iterator[str]:
    """Split a line into parts of at most LINE_CHARS_MAX characters."""
    yield line[:LINE_CHARS_MAX]
    for start in range(LINE_CHARS_MAX, len(line), LINE_CHARS_MAX):
        yield f"... {line[start : start + LINE_CHARS_MAX]}"


def limit_lines(lines: tuple[str, ...], lines_max: int) -> tuple[str, ...]:
    """Return at most `lines_max` lines. If lines are left out, the first line gives their number and advises against
    signing.
    """
    left = len(lines) - lines_max + 1
    if left <= 1:
        return lines
    return (f"{left} lines are not shown here: do not sign this, but change less at once", *lines[: lines_max - 1])


def _receivers(held: Plan, written: Plan) -> Iterator[str]:
    """Describe the full address of each notification channel that is configured but not yet signed, for the person who
    signs the configuration.
    """
    plan = written.approvals
    for channel in plan.channels:
        if channel in held.approvals.channels:
            continue
        match channel:
            case "command":
                yield f"approvals.command: {_shown_command(plan.command)}"
            case "webhook":
                yield f"approvals.webhook_url: {plan.webhook_url}"
            case "smtp":
                yield f"approvals.smtp_to: {', '.join(plan.smtp_to)}"


def _programs(held: Plan, written: Plan) -> Iterator[str]:
    """Describe the full command of each program that would get a secret, if the line about the secret shows only the
    beginning of the command.
    """
    programs = {use.segment for use in held.withheld_secrets if use.target.endswith(CUT)}
    for server in written.servers:
        if server.segment in programs and isinstance(server.reach, Spawn):
            command = tuple(masked_text(word, server.secrets) for word in server.reach.command)
            yield f"servers.{server.segment}.command: {_shown_command(command)}"
    for child in written.ax.children:
        if child.segment in programs:
            yield f"ax.children.{child.segment}.command: {_shown_command(child.command)}"


def _shown_command(words: tuple[str, ...]) -> str:
    """Return a command as a person would type it, or as a list if a word has characters that could mislead."""
    typed = shlex.join(words)
    return typed if typed.isprintable() else msgspec.json.encode(words).decode()


def _devices(held: Plan, written: Plan) -> Iterator[str]:
    """Describe each new or changed device for the person who signs the configuration: its location, the secrets that it
    gets, its tools, and what has changed.
    """
    before = {device.segment: device for device in held.devices.described}
    for device in written.devices.described:
        signed = before.get(device.segment)
        if signed == device or device.fault is not None:
            continue
        place, link = f"devices.{device.segment}", device.description.link
        uses = device_uses(device)
        secrets = ", ".join(use.secret for use in uses)
        gets = f"gets the secret {secrets}" if uses else "gets no stored secret"
        what = "a new device" if signed is None else "a changed device"
        yield f"{place}: {what}, {describe_link(link)}; {gets}"
        if signed is None:
            yield f"{place}.tools: {', '.join(tool.name for tool in device.description.tools) or 'those it announces'}"
        else:
            forms = (msgspec.to_builtins(hide_password(each).description) for each in (signed, device))
            yield from _differences(place, *forms)


def _differences(place: str, held: Any, written: Any) -> Iterator[str]:
    if held == written:
        return
    if isinstance(held, dict) and isinstance(written, dict):
        for name in (*written, *(each for each in held if each not in written)):
            # `written` of a room holds the keys that a person wrote below [[room]].
            inner = place if name == "written" and place.startswith("room[") else f"{place}.{name}" if place else name
            yield from _differences(inner, held.get(name), written.get(name))
    elif (
        isinstance(held, list) and isinstance(written, list) and all(isinstance(each, dict) for each in held + written)
    ):
        for number in range(max(len(held), len(written))):
            before, after = (each[number] if number < len(each) else None for each in (held, written))
            yield from _differences(f"{place}[{number + 1}]", before, after)
    else:
        line = f"{place}: {_shown(held)} -> {_shown(written)}"
        if len(line) > LINE_CHARS_MAX and isinstance(held, list) and isinstance(written, list):
            before, after = set(map(_shown, held)), set(map(_shown, written))
            less, more = ([each for each in a if _shown(each) not in b] for a, b in ((held, after), (written, before)))
            if less or more:
                line = f"{place}, only what differs: {_shown(less)} -> {_shown(more)}"
        yield line


def _shown(value: Any) -> str:
    return "(nothing)" if value is None else msgspec.json.encode(value).decode()
