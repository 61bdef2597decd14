"""The importer: turns entries in other clients' files into driver folders of the workspace, and stores their secrets.

Theory of operation. `collect_sources` and `plan` read the sources and the workspace and return a plan (`ImportBatch`).
`carry_out` stores the secrets and writes the folders, or only reports what it would do. Until then no server is started
or dialled, and the source files are only read. A new driver is written as a draft, because its tools are known only
after its server was asked. A driver that was imported before is merged with the changes in its source (AIP-import-13).

`connect` turns drafts into drivers (AIP-import-8, -9). It starts the servers one after the other, each once and in its
sandbox, to list their tools. Before each start, it reports what would be run or dialled, and the user may decline. The
user is then asked once about the tools of all servers that started. A server that cannot be reached stays a draft.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from interlock.drivers.add import NotAdded, ServerAdder, TriedServer
from interlock.drivers.protocol.authoring import ToolProposal
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.drivers.protocol.files.frontmatter import frontmatter_text
from interlock.drivers.protocol.files.inventory import SECRETS_FILE
from interlock.drivers.protocol.kinds import SERVERS
from interlock.drivers.workspace.folder import (
    RECORD_FILE,
    ImportedFolder,
    ImportRecord,
    read_imported_folders,
    record_text,
    write_files,
)
from interlock.drivers.workspace.scan import DRAFT_FILE, DRIVERS
from interlock.interop.protocol import driver_edits
from interlock.interop.protocol.drafts import ImportBatch, ImportChoices, Planned, Skipped, Sourced, batch, secrets_text
from interlock.interop.protocol.model import ImportNote, ServerEntry
from interlock.interop.protocol.translation import Surroundings
from interlock.interop.source_files import ClientMachine, SourceFile, env_file_path, env_files

Kept = Literal["new", "same", "differs"]  # how a secret was stored; "differs": another value is stored and stays
Keep = Callable[[str, str], Kept]
Status = Literal["new", "updated", "unchanged"]
SecretState = Literal["kept", "same", "differs", "environment", "unset"]


class SecretReport(msgspec.Struct, frozen=True, kw_only=True):
    """A secret of an imported driver, described without its value."""

    place: str
    slug: str
    state: SecretState


class DriverReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of importing one driver, which was new, updated or unchanged."""

    id: str
    name: str
    sources: tuple[str, ...]
    status: Status
    draft: bool
    command: tuple[str, ...]  # what starting it would run, or the address it would dial; without secrets
    files: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    secrets: tuple[SecretReport, ...] = ()
    left_in: tuple[str, ...] = ()  # files that hold the values of these secrets, and keep them
    notes: tuple[ImportNote, ...] = ()


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an import."""

    drivers: tuple[DriverReport, ...] = ()
    skipped: tuple[Skipped, ...] = ()


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an import: the workspace and the choices of the user."""

    machine: ClientMachine
    workspace: Path
    wishes: ImportChoices = ImportChoices()
    everything: bool = False
    only: frozenset[str] = frozenset()
    own_addresses: Collection[str] = ()


def collect_sources(files: Sequence[SourceFile], machine: ClientMachine) -> list[Sourced]:
    """Return the entries of all files. Relative paths in their commands are made absolute."""
    project = machine.project
    sources = []
    for file in files:
        for entry in file.reading.entries:
            scope = "" if file.scope == "global" else f"/{file.scope}"
            if entry.project is not None:
                scope = f"/{hashlib.sha256(entry.project.encode()).hexdigest()[:8]}"
            base = entry.cwd or entry.project or (str(project) if file.scope == "project" else None)
            entry = entry if base is None else _with_paths(entry, Path(base))
            paths = [file.path, *([env_file_path(entry.env_file, entry, file, machine)] if entry.env_file else [])]
            sources.append(
                Sourced(
                    key=f"{file.client}{scope}/{entry.name}",
                    title=file.title,
                    entry=entry,
                    paths=tuple(str(each) for each in paths),
                )
            )
    return sources


def _with_paths(entry: ServerEntry, base: Path) -> ServerEntry:
    """Return the entry with absolute paths for files in the client's folder, because a driver is started in another
    folder.
    """

    def absolute(word: str) -> str:
        looks = not word.startswith(("-", "/", "~", "@", "$")) and ("/" in word or "." in word) and "://" not in word
        try:
            return str(base / word) if looks and (base / word).exists() else word
        except (OSError, ValueError):  # no path at all
            return word

    return msgspec.structs.replace(entry, command=tuple(absolute(word) for word in entry.command))


def plan(entries: Sequence[Sourced], files: Sequence[SourceFile], request: ImportRequest) -> ImportBatch:
    """Return what an import of these entries would do. This reads the workspace and changes nothing."""
    around = Surroundings(
        home=str(request.machine.home),
        workspace=str(request.machine.project),
        env=request.machine.env,
        env_files=env_files(files, request.machine),
        folder=next((str(file.bundle.target) for file in files if file.bundle is not None), None),
    )
    folders = read_imported_folders(request.workspace)
    return batch(
        entries,
        list(folders.values()),
        around,
        request.wishes,
        everything=request.everything,
        only=request.only,
        own_addresses=request.own_addresses,
    )


