"""Drivers drafted from foreign entries (AIP-import-4 to -11), and the plan of an import of many entries (-9, -13).

`draft_entry` turns one entry into a `DriverDraft`, or into the note that says why it cannot become a driver. What it
has to know of the machine is in `Surroundings`. Nothing is relaxed: no approval, host or folder is opened that the
source does not name. `batch` finds the entries that are the same server, gives each a folder, and says what is skipped.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.files.frontmatter import frontmatter_text
from interlock.drivers.protocol.files.plaintext import holds_token
from interlock.drivers.protocol.kinds import SERVERS
from interlock.interop.protocol.launchers import (
    ClassifiedCommand,
    Unwrapped,
    classify_command,
    is_interpreter,
    is_own,
    unwrap_bridge,
)
from interlock.interop.protocol.model import DriverDraft, ImportNote, SecretFinding, ServerEntry
from interlock.interop.protocol.translation import NotTranslatable, SecretNames, Surroundings, Translator

# Which folders a driver may use: the absolute paths its source names, and nothing wider (AIP-import-11).

_ABSOLUTE: Final = re.compile(r"(?:/[^\s\x00,;:*?\"<>|]*|[A-Za-z]:[\\/][^\x00*?\"<>|]*)")
_ASSIGNED: Final = re.compile(r"-{0,2}[A-Za-z][\w-]*=(?P<value>.*)", re.DOTALL)
_SYSTEM: Final = ("", "etc", "home", "root", "Users", "usr", "var", "proc", "sys", "dev", "tmp")
_NEVER: Final = frozenset(f"/{each}" for each in _SYSTEM)  # AIP-security-5, and what everybody shares


class Sandboxing:
    def __init__(self, home: str, folder: str | None = None, fresh: Mapping[str, str] | None = None) -> None:
        self._home = home.rstrip("/\\")
        self._folder = folder  # of an unpacked bundle, which does not change
        self._fresh = fresh or {}  # what is not there yet: its folder is what the server has to write
        self._read: dict[str, None] = {}
        self._write: dict[str, None] = {}
        self.withheld: list[str] = []

    def look_at(self, args: Sequence[str], env: Mapping[str, str], *, script: bool = False) -> None:
        """Open the paths in arguments and variables.

        The server works on a path that is an argument by itself; other paths are only read. `script` means that the
        first such path is the program.
        """
        for each in args:
            if _ABSOLUTE.fullmatch(each):
                if script:
                    self._open(each, self._read)
                else:
                    self._work_on(each, self._write)
                script = False
            elif (assigned := _ASSIGNED.fullmatch(each)) and _ABSOLUTE.fullmatch(assigned["value"]):
                self._work_on(assigned["value"], self._read)
        for value in env.values():
            if _ABSOLUTE.fullmatch(value):
                self._work_on(value, self._read)

    def write(self, path: str) -> None:
        self._open(path, self._write)

    def _work_on(self, path: str, where: dict[str, None]) -> None:
        if path in self._fresh:
            self._open(self._fresh[path], self._write)
        else:
            self._open(path, where)

    def _open(self, path: str, where: dict[str, None]) -> None:
        plain = path.rstrip("/\\") or "/"
        if ".." in re.split(r"[/\\]", plain):
            wide = True
        else:
            below = f"{plain.rstrip('/')}/"
            wide = plain in _NEVER or (bool(self._home) and f"{self._home}/".startswith(below))
        if self._folder is not None and f"{plain}/".startswith(f"{self._folder}/"):
            self._read[self._folder] = None
        elif not wide:
            where[plain] = None
        elif plain not in self.withheld:
            self.withheld.append(plain)

    def block(self, passed: Sequence[str], defaults: Mapping[str, str]) -> dict[str, Any]:
        """Return the sandbox block of AIP-29. It is empty if no setting is needed."""
        files = {"read": [each for each in self._read if each not in self._write], "write": list(self._write)}
        files = {key: paths for key, paths in files.items() if paths}
        env: dict[str, Any] = {"pass": list(passed)} if passed else {}
        env |= {"set": dict(defaults)} if defaults else {}
        return ({"fs": files} if files else {}) | ({"env": env} if env else {})


# Driver files of an import as text.

PENDING: Final[Mapping[str, Any]] = {  # in the place of bindings that are not known yet, where a reader wants one
    "tool": "pending",
    "version": "^1.0.0",
    "metadata": {"mcp": {"tool_name": "pending"}},
}


def secrets_text(secrets: Sequence[SecretFinding]) -> str:
    """SECRETS.md: slugs, what they are for, where they come from; never a value."""
    return frontmatter_text({"secrets": secret_entries(secrets)})


def secret_entries(secrets: Sequence[SecretFinding]) -> list[dict[str, str]]:
    entries = []
    for each in secrets:
        entry = {"slug": each.slug, "name": each.name, "description": each.description}
        entry |= {"backend": each.backend} if each.backend else {}
        entries.append(entry)
    return entries


ID_CHARS_MAX: Final = 36  # so that <id>/<name> stays within the 80 characters of a slug
_NOT_ID: Final = re.compile(r"[^a-z0-9]+")


class ImportChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Choices of the user for an import."""

    not_secret: frozenset[str] = frozenset()
    trust_network: bool = False


