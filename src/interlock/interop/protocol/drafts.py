"""Drafts of drivers from other programs' entries (AIP-import-4 to -11), and the plan of an import (-9, -13).

`draft_entry` turns one entry into a `DriverDraft`, or into a note that explains why it cannot become a driver.
`Surroundings` has the facts about the machine that it needs. An import never relaxes a setting: it allows no host,
folder or unapproved call that the source does not name. `batch` finds entries for the same server, assigns each server
a folder, and reports which entries are skipped.

`merge` compares what the last import wrote, what the file contains now, and what the source says now (AIP-import-13). A
field that only one side changed takes that side's value. If both the user and the source changed a field, the user's
value stays and the field is reported. A list is treated as one value. Only digests of the last import are stored,
because a value that was not recognised as a secret may still be one. `with_fields` writes the result into the file and
keeps its comments, order and body.
"""

import hashlib
import io
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.files.frontmatter import FENCE, frontmatter_text, read_frontmatter
from interlock.drivers.protocol.files.plaintext import holds_token
from interlock.drivers.protocol.identity import changes_of_identity
from interlock.drivers.protocol.kinds import SERVERS
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.interop.protocol.launchers import (
    ClassifiedCommand,
    Unwrapped,
    classify_command,
    is_interpreter,
    is_own,
    unwrap_bridge,
)
from interlock.interop.protocol.model import DriverDraft, ImportNote, SecretFinding, ServerEntry, without_empty
from interlock.interop.protocol.translation import NotTranslatable, SecretNames, Surroundings, Translator, plain_copy
from interlock.wire.jsontext.canonical import pointer_step

_ABSOLUTE: Final = re.compile(r"(?:/[^\s\x00,;:*?\"<>|]*|[A-Za-z]:[\\/][^\x00*?\"<>|]*)")
_ASSIGNED: Final = re.compile(r"-{0,2}[A-Za-z][\w-]*=(?P<value>.*)", re.DOTALL)
_SYSTEM: Final = ("", "etc", "home", "root", "Users", "usr", "var", "proc", "sys", "dev", "tmp")
_NEVER: Final = frozenset(f"/{each}" for each in _SYSTEM)  # AIP-security-5, and folders that all programs share


class Sandboxing:
    """The folders that a driver may use: only absolute paths that the client's file or the user names (AIP-import-11).

    A path that is too wide, such as the home folder or one above it, is not allowed and is listed in `withheld`.
    """

    def __init__(self, home: str, folder: str | None = None, fresh: Mapping[str, str] | None = None) -> None:
        self._home = home.rstrip("/\\")
        self._folder = folder  # of an unpacked bundle, which does not change
        self._fresh = fresh or {}  # paths that do not exist yet: the server has to write their folders
        self._read: dict[str, None] = {}
        self._write: dict[str, None] = {}
        self.withheld: list[str] = []

    def look_at(self, args: Sequence[str], env: Mapping[str, str], *, script: bool = False) -> None:
        """Let the server use the absolute paths that occur in its arguments and environment variables.

        A path that is a complete argument may be written, because the server works on it; other paths may only be read.
        With `script`, the first such argument is the program and is not opened for writing. Of a path that does not
        exist yet, the folder in which it would be created may be written.
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
        """Allow the server to write to this path. A path that exposes too much, such as the root, is refused."""
        self._open(path, self._write)

    def _work_on(self, path: str, where: dict[str, None]) -> None:
        if path in self._fresh:
            self._open(self._fresh[path], self._write)
        else:
            self._open(path, where)

    def _open(self, path: str, where: dict[str, None]) -> None:
        plain = path.rstrip("/\\") or "/"
        below = f"{plain.rstrip('/')}/"
        is_above_home = bool(self._home) and f"{self._home}/".startswith(below)
        is_wide = is_above_home or plain in _NEVER or ".." in re.split(r"[/\\]", plain)
        if self._folder is not None and f"{plain}/".startswith(f"{self._folder}/"):
            self._read[self._folder] = None
        elif not is_wide:
            where[plain] = None
        elif plain not in self.withheld:
            self.withheld.append(plain)

    def block(self, passed: Sequence[str], defaults: Mapping[str, str]) -> dict[str, Any]:
        """Return the sandbox block for the driver's frontmatter (AIP-29). It is empty if no setting is needed."""
        read = [each for each in self._read if each not in self._write]
        files = without_empty({"read": read, "write": list(self._write)})
        return without_empty({"fs": files, "env": without_empty({"pass": list(passed), "set": dict(defaults)})})