def carry_out(planned_batch: ImportBatch, request: ImportRequest, keep: Keep | None) -> ImportReport:
    """Store the secrets and write the driver folders of a planned import.

    `keep` stores a secret unless a different value is stored already. If `keep` is None, nothing is stored or written,
    and the report describes what an import would do.
    """
    folders = read_imported_folders(request.workspace)
    drivers = []
    for planned in planned_batch.planned:
        draft, folder = planned.draft, folders.get(planned.draft.id)
        path = request.workspace / DRIVERS / draft.id
        secrets = []
        for finding in draft.secrets if not planned.alike else ():
            state: SecretState = "unset"
            if finding.backend is not None:
                state = "environment"
            elif finding.value is not None:
                outcome = "new" if keep is None else keep(finding.slug, finding.value)
                state = "kept" if outcome == "new" else outcome
            secrets.append(SecretReport(place=finding.place, slug=finding.slug, state=state))
        status: Status = "unchanged"
        files: list[tuple[Path, str]] = []
        merged = driver_edits.Merged(data={})
        if planned.alike:
            pass
        elif folder is None or folder.file is None:
            status, files = "new", _new_files(planned, path)
        elif folder.record is not None:
            merged, files = _updated_files(planned, folder, folder.record)
            status = "updated" if files else "unchanged"
        if keep is not None:
            write_files(request.workspace, files)
        report = DriverReport(
            id=draft.id,
            name=draft.source,
            sources=planned.titles,
            status=status,
            draft=folder is None or folder.file != DRIVER_FILE,
            command=start_command(draft.data["server"]),
            files=tuple(str(file.relative_to(request.workspace)) for file, _ in files),
            changed=merged.changed,
            conflicts=merged.conflicts,
            secrets=tuple(secrets),
            left_in=planned.paths if any(each.state in ("kept", "same", "differs") for each in secrets) else (),
            notes=draft.notes,
        )
        drivers.append(report)
    return ImportReport(drivers=tuple(drivers), skipped=planned_batch.skipped)


def _new_files(planned: Planned, path: Path) -> list[tuple[Path, str]]:
    """Return the files of a new draft."""
    draft = planned.draft
    record = ImportRecord(sources=planned.sources, base=driver_edits.fingerprint_values(draft.data), hints=draft.hints)
    titles = ", ".join(dict.fromkeys(planned.titles))
    body = (
        f"\n# {draft.data['name']}\n\nImported from {titles}. Its tools are not known yet: "
        f"`interlock add {draft.id}` asks the server for them.\n"
    )
    secrets = [(path / SECRETS_FILE, secrets_text(draft.secrets))] if draft.secrets else []
    return [
        *secrets,
        (path / RECORD_FILE, record_text(record)),
        (path / DRAFT_FILE, frontmatter_text(draft.written, body)),
    ]


def _updated_files(
    planned: Planned, folder: ImportedFolder, record: ImportRecord
) -> tuple[driver_edits.Merged, list[tuple[Path, str]]]:
    """Merge a driver with the changes in its source. Return the result, and the files that change."""
    draft, files = planned.draft, []
    before = driver_edits.recall_values(record.base, draft.data, folder.data)
    merged = driver_edits.merge(before, folder.data, draft.data)
    if not merged.changed and record.hints == draft.hints:
        return merged, []
    added = [each for each in draft.secrets if each.slug not in folder.slugs]
    if added:
        text = driver_edits.with_secrets(folder.secrets_text, added) if folder.secrets_text else secrets_text(added)
        files.append((folder.path / SECRETS_FILE, text))
    sources = tuple(dict.fromkeys([*record.sources, *planned.sources]))
    base = driver_edits.with_old(
        draft.data, before, merged.conflicts
    )  # so that the next import reports a conflict again
    record = ImportRecord(sources=sources, base=driver_edits.fingerprint_values(base), hints=draft.hints)
    files.append((folder.path / RECORD_FILE, record_text(record)))
    if merged.changed:
        data = {**merged.data, "version": driver_edits.next_version(folder.data, merged.data)}
        text = driver_edits.with_fields(folder.text, data, [*merged.changed, "/version"])
        files.append((folder.path / (folder.file or DRAFT_FILE), text))
    return merged, files


def start_command(server: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command that would be run, or the address that would be dialled. Secrets are shown as placeholders."""
    kind = SERVERS[server["kind"]]
    return (*kind.launcher, server[kind.keys[0]], *server.get("args", ()))


Proposals = tuple[ToolProposal, ...]
Agreed = Callable[[DriverReport], bool]
Decide = Callable[[Mapping[str, Proposals]], Mapping[str, Proposals]]  # by the ids of drivers


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of asking the server of a draft for its tools."""

    id: str
    state: Literal["ready", "declined", "failed"]
    key: str | None = None
    reason: str | None = None
    files: tuple[str, ...] = ()


async def connect(
    drafts: Sequence[DriverReport], adder: ServerAdder, agreed: Agreed, decide: Decide
) -> list[ProbeResult]:
    """Start the server of each draft that `agreed` allows, and write drivers for those that started.

    `decide` is called once with the proposed classes of all tools. If it raises an error, the import ends and nothing
    is written.
    """
    results = {draft.id: ProbeResult(id=draft.id, state="declined") for draft in drafts}
    tried: dict[str, TriedServer] = {}
    async with adder:
        for draft in drafts:
            if agreed(draft):
                try:
                    request = adder.read_draft(adder.plan.workspace / DRIVERS / draft.id)
                    tried[draft.id] = await adder.try_out(request)
                except NotAdded as error:
                    results[draft.id] = ProbeResult(id=draft.id, state="failed", reason=error.message)
        decided = decide({id: server.proposals for id, server in tried.items()}) if tried else {}
        for id, server in tried.items():
            try:
                added = await adder.write(server, decided[id])
                results[id] = ProbeResult(id=id, state="ready", key=added.key, files=added.files)
            except NotAdded as error:
                results[id] = ProbeResult(id=id, state="failed", reason=error.message)
    return list(results.values())
