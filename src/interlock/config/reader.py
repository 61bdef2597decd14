"""One layer -> settings: every key checked against the table of keys, whichever layer wins in the end."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from interlock.config.anchors import anchor_plan
from interlock.config.keys import SECTIONS, TOP
from interlock.config.location import At, WrongValue, type_word
from interlock.config.plan import AccessRule, AnchorPlan, RoomPlan, ServerPlan, ToolRule
from interlock.config.problems import nearest, quoted_word
from interlock.config.sections import Key, Section
from interlock.config.server_entries import server_plan
from interlock.config.server_keys import CAPABILITY
from interlock.config.toml_text import toml_text
from interlock.config.value_types import Segment

_OTHER_WORDS: Final = {  # what other programs call our keys
    "mcpServers": "servers",
    "mcp_servers": "servers",
    "server": "servers",
    "type": "transport",
    "environment": "env",
    "image": "docker",
    "endpoint": "url",
    "bind": "listen",
}


class Settings:
    """What was read so far. A later layer wins: key by key in tables, server by server, whole lists of entries."""

    def __init__(self) -> None:
        self.top: dict[str, Any] = {}
        self.tables: dict[str, dict[str, Any]] = {}
        self.access: tuple[AccessRule, ...] = ()
        self.anchors: tuple[AnchorPlan, ...] = ()
        self.tools: tuple[ToolRule, ...] = ()
        self.rooms: tuple[RoomPlan, ...] = ()
        self.servers: dict[str, ServerPlan] = {}
        # (table or "", key) -> where it was written last; ("servers", SEGMENT), ("tool", INDEX) -> its table
        self.written: dict[tuple[str, str], At] = {}
        self.wrong: set[tuple[str, str]] = set()

    def read(self, at: At) -> None:
        for name, value in at.layer.tree.items():
            section = SECTIONS.get(name)
            if section is None:
                self._top(name, value, at)
            elif section.shape == "table":
                self._table(section, value, at)
            elif section.shape == "list":
                self._list(section, value, at)
            else:
                self._servers(section, value, at)

    def _top(self, name: str, value: object, at: At) -> None:
        key = TOP.get(name)
        if key is None:
            what = "table" if isinstance(value, dict) else "key"
            _unknown(what, name, (*TOP, *SECTIONS), at)
            return
        self.written["", name] = at.inside(name)
        read = key.kind.read(value, at.inside(name))
        if not isinstance(read, WrongValue):
            self.top[name] = read

    def _table(self, section: Section, value: object, at: At) -> None:
        table = at.enter(section.name)
        if not isinstance(value, dict):
            hint = f"write [{section.name}] on a line of its own"
            table.wrong(f"'{section.name}' must be a table, not {type_word(value)}", hint)
            return
        values = read_table(value, section.keys, table)
        for name in section.keys.keys() & value.keys():
            spot = (section.name, name)
            self.written[spot] = table.inside(name)
            if name not in values:
                self.wrong.add(spot)
        self.tables.setdefault(section.name, {}).update(values)

    def _list(self, section: Section, value: object, at: At) -> None:
        hint = f"write [[{section.name}]] above each entry"
        if not isinstance(value, list):
            at.inside(section.name).wrong(f"'{section.name}' must be a list of tables, not {type_word(value)}", hint)
            return
        rules: list[Any] = []
        for index, entry in enumerate(value):
            inside = at.enter(section.name, index)
            if not isinstance(entry, dict):
                inside.wrong(f"entry {index + 1} of '{section.name}' must be a table, not {type_word(entry)}", hint)
                continue
            self.written[section.name, str(index)] = inside
            values = read_table(entry, section.keys, inside)
            if len(values) == len(entry) and not _missing_keys(section.keys, entry):
                rules.append(_entry(section.name, values, inside))
        read = tuple(rule for rule in rules if not isinstance(rule, WrongValue))
        match section.name:
            case "access":
                self.access = read
            case "anchor":
                self.anchors = read
            case "room":
                self.rooms = read
            case _:
                self.tools = read

    def _servers(self, section: Section, value: object, at: At) -> None:
        hint = "write [servers.NAME] above each server"
        if not isinstance(value, dict):
            at.inside("servers").wrong(f"'servers' must be a table of servers, not {type_word(value)}", hint)
            return
        for segment, written in value.items():
            inside = at.enter("servers", segment)
            if not isinstance(written, dict):
                inside.wrong(f"{quoted_word(segment)} in [servers] must be a table, not {type_word(written)}", hint)
                continue
            self.written["servers", segment] = inside
            named = Segment().read(segment, inside)
            values = read_table(written, section.keys, inside)
            plan = server_plan(segment, written, values, inside)
            if not isinstance(named, WrongValue) and not isinstance(plan, WrongValue):
                self.servers[segment] = plan


def read_table(table: dict[str, Any], keys: Mapping[str, Key], at: At) -> dict[str, Any]:
    """The values that could be read; every other key of the table is among the findings."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = keys.get(name)
        if key is None:
            _unknown("key", name, keys, at)
            continue
        read = key.kind.read(value, at.inside(name))
        if not isinstance(read, WrongValue):
            values[name] = read
    for key in _missing_keys(keys, table):
        at.wrong(f"{at.title} needs '{key.name}'", f"for instance {key.name} = {toml_text(key.example)}")
    return values


def _missing_keys(keys: Mapping[str, Key], table: dict[str, Any]) -> list[Key]:
    return [key for key in keys.values() if key.required and key.name not in table]


def _entry(section: str, values: dict[str, Any], at: At) -> Any:
    match section:
        case "access":
            return AccessRule(**values)
        case "anchor":
            return anchor_plan(values, at)
        case "room":
            return RoomPlan(topic=values.pop("topic"), written=values)
        case _:
            return _tool_rule(values)


def _tool_rule(values: dict[str, Any]) -> ToolRule:
    capability = {name: value for name, value in values.items() if name in CAPABILITY}
    said = {name: value for name, value in values.items() if name not in CAPABILITY}
    return ToolRule(**said, capability=capability)


def _unknown(what: str, name: str, known: Iterable[str], at: At) -> None:
    inside = at.inside(name)
    if not inside.worth_reporting:
        inside.wrong("unknown")
        return
    where = f"in {at.title}" if at.table else "at the top level"
    inside.wrong(f"unknown {what} {quoted_word(name)} {where}", _hint_for_unknown(name, list(known), at))


def _hint_for_unknown(name: str, known: list[str], at: At) -> str | None:
    other = _OTHER_WORDS.get(name)
    if other in known:
        return f"did you mean '{other}'?"
    homes = [f"[{each.name}]" for each in SECTIONS.values() if each.shape == "table" and name in each.keys]
    if homes:
        return f"it belongs in {' or '.join(homes)}"
    if at.table and name in TOP:
        return "it belongs at the top, above the first [table]"
    like = nearest(name, known)
    if like is not None:
        return f"did you mean '{like}'?"
    elsewhere = {key: each.name for each in SECTIONS.values() if each.shape == "table" for key in each.keys}
    like = nearest(name, elsewhere, likeness=0.8)
    return f"did you mean '{like}' in [{elsewhere[like]}]?" if like else f"known here: {', '.join(known)}"