def driver_id(name: str) -> str:
    """AIP-import-9: "My Files" is my-files-mcp."""
    slug = _NOT_ID.sub("-", name.lower()).strip("-")[:ID_CHARS_MAX].strip("-")
    slug = slug.removesuffix("-mcp") if slug != "mcp" else ""
    slug = slug or "server"
    return f"{slug if slug[0].isalpha() else f'server-{slug}'}-mcp"


def draft_entry(
    entry: ServerEntry, around: Surroundings, wishes: ImportChoices, *, identifier: str | None = None
) -> DriverDraft | ImportNote:
    if entry.refused is not None:
        return msgspec.structs.replace(entry.refused, server=entry.name)
    identifier = identifier or driver_id(entry.name)
    work = Translator(entry, around, SecretNames(identifier), wishes.not_secret)
    sandboxing = Sandboxing(around.home, around.folder, around.fresh)
    for path in around.writes:
        sandboxing.write(path)
    try:
        server, transport = _server(entry, work, sandboxing)
    except NotTranslatable as cannot:
        return ImportNote(code=cannot.code, text=str(cannot), server=entry.name)
    data = _frontmatter(entry, identifier, server, transport, work, sandboxing)
    problem = refusal(data)
    if problem is not None:
        return ImportNote(code=problem.code, text=problem.text, server=entry.name)
    notes = [*entry.notes, *work.notes]
    if sandboxing.withheld:
        message = f"not opened to it: {', '.join(sandboxing.withheld)}; name what it needs in sandbox.fs"
        notes.append(ImportNote(code="path_withheld", text=message))
    return DriverDraft(
        id=identifier,
        source=entry.name,
        data=data,
        opened=("*",) if wishes.trust_network else None,
        hints=_hints(entry),
        secrets=tuple(work.secrets.found),
        notes=tuple(msgspec.structs.replace(each, server=entry.name) for each in notes),
        withheld=tuple(sandboxing.withheld),
    )


def _server(entry: ServerEntry, work: Translator, sandboxing: Sandboxing) -> tuple[dict[str, Any], str]:
    if entry.url is not None:
        return _remote(entry.url, entry.headers, work), entry.transport
    classified = classify_command(entry.command) if entry.server is None else ClassifiedCommand(server=entry.server)
    work.notes += classified.notes
    env = {**work.from_file(), **entry.env, **classified.env}
    carried = unwrap_bridge(classified.server, env)
    if isinstance(carried, Unwrapped):
        rest = [name for name in env if name not in carried.used_env]
        if rest:
            work.say("env_dropped", f"variables of the program that carried it: {', '.join(sorted(rest)[:8])}")
        return _remote(carried.url, carried.headers, work), carried.transport
    if carried is not None:
        work.notes.append(carried)
    passed = [*entry.env_passed, *classified.passed]
    block = dict(classified.server)
    is_container = SERVERS[block["kind"]].confinement == "container"
    work.hands_on = not is_container
    if is_container and entry.server is None:
        env, passed = _of_container(env, classified, work)
    return _spawn_block(entry, block, env, passed, work, sandboxing), "stdio"


def _of_container(
    env: Mapping[str, str], classified: ClassifiedCommand, work: Translator
) -> tuple[dict[str, str], list[str]]:
    """Return the variables that `-e` sets in a container, and the names it passes on.

    The rest of the environment is only that of the docker command.
    """
    inside = {name: value for name, value in env.items() if name in classified.env or name in classified.passed}
    outside = sorted(set(env) - set(inside))
    if outside:
        work.say("env_dropped", f"variables that the container never saw: {', '.join(outside[:8])}")
    return inside, [name for name in classified.passed if name not in inside]


