"""Reading of layers into settings. Every key of every layer is checked, even if a stronger layer replaces its value.

Theory of operation. `Settings.read` is called for each layer, the weakest first. A table, such as [node], is merged key
by key; a list of tables, such as [[tool]], replaces the list of a weaker layer; a server, [servers.SEGMENT], replaces
the weaker server of that segment. A value that is refused is reported where it stands and left out, and its key is
remembered in `wrong`, so that no check judges the default in its place. `written` remembers where each key was written
last, for problems that are found only when everything is known (`cross_checks`, `interlock check`).

An unknown key is refused with the best guess at what was meant: the word of another program for the same thing, the
section that the key belongs in, or the most similar key.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from interlock.config.keys import Key, Section
from interlock.config.plan import (
    KEY_SOURCES,
    AccessRule,
    AnchorPlan,
    Dial,
    OAuthPlan,
    Package,
    RoomPlan,
    SandboxPlan,
    ServerPlan,
    Spawn,
    ToolRule,
)
from interlock.config.plan_servers import CONTAINER, REACHES, ServerSettings, ToolCapability, container_limits
from interlock.config.problems import WRONG, At, WrongValue, nearest, quoted_word, type_word
from interlock.config.schema import SERVER_KEYS, TOP, TRANSPORTS, sections
from interlock.config.toml_text import toml_text
from interlock.config.value_types import Segment
from interlock.credentials.protocol.resource import is_protected

HOMES: Final = "homes/_servers"  # below the data folder; no id of a driver begins so
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
    """The settings that were read so far, from the weakest source to the strongest.

    A later layer replaces single keys of tables, single servers, and complete lists of entries.
    """

    def __init__(self) -> None:
        self.top: dict[str, Any] = {}
        self.tables: dict[str, dict[str, Any]] = {}
        self.lists: dict[str, tuple[Any, ...]] = {  # by the name in the file: tool, for [[tool]]
            each.name: () for each in sections().values() if each.shape == "list"
        }
        self.servers: dict[str, ServerPlan] = {}
        # (table or "", key) -> where it was written last; ("servers", SEGMENT), ("tool", INDEX) -> its table
        self.written: dict[tuple[str, str], At] = {}
        self.wrong: set[tuple[str, str]] = set()

    def place(self, *names: str) -> At | None:
        """Return where the first of these keys is written, or None if none of them is. A key is written with dots, such
        as node.listen.
        """
        places = (self.written.get((table, key)) for table, _, key in (name.rpartition(".") for name in names))
        return next((at for at in places if at is not None), None)

    def value(self, name: str, default: Any = None) -> Any:
        """Return the value of a key such as node.listen, or `default` if it is not set or could not be read."""
        table, _, key = name.partition(".")
        return self.tables.get(table, {}).get(key, default)

    def read(self, at: At) -> None:
        """Read one source of settings. Its settings replace those that were read before."""
        for name, value in at.layer.tree.items():
            section = sections().get(name)
            if section is None:
                self._top(name, value, at)
            elif section.shape == "table":
                self._table(section, value, at)
            elif section.shape == "list":
                self._list(section, value, at)
            else:
                self._servers(section, value, at)

    def _top(self, name: str, value: object, at: At) -> None:
        """Read a key that belongs to no table, such as `workspace`."""
        key = TOP.get(name)
        if key is None:
            what = "table" if isinstance(value, dict) else "key"
            _unknown(what, name, (*TOP, *sections()), at)
            return
        self.written["", name] = at.inside(name)
        read = key.kind.read(value, at.inside(name))
        if not isinstance(read, WrongValue):
            self.top[name] = read

    def _table(self, section: Section, value: object, at: At) -> None:
        """Read a table such as [node]. Each of its keys replaces the same key of a weaker source."""
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
        """Read a list of tables such as [[tool]]. It replaces the complete list of a weaker source."""
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
                rules.append(_read_entry(section.name, values, inside))
        self.lists[section.name] = tuple(rule for rule in rules if not isinstance(rule, WrongValue))

    def _servers(self, section: Section, value: object, at: At) -> None:
        """Read the tables [servers.SEGMENT]. A server replaces the server of a weaker source with the same segment."""
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
    """Read the keys of a table, and return the values that could be read.

    Report every other key of the table, and required keys that it lacks.
    """
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


def _read_entry(section: str, values: dict[str, Any], at: At) -> Any:
    """Return one entry of a list such as [[tool]], made from the values of its keys."""
    match section:
        case "access":
            return AccessRule(**values)
        case "anchor":
            return anchor_plan(values, at)
        case "room":
            return RoomPlan(topic=values.pop("topic"), written=values)
        case _:
            names = values.keys() & set(ToolCapability.__struct_fields__)
            capability = {name: values.pop(name) for name in list(values) if name in names}
            return ToolRule(**values, capability=capability)


def _unknown(what: str, name: str, names: Iterable[str], at: At) -> None:
    inside = at.inside(name)
    if not inside.worth_reporting:
        inside.wrong("unknown")
        return
    where = f"in {at.title}" if at.table else "at the top level"
    inside.wrong(f"unknown {what} {quoted_word(name)} {where}", _hint_for_unknown(name, list(names), at))


def _hint_for_unknown(name: str, names: list[str], at: At) -> str | None:
    """Return a hint for a person about the unknown key `name`: the key that was probably meant, where the key belongs,
    or the keys that exist.
    """
    other = _OTHER_WORDS.get(name)
    if other in names:
        return f"did you mean '{other}'?"
    homes = [f"[{each.name}]" for each in sections().values() if each.shape == "table" and name in each.keys]
    if homes:
        return f"it belongs in {' or '.join(homes)}"
    if at.table and name in TOP:
        return "it belongs at the top, above the first [table]"
    like = nearest(name, names)
    if like is not None:
        return f"did you mean '{like}'?"
    elsewhere = {key: each.name for each in sections().values() if each.shape == "table" for key in each.keys}
    like = nearest(name, elsewhere, likeness=0.8)
    return f"did you mean '{like}' in [{elsewhere[like]}]?" if like else f"known here: {', '.join(names)}"


def anchor_plan(values: dict[str, Any], at: At) -> AnchorPlan | WrongValue:
    """Make the plan of an [[anchor]] entry. Report a problem unless the entry has exactly one key, key set or
    passkey.
    """
    sources = [name for name in KEY_SOURCES if name in values]
    if len(sources) != 1:
        which = f"has {' and '.join(sources)}" if sources else "has no key"
        return at.wrong(f"{at.title} {which}", f"give one of {', '.join(KEY_SOURCES)}")
    anchor = AnchorPlan(**values)
    if anchor.passkey is not None and anchor.speaks_for:
        return at.inside("speaks_for").wrong(
            f"{at.title} is a person's passkey, which speaks for no subserver", "give the subserver's key instead"
        )
    if not anchor.approves and not anchor.speaks_for:
        at.warn(f"{at.title} is trusted for nothing", "give approves = [tools] or speaks_for = [names]")
    return anchor


def server_plan(segment: str, written: dict[str, Any], values: dict[str, Any], at: At) -> ServerPlan | WrongValue:
    """Make the plan of a server from its table [servers.SEGMENT].

    `written` is the table as its layer contains it. `values` are the values of its keys that could be read.
    """
    reaches = [name for name in REACHES if name in written]
    if not reaches:
        return at.wrong(f"{at.title} does not say how to reach the server", f"give it one of {', '.join(REACHES)}")
    if len(reaches) > 1:
        return at.inside(reaches[1]).wrong(f"{at.title} has {' and '.join(reaches)}", "keep one of them")
    (reach,) = reaches
    is_wrong = len(values) < len(written)
    for name in written:
        if name != reach and name not in SERVER_KEYS[reach] and name in sections()["servers"].keys:
            fitting = ", ".join(other for other, beside in SERVER_KEYS.items() if name in beside)
            at.inside(name).wrong(f"'{name}' in {at.title} does not go with '{reach}'", f"it goes with {fitting}")
            is_wrong = True
    transport = values.get("transport", "auto")
    if transport not in TRANSPORTS[reach]:
        fitting = " or ".join(TRANSPORTS[reach])
        at.inside("transport").wrong(f"'transport' in {at.title} must be {fitting} beside '{reach}', not '{transport}'")
        is_wrong = True
    # Both are asked, so that every mistake is reported.
    has_faults = [_report_auth_fault(values, at), _report_egress_fault(reach, values, at)]
    if is_wrong or any(has_faults):
        return WRONG
    dialled = {name: values[name] for name in ("url", "headers", "transport", "auth") if name in values}
    return ServerPlan(
        segment=segment,
        reach=Dial(**dialled) if reach == "url" else _spawn_plan(segment, reach, values),
        classes=values.get("tools", {}),
        secrets=tuple(dict.fromkeys(at.substituted)),
        unset=tuple(dict.fromkeys(at.unset)),
        roots=values.get("roots", values.get("files")),
        **{name: values[name] for name in ServerSettings.__struct_fields__ if name in values and name != "roots"},
    )


def _report_auth_fault(values: dict[str, Any], at: At) -> bool:
    """Report OAuth settings of a server that contradict its other settings or would expose a token. Return whether
    there are any.
    """
    auth: OAuthPlan | None = values.get("auth")
    if auth is None or "url" not in values:
        return False
    inside = at.inside("auth")
    if any(name.lower() == "authorization" for name in values.get("headers", {})):
        inside.wrong(f"{at.title} has 'auth' and an Authorization header", "keep one of them")
        return True
    if not is_protected(values["url"]):
        inside.wrong(f"'auth' in {at.title} needs an https:// url", "a token must not travel where others can read it")
        return True
    if auth.client_secret is not None and auth.issuer is None:
        inside.warn(
            f"the client_secret in {at.title} goes to whatever authorization server the MCP server names first",
            'name the one it belongs to: issuer = "https://..."',
        )
    if auth.per == "user" and values.get("share", "auto") not in ("auto", "principal"):
        at.inside("share").wrong(
            f"'share' in {at.title} cannot be '{values['share']}' beside auth per = 'user'",
            "each user has a connection of their own: leave it out",
        )
        return True
    return False


def _report_egress_fault(reach: str, values: dict[str, Any], at: At) -> bool:
    """Report a list of hosts on a container server, because the network of a container cannot be limited to hosts.
    Return whether this was reported. Also warn of a list that permits every host.
    """
    hosts: tuple[str, ...] = values.get("egress", ())
    inside = at.inside("egress")
    if hosts and reach == "docker":
        inside.wrong(f"'egress' in {at.title} can only be [] beside 'docker'", "no host, or leave it out for all")
        return True
    if "*" in hosts:
        inside.warn(f"'egress' in {at.title} lets the server reach any public host", "name the hosts it needs")
    return False


def _spawn_plan(segment: str, reach: str, values: dict[str, Any]) -> Spawn:
    """Return how the node starts a server that is a program, a package or a container.

    `egress` or `files` puts a program into a sandbox. A container is a sandbox already, so for a container they become
    options of the container.
    """
    is_confined = "egress" in values or "files" in values
    env: dict[str, str] = values.get("env", {})
    command: tuple[str, ...] = values.get("args", ())
    package: Package | None = None
    match reach:
        case "command":
            command = (*values["command"], *command)
        case "npm":
            package = Package(registry="npm", name=values["npm"])
        case "pypi":
            package = Package(registry="pypi", name=values["pypi"])
        case "docker":
            container = SandboxPlan(
                home=Path(HOMES) / segment,
                write=values.get("files", ()),
                egress=() if is_confined else ("*",),
                any_program=True,
            )
            # Arguments carry only the names of variables, because other users of the machine could read the values.
            variables = (word for name in env for word in ("-e", name))
            command = (*CONTAINER, *container_limits(container), *variables, values["docker"], *command)
            return Spawn(command=command, env=env, container=container)
    sandbox = SandboxPlan(
        home=Path(HOMES) / segment,
        write=values.get("files", ()),
        from_arguments="files" not in values,
        egress=values.get("egress", ()),
        any_program=True,
    )
    return Spawn(
        command=command, env=env, cwd=values.get("cwd"), package=package, sandbox=sandbox if is_confined else None
    )