# In the place of bindings that are not known yet, where the reader of a driver wants one.
_PENDING_TOOL: Final = {"mcp": {"tool_name": "pending"}}
PENDING: Final[Mapping[str, Any]] = {"tool": "pending", "version": "^1.0.0", "metadata": _PENDING_TOOL}


def secrets_text(secrets: Sequence[SecretFinding]) -> str:
    """Return the text of a SECRETS.md with the slug, purpose and source of each secret, but no values."""
    return frontmatter_text({"secrets": secret_entries(secrets)})


def secret_entries(secrets: Sequence[SecretFinding]) -> list[dict[str, str]]:
    keys = ("slug", "name", "description", "backend")
    return [without_empty({key: getattr(secret, key) for key in keys}) for secret in secrets]


ID_CHARS_MAX: Final = 36  # so that <id>/<name> stays within the 80 characters of a slug
_NOT_ID: Final = re.compile(r"[^a-z0-9]+")


class ImportChoices(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices for an import."""

    not_secret: frozenset[str] = frozenset()
    trust_network: bool = False
    everything: bool = False  # also import entries that are disabled
    only: frozenset[str] = frozenset()  # import only entries with these names; empty: all


def driver_id(name: str) -> str:
    """Return the driver id for a server's name, for example my-files-mcp for "My Files" (AIP-import-9)."""
    slug = _NOT_ID.sub("-", name.lower()).strip("-")[:ID_CHARS_MAX].strip("-")
    slug = slug.removesuffix("-mcp") if slug != "mcp" else ""
    slug = slug or "server"
    return f"{slug if slug[0].isalpha() else f'server-{slug}'}-mcp"


def draft_entry(
    entry: ServerEntry, around: Surroundings, wishes: ImportChoices, *, identifier: str | None = None
) -> DriverDraft | ImportNote:
    """Return a draft of the driver for an entry, or a note that explains why the entry cannot become a driver."""
    if entry.refused is not None:
        return entry.refused
    identifier = identifier or driver_id(entry.name)
    work = Translator(entry, around, SecretNames(identifier), wishes.not_secret)
    sandboxing = Sandboxing(around.home, around.folder, around.fresh)
    for path in around.writes:
        sandboxing.write(path)
    try:
        server, transport = _build_server(entry, work, sandboxing)
    except NotTranslatable as cannot:
        return ImportNote(code=cannot.code, text=str(cannot))
    data = _frontmatter(identifier, server, transport, work, sandboxing)
    if (problem := find_refusal(data)) is not None:
        return problem
    notes = [*entry.notes, *work.notes]
    if sandboxing.withheld:
        message = f"not opened to it: {', '.join(sandboxing.withheld)}; name what it needs in sandbox.fs"
        notes.append(ImportNote(code="path_withheld", text=message))
    # The source's settings for tools are applied when the tools are listed.
    only, without = list(entry.only_tools or ()), list(entry.without_tools)
    hints = {"only_tools": only, "without_tools": without, "asks": entry.asks, "asks_tools": list(entry.asks_tools)}
    return DriverDraft(
        id=identifier,
        source=entry.name,
        data=data,
        opened=("*",) if wishes.trust_network else None,
        hints=without_empty(hints),
        secrets=tuple(work.secrets.found),
        notes=tuple(notes),
        withheld=tuple(sandboxing.withheld),
    )


def _build_server(entry: ServerEntry, work: Translator, sandboxing: Sandboxing) -> tuple[dict[str, Any], str]:
    """Return the server block and the transport. Raise NotTranslatable if the entry has no valid form as a driver."""
    if entry.url is not None:
        return _remote(entry.url, entry.headers, work), entry.transport
    classified = classify_command(entry.command) if entry.server is None else ClassifiedCommand(server=entry.server)
    work.notes += classified.notes
    env = {**work.from_file(), **entry.env, **classified.env}
    unwrapped = unwrap_bridge(classified.server, env)
    if isinstance(unwrapped, Unwrapped):
        rest = [name for name in env if name not in unwrapped.used_env]
        if rest:
            work.say("env_dropped", f"variables of the program that carried it: {', '.join(sorted(rest)[:8])}")
        return _remote(unwrapped.url, unwrapped.headers, work), unwrapped.transport
    if unwrapped is not None:
        work.notes.append(unwrapped)
    passed = [*entry.env_passed, *classified.passed]
    block = dict(classified.server)
    is_container = SERVERS[block["kind"]].confinement == "container"
    work.hands_on = not is_container
    if is_container and entry.server is None:
        # A container gets the variables that -e names. The rest of the environment is that of the docker command.
        inside = {name: value for name, value in env.items() if name in classified.env or name in classified.passed}
        if outside := sorted(set(env) - set(inside)):
            work.say("env_dropped", f"variables that the container never saw: {', '.join(outside[:8])}")
        env, passed = inside, [name for name in classified.passed if name not in inside]
    return _spawn_block(block, env, passed, work, sandboxing), "stdio"


def _spawn_block(
    block: dict[str, Any], env: Mapping[str, str], passed: list[str], work: Translator, sandboxing: Sandboxing
) -> dict[str, Any]:
    """Return the server block of a program, package or image. `env` holds variables with values; `passed` are the names
    of variables that are passed on.
    """
    entry = work.entry
    for key in ("path", "package", "image"):
        if key in block:
            block[key] = work.fixed(block[key], key)
    args = work.arguments(tuple(block.pop("args", ())))
    volumes = []
    for each in block.pop("volumes", ()):
        try:
            volumes.append(work.fixed(each, "volumes"))
        except NotTranslatable:
            work.say("volume_unset", "a volume that has still to be named is left out; add it to server.volumes")
    values = work.environment(env)
    for name in passed:
        if (placeholder := work.passed(name)) is not None:
            values[name] = placeholder
    for name in entry.env_unset:
        values[name] = work.secrets.add(f"env.{name}", name, f"{name} of {entry.name}.")
    cwd = work.fixed(entry.cwd, "cwd") if entry.cwd is not None else None
    if SERVERS[block["kind"]].confinement == "sandbox":
        sandboxing.look_at(args, values, script=block["kind"] == "binary" and is_interpreter(block["path"]))
    return block | without_empty({"volumes": volumes, "args": args, "env": values, "cwd": cwd})


def _remote(url: str, headers: Mapping[str, str], work: Translator) -> dict[str, Any]:
    address, query, added = work.address(url)
    sent = {**added, **work.headers(headers)}
    return {"kind": "remote", "url": address} | without_empty({"headers": sent, "query": query, "auth": work.oauth()})


def _frontmatter(
    identifier: str, server: dict[str, Any], transport: str, work: Translator, sandboxing: Sandboxing
) -> dict[str, Any]:
    """Return the frontmatter of the drafted driver. Its list of contracts is empty, because the tools are not known
    yet.
    """
    entry = work.entry
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
    optional = {
        "sandbox": sandbox if confinement == "sandbox" else None,
        "connection_options": without_empty({"timeout_ms": entry.connect_timeout_ms}),
        "timeout_override_ms": entry.call_timeout_ms,
        "install": [dict(each) for each in entry.install],
        "auth": {"ref": "./SECRETS.md"} if work.secrets.found else None,
        "metadata": {"interlock": {"not_secret": sorted(work.spared)}} if work.spared else None,
    }
    return data | without_empty(optional)


def find_refusal(data: Mapping[str, Any]) -> ImportNote | None:
    """Return the first error that the reader of driver files reports for this draft, or None if the draft is valid.

    A placeholder is used for the bindings, which are added later.
    """
    reading = read_driver(frontmatter_text({**data, "implements": [PENDING]}).encode(), "DRIVER.md")
    if not reading.errors:
        return None
    first = reading.errors[0]
    return ImportNote(code=first.code, text=f"{first.field or 'the driver'}: {first.message}; {first.hint}")


_SUFFIX = "-mcp"


class Sourced(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a client's file with its source. `key` identifies the entry and is the same in each import."""

    key: str
    title: str  # of the source in the report, such as "Cursor"
    entry: ServerEntry
    paths: tuple[str, ...] = ()  # the files it was read from


class ExistingDriver(msgspec.Struct, frozen=True, kw_only=True):
    """A driver folder that exists in the workspace."""

    id: str
    sources: tuple[str, ...] = ()  # keys of the entries that it came from; none: a person wrote it
    data: Mapping[str, Any] = {}


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A driver that an import will write or update, with all entries from which it comes."""

    draft: DriverDraft
    sources: tuple[str, ...]
    titles: tuple[str, ...]
    paths: tuple[str, ...] = ()
    standing: ExistingDriver | None = None  # came from the same entry
    alike: bool = False  # `standing` was not imported, and is the same server: nothing to write


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that is not imported, with the reason as a code and a text."""

    name: str
    source: str  # the title of the file, such as "Cursor"
    code: str
    text: str


class ImportBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of an import: what will be written and what will be skipped."""

    planned: tuple[Planned, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def batch(
    entries: Sequence[Sourced],
    standing: Sequence[ExistingDriver],
    around: Surroundings,
    wishes: ImportChoices,
    own_addresses: Collection[str] = (),
    taken: Mapping[str, str] = MappingProxyType({}),
) -> ImportBatch:
    """Return the plan of an import, which has one driver per server even if several entries describe the server.

    `standing` are the existing driver folders. `own_addresses` are URLs of this node, whose entries are skipped.
    `taken` are segments that the configuration uses, and where it does; no new driver gets such a name.
    """
    planned: dict[str, Planned] = {}  # by id
    skipped: list[Skipped] = []
    folders = {each.id: each for each in standing}
    for sourced in entries:
        entry = sourced.entry
        if wishes.only and entry.name not in wishes.only:
            continue
        draft: DriverDraft | ImportNote
        if entry.disabled is not None and not wishes.everything:
            draft = ImportNote(code="disabled", text=f"{entry.disabled}; --all takes it too")
        elif is_own(entry, own_addresses):
            draft = ImportNote(code="interlock_itself", text="this is Interlock itself")
        else:
            draft = draft_entry(entry, around, wishes)
        if isinstance(draft, ImportNote):
            skipped.append(_skipped(sourced, draft))
            continue
        shape = _comparison_key(draft)
        same = next((each for each in planned.values() if _comparison_key(each.draft) == shape), None)
        if same is not None:
            paths = tuple(dict.fromkeys([*same.paths, *sourced.paths]))
            origins = {"sources": (*same.sources, sourced.key), "titles": (*same.titles, sourced.title), "paths": paths}
            planned[same.draft.id] = msgspec.structs.replace(same, **origins)
            continue
        before = next((each for each in standing if sourced.key in each.sources and each.id not in planned), None)
        alike = False
        if before is not None:
            identifier = before.id
        else:
            identifier, number = draft.id, 2
            while (
                identifier in planned
                or exposed_segment(identifier) in taken
                or (identifier in folders and not _is_handwritten_for(folders[identifier], draft))
            ):
                identifier = f"{draft.id.removesuffix(_SUFFIX)}-{number}{_SUFFIX}"
                number += 1
            before = folders.get(identifier)
            alike = before is not None
        if identifier != draft.id:
            again = draft_entry(entry, around, wishes, identifier=identifier)
            if isinstance(again, ImportNote):
                skipped.append(_skipped(sourced, again))
                continue
            if (taken_by := taken.get(exposed_segment(draft.id))) is not None:
                text = (
                    f"{exposed_segment(draft.id)} is {taken_by}, so this server is named {exposed_segment(identifier)}"
                )
                again = msgspec.structs.replace(again, notes=(*again.notes, ImportNote(code="name_taken", text=text)))
            draft = again
        origin = {"sources": (sourced.key,), "titles": (sourced.title,), "paths": sourced.paths}
        planned[identifier] = Planned(draft=draft, standing=before, alike=alike, **origin)
    return ImportBatch(planned=tuple(planned.values()), skipped=tuple(skipped))


def _skipped(sourced: Sourced, why: ImportNote) -> Skipped:
    return Skipped(name=sourced.entry.name, source=sourced.title, code=why.code, text=why.text)


def _is_handwritten_for(folder: ExistingDriver, draft: DriverDraft) -> bool:
    """Return whether a person wrote this existing driver folder by hand, and wrote it for the same
    server as the draft.
    """
    return not folder.sources and all(folder.data.get(key) == draft.data[key] for key in ("server", "transport"))


def asks_for_hosts(planned: Planned) -> bool:
    """Return whether the user must be asked which hosts the server may reach. This is the case if the driver is new,
    its server runs on this machine, and no host is allowed yet.
    """
    data = planned.draft.data
    runs_here = SERVERS[data["server"]["kind"]].confinement != "elsewhere"
    return planned.standing is None and runs_here and not data["network"]["egress"]


def with_hosts(planned: Planned, hosts: Sequence[str]) -> Planned | ImportNote:
    """Return the plan with these allowed hosts, or a note that explains why they are invalid."""
    draft = msgspec.structs.replace(planned.draft, opened=tuple(hosts))
    problem = find_refusal(draft.written)
    return msgspec.structs.replace(planned, draft=draft) if problem is None else problem


def _comparison_key(draft: DriverDraft) -> object:
    """Return a value that is equal for two drafts of the same server. It consists of the server block, the transport
    and the secrets.
    """
    secrets = sorted((each.name, each.value or "", each.backend or "") for each in draft.secrets)
    return draft.data["server"], draft.data["transport"], secrets


_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def fingerprint_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` with each value replaced by a digest. Values that are already digests stay unchanged."""
    result: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            result[key] = fingerprint_values(value)
        else:
            result[key] = value if isinstance(value, str) and _DIGEST.fullmatch(value) else _digest(value)
    return result


def recall_values(base: Mapping[str, Any], *candidates: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with each digest replaced by the value from which it was made, if one of `candidates` has that
    value at the same place.

    A digest without a matching value stays, and is not equal to any value.
    """
    result: dict[str, Any] = {}
    for key, digest in base.items():
        here = [each[key] for each in candidates if key in each]
        if isinstance(digest, Mapping):
            result[key] = recall_values(digest, *(each for each in here if isinstance(each, Mapping)))
        else:
            values = (each for each in here if not isinstance(each, Mapping))
            result[key] = next((each for each in values if digest in (each, _digest(each))), digest)
    return result


def _digest(value: Any) -> str:
    return f"sha256:{hashlib.sha256(msgspec.json.encode(value, order='sorted')).hexdigest()}"


# The folder decides the id, the node the version, and the tools of the server decide implements.
NOT_MERGED: Final = frozenset({"id", "version", "implements"})
_ABSENT: Final = object()


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a three-way merge of a driver's frontmatter."""

    data: Mapping[str, Any]
    changed: tuple[str, ...] = ()  # pointers that took the source's value
    conflicts: tuple[str, ...] = ()  # pointers that both changed


def merge(base: Mapping[str, Any], mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Merged:
    """Merge what the last import wrote (`base`), what the file contains now (`mine`) and what the source says now
    (`theirs`).
    """
    changed: list[str] = []
    conflicts: list[str] = []

    def fields(pointer: str, base: Any, mine: Any, theirs: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key in dict.fromkeys([*mine, *theirs]):
            place = f"{pointer}/{pointer_step(str(key))}"
            if not pointer and key in NOT_MERGED:
                value = mine.get(key, theirs.get(key))
            else:
                value = field(place, base.get(key, _ABSENT), mine.get(key, _ABSENT), theirs.get(key, _ABSENT))
            if value is not _ABSENT:
                result[key] = value
        return result

    def field(place: str, base: Any, mine: Any, theirs: Any) -> Any:
        if theirs in (base, mine):
            return mine
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            return fields(place, base if isinstance(base, Mapping) else {}, mine, theirs)
        if mine == base:
            changed.append(place)
            return theirs
        conflicts.append(place)
        return mine

    data = fields("", base, mine, theirs)
    return Merged(data=data, changed=tuple(changed), conflicts=tuple(conflicts))


def with_old(theirs: Mapping[str, Any], base: Mapping[str, Any], pointers: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `theirs` in which the values at these JSON pointers are replaced by those of `base`."""
    result: dict[str, Any] = plain_copy(theirs)
    for pointer in pointers:
        _copy_value(pointer, base, result)
    return result


def _copy_value(pointer: str, source: Mapping[str, Any], target: Any) -> None:
    """Copy the value at a JSON pointer from `source` to `target`. If `source` has no value there, remove that of
    `target`.
    """
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    for step in steps:
        source, target = source.get(step, {}), target.setdefault(step, {})
    if last in source:
        target[last] = source[last]
    else:
        target.pop(last, None)


def next_version(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the version for a changed driver: a new major version if the driver's identity changed (AIP-identity) or
    cannot be compared, otherwise a new patch version. Return 1.0.0 if the previous version is invalid.
    """
    written = str(before.get("version", ""))
    match = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", written)
    if match is None:
        return "1.0.0"
    major, minor, patch = (int(each) for each in match.groups())
    texts = (frontmatter_text({**each, "version": written, "implements": [PENDING]}) for each in (before, after))
    old, other = (read_driver(text.encode(), "DRIVER.md").value for text in texts)
    moved = old is None or other is None or any(changes_of_identity(old, other))
    return f"{major + 1}.0.0" if moved else f"{major}.{minor}.{patch + 1}"


def with_fields(text: str, data: Mapping[str, Any], changed: Sequence[str]) -> str:
    """Return the text of a driver file with changed frontmatter.

    `data` is the new frontmatter, and `changed` holds the JSON pointers of the values that differ. If the YAML editor
    cannot produce exactly `data`, the frontmatter is written again without its comments.
    """
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    end = next((index for index, line in enumerate(lines) if index and line.rstrip() == FENCE), len(lines))
    head, body = "".join(lines[1:end]), "".join(lines[end + 1 :])
    edited = _find_edited(head, data, changed)
    if edited is not None:
        whole = f"{FENCE}\n{edited}{FENCE}\n{body}"
        front = read_frontmatter(whole.encode(), "").value
        if front is not None and front.data == data:
            return whole
    return frontmatter_text(data, body)


def with_secrets(text: str, added: Sequence[SecretFinding]) -> str:
    """Return the text of a secret inventory with these entries added. Existing entries stay unchanged.

    If `text` is not a readable inventory, the result contains only the added entries.
    """
    front = read_frontmatter(text.encode(), "").value
    entries = front.data.get("secrets") if front is not None else None
    if front is None or not isinstance(entries, list):
        return secrets_text(added)
    data = {**front.data, "secrets": [*entries, *secret_entries(added)]}
    return with_fields(text, data, ["/secrets"])


def _find_edited(head: str, data: Mapping[str, Any], changed: Sequence[str]) -> str | None:
    """Return the YAML text `head`, in which the values at the JSON pointers `changed` are replaced by those in `data`.
    Return None if the YAML editor fails.
    """
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 4096
    try:
        document = yaml.load(head)
        for pointer in changed:
            _copy_value(pointer, data, document)
        out = io.StringIO()
        yaml.dump(document, out)
    except Exception:  # whatever the reason, the caller then rewrites the frontmatter
        return None
    return out.getvalue()