def _spawn_block(
    entry: ServerEntry,
    block: dict[str, Any],
    env: Mapping[str, str],
    passed: list[str],
    work: Translator,
    sandboxing: Sandboxing,
) -> dict[str, Any]:
    for key in ("path", "package", "image"):
        if key in block:
            block[key] = work.fixed(block[key], key)
    args = work.arguments(tuple(block.pop("args", ())))
    volumes = _volumes(block.pop("volumes", ()), work)
    values = work.environment(env)
    for name in passed:
        if (placeholder := work.passed(name)) is not None:
            values[name] = placeholder
    for name in entry.env_unset:
        values[name] = work.secrets.ask(f"env.{name}", name, f"{name} of {entry.name}.")
    cwd = work.fixed(entry.cwd, "cwd") if entry.cwd is not None else None
    if SERVERS[block["kind"]].confinement == "sandbox":
        sandboxing.look_at(args, values, script=block["kind"] == "binary" and is_interpreter(block["path"]))
    block |= {"volumes": volumes} if volumes else {}
    block |= {"args": args} if args else {}
    block |= {"env": values} if values else {}
    return block | ({"cwd": cwd} if cwd else {})


def _volumes(written: Iterable[str], work: Translator) -> list[str]:
    volumes = []
    for each in written:
        try:
            volumes.append(work.fixed(each, "volumes"))
        except NotTranslatable:
            work.say("volume_unset", "a volume that has still to be named is left out; add it to server.volumes")
    return volumes


def _remote(url: str, headers: Mapping[str, str], work: Translator) -> dict[str, Any]:
    address, query, added = work.address(url)
    sent = {**added, **work.headers(headers)}
    block: dict[str, Any] = {"kind": "remote", "url": address}
    block |= {"headers": sent} if sent else {}
    block |= {"query": query} if query else {}
    auth = work.oauth()
    return block | ({"auth": auth} if auth else {})


def _frontmatter(
    entry: ServerEntry,
    identifier: str,
    server: dict[str, Any],
    transport: str,
    work: Translator,
    sandboxing: Sandboxing,
) -> dict[str, Any]:
    title = entry.title if entry.title and not holds_token(entry.title) else entry.name
    about = entry.description if entry.description and not holds_token(entry.description) else None
    data: dict[str, Any] = {
        "name": " ".join(title.split())[:80] or identifier,
        "id": identifier,
        "description": " ".join((about or f"The MCP server {title}.").split())[:2000],
        "version": "1.0.0",
        "kind": "mcp",
        "server": server,
        "transport": transport,
        "implements": [],
    }
    confinement = SERVERS[server["kind"]].confinement
    if confinement != "elsewhere":  # the address of one is itself an allowance
        data["network"] = {"egress": list(entry.egress or ())}
    sandbox = sandboxing.block(work.environment_passed, work.environment_defaults)
    data |= {"sandbox": sandbox} if sandbox and confinement == "sandbox" else {}
    data |= {"connection_options": {"timeout_ms": entry.connect_timeout_ms}} if entry.connect_timeout_ms else {}
    data |= {"timeout_override_ms": entry.call_timeout_ms} if entry.call_timeout_ms else {}
    data |= {"install": [dict(each) for each in entry.install]} if entry.install else {}
    data |= {"auth": {"ref": "./SECRETS.md"}} if work.secrets.found else {}
    ours = {"not_secret": sorted(work.spared)} if work.spared else {}
    return data | ({"metadata": {"interlock": ours}} if ours else {})


def _hints(entry: ServerEntry) -> dict[str, Any]:
    """Return the source's settings for tools, to be applied when the tools are listed."""
    hints: dict[str, Any] = {}
    hints |= {"only_tools": list(entry.only_tools)} if entry.only_tools else {}
    hints |= {"without_tools": list(entry.without_tools)} if entry.without_tools else {}
    hints |= {"asks": True} if entry.asks else {}
    return hints | ({"asks_tools": list(entry.asks_tools)} if entry.asks_tools else {})


def refusal(data: Mapping[str, Any]) -> ImportNote | None:
    """Return the first error that reading the driver gives, or None.

    A placeholder takes the place of the bindings that are added later.
    """
    reading = read_driver(frontmatter_text({**data, "implements": [PENDING]}).encode(), "DRIVER.md")
    if not reading.errors:
        return None
    first = reading.errors[0]
    return ImportNote(code=first.code, text=f"{first.field or 'the driver'}: {first.message}; {first.hint}")


_SUFFIX = "-mcp"


class Sourced(msgspec.Struct, frozen=True, kw_only=True):
    """An entry and where it stands: `key` is the same for the same entry at each import."""

    key: str
    told: str  # "Cursor", as the report calls its source
    entry: ServerEntry
    paths: tuple[str, ...] = ()  # the files it was read from


class ExistingDriver(msgspec.Struct, frozen=True, kw_only=True):
    """A driver folder that is there already."""

    id: str
    sources: tuple[str, ...] = ()  # keys of entries it came from; none: a person made it
    data: Mapping[str, Any] = {}


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    draft: DriverDraft
    sources: tuple[str, ...]
    told: tuple[str, ...]
    paths: tuple[str, ...] = ()
    standing: ExistingDriver | None = None  # came from the same entry
    alike: bool = False  # `standing` is somebody else's, and the same server: nothing to write


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    told: str
    note: ImportNote


class ImportBatch(msgspec.Struct, frozen=True, kw_only=True):
    planned: tuple[Planned, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def batch(
    entries: Sequence[Sourced],
    standing: Sequence[ExistingDriver],
    around: Surroundings,
    wishes: ImportChoices,
    *,
    everything: bool = False,
    only: Collection[str] = (),
    own_addresses: Collection[str] = (),
) -> ImportBatch:
    planned: dict[str, Planned] = {}  # by id
    skipped: list[Skipped] = []
    folders = {each.id: each for each in standing}
    for sourced in entries:
        entry = sourced.entry
        if only and entry.name not in only:
            continue
        draft = _judge(sourced, around, wishes, everything=everything, own_addresses=own_addresses)
        if isinstance(draft, ImportNote):
            skipped.append(Skipped(name=entry.name, told=sourced.told, note=draft))
            continue
        same = next((each for each in planned.values() if _shape(each.draft) == _shape(draft)), None)
        if same is not None:
            planned[same.draft.id] = msgspec.structs.replace(
                same,
                sources=(*same.sources, sourced.key),
                told=(*same.told, sourced.told),
                paths=tuple(dict.fromkeys([*same.paths, *sourced.paths])),
            )
            continue
        before = next((each for each in standing if sourced.key in each.sources and each.id not in planned), None)
        alike = False
        if before is not None:
            identifier = before.id
        else:
            identifier = draft.id
            number = 2
            while identifier in planned or (identifier in folders and not _alike(folders[identifier], draft)):
                identifier = f"{draft.id.removesuffix(_SUFFIX)}-{number}{_SUFFIX}"
                number += 1
            before = folders.get(identifier)
            alike = before is not None
        if identifier != draft.id:
            again = draft_entry(entry, around, wishes, identifier=identifier)
            if isinstance(again, ImportNote):
                skipped.append(Skipped(name=entry.name, told=sourced.told, note=again))
                continue
            draft = again
        planned[identifier] = Planned(
            draft=draft,
            sources=(sourced.key,),
            told=(sourced.told,),
            paths=sourced.paths,
            standing=before,
            alike=alike,
        )
    return ImportBatch(planned=tuple(planned.values()), skipped=tuple(skipped))


def asks_for_hosts(planned: Planned) -> bool:
    """Return whether this is a new program without a setting for the hosts that it may reach."""
    data = planned.draft.data
    return (
        planned.standing is None
        and SERVERS[data["server"]["kind"]].confinement != "elsewhere"
        and not data["network"]["egress"]
    )


def with_hosts(planned: Planned, hosts: Sequence[str]) -> Planned | ImportNote:
    """Return the plan with these allowed hosts, or a Note that says why they are invalid."""
    draft = msgspec.structs.replace(planned.draft, opened=tuple(hosts))
    problem = refusal(draft.written)
    return msgspec.structs.replace(planned, draft=draft) if problem is None else problem


def _judge(
    sourced: Sourced, around: Surroundings, wishes: ImportChoices, *, everything: bool, own_addresses: Collection[str]
) -> DriverDraft | ImportNote:
    entry = sourced.entry
    if entry.disabled is not None and not everything:
        return ImportNote(code="disabled", text=f"{entry.disabled}; --all takes it too")
    if is_own(entry, own_addresses):
        return ImportNote(code="interlock_itself", text="this is Interlock itself")
    return draft_entry(entry, around, wishes)


def _shape(draft: DriverDraft) -> object:
    """Return a value that is equal for entries of the same server: what is started or dialled, and its secrets."""
    secrets = sorted((each.name, each.value or "", each.backend or "") for each in draft.secrets)
    return draft.data["server"], draft.data["transport"], secrets


def _alike(standing: ExistingDriver, draft: DriverDraft) -> bool:
    return not standing.sources and all(standing.data.get(key) == draft.data[key] for key in ("server", "transport"))
