"""The importer: turns entries in other clients' files into driver folders of the workspace, and stores their secrets.

Theory of operation. `collect_sources` and `plan` read the sources and the workspace and return a plan (`ImportBatch`).
`carry_out` stores the secrets and writes the folders, or only reports what it would do. Until then no server is started
or dialled, and the source files are only read. A new driver is written as a draft, because its tools are known only
after its server was asked. A driver that was imported before is merged with the changes in its source (AIP-import-13).

`connect` turns drafts into drivers (AIP-import-8, -9). It starts the servers one after the other, each once and in its
sandbox, to list their tools. Before each start, it reports what would be run or dialled, and the user may decline. The
user is then asked once about the tools of all servers that started. A server that cannot be reached stays a draft.

`adopt` moves the plaintext secrets in the files of an existing driver to the store (`interlock secrets adopt`).
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

from interlock.config.plan import Plan
from interlock.drivers.add import NotAdded, ServerAdder, TriedServer
from interlock.drivers.protocol.authoring import ToolProposal
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.drivers.protocol.files.frontmatter import frontmatter_text, read_frontmatter
from interlock.drivers.protocol.files.inventory import SECRETS_FILE, default_slug
from interlock.drivers.protocol.kinds import SERVERS
from interlock.drivers.workspace.folder import (
    RECORD_FILE,
    FolderUnreadable,
    ImportedFolder,
    ImportRecord,
    inventory_slugs,
    read_file,
    read_imported_folder,
    read_imported_folders,
    record_text,
    write_files,
    write_whole,
)
from interlock.drivers.workspace.scan import DRAFT_FILE, DRIVERS, scan_workspace
from interlock.interop.protocol.drafts import (
    ImportBatch,
    ImportChoices,
    Merged,
    Planned,
    Skipped,
    Sourced,
    batch,
    fingerprint_values,
    merge,
    next_version,
    recall_values,
    secrets_text,
    with_fields,
    with_old,
    with_secrets,
)
from interlock.interop.protocol.model import ImportNote
from interlock.interop.protocol.translation import Surroundings, extract_secrets
from interlock.interop.source_files import ClientMachine, SourceFile, env_file_path, env_files
from interlock.wire.refusal import Refused

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
    """Result of importing one driver: whether it is new, updated or unchanged, and which files were written."""

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
    own_addresses: Collection[str] = ()
    taken: Mapping[str, str] = MappingProxyType({})  # segments that the configuration uses, and where


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
            if base is not None:
                # A driver is started in another folder than the client would be.
                command = tuple(_absolute(word, Path(base)) for word in entry.command)
                entry = msgspec.structs.replace(entry, command=command)
            paths = [file.path, *([env_file_path(entry.env_file, entry, file, machine)] if entry.env_file else [])]
            key = f"{file.client}{scope}/{entry.name}"
            sources.append(Sourced(key=key, title=file.title, entry=entry, paths=tuple(map(str, paths))))
    return sources


def _absolute(word: str, base: Path) -> str:
    """Return the absolute path of a word in a command that names a file in the folder `base`, or the word unchanged."""
    looks = not word.startswith(("-", "/", "~", "@", "$")) and ("/" in word or "." in word) and "://" not in word
    try:
        return str(base / word) if looks and (base / word).exists() else word
    except (OSError, ValueError):  # no path at all
        return word


def plan(entries: Sequence[Sourced], files: Sequence[SourceFile], request: ImportRequest) -> ImportBatch:
    """Return what an import of these entries would do. This reads the workspace and changes nothing."""
    around = Surroundings(
        home=str(request.machine.home),
        workspace=str(request.machine.project),
        env=request.machine.env,
        env_files=env_files(files, request.machine),
        folder=next((str(file.bundle.target) for file in files if file.bundle is not None), None),
    )
    folders = list(read_imported_folders(request.workspace).values())
    return batch(entries, folders, around, request.wishes, request.own_addresses, request.taken)


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
        merged = Merged(data={})
        if planned.alike:
            pass
        elif folder is None or folder.file is None:
            status, files = "new", _new_files(planned, path)
        elif folder.record is not None:
            merged, files = _updated_files(planned, folder, folder.record)
            status = "updated" if files else "unchanged"
        if keep is not None:
            write_files(request.workspace, files)
        server = draft.data["server"]
        kind = SERVERS[server["kind"]]
        drivers.append(
            DriverReport(
                id=draft.id,
                name=draft.source,
                sources=planned.titles,
                status=status,
                draft=folder is None or folder.file != DRIVER_FILE,
                command=(*kind.launcher, server[kind.keys[0]], *server.get("args", ())),
                files=tuple(str(file.relative_to(request.workspace)) for file, _ in files),
                changed=merged.changed,
                conflicts=merged.conflicts,
                secrets=tuple(secrets),
                left_in=planned.paths if any(each.state in ("kept", "same", "differs") for each in secrets) else (),
                notes=draft.notes,
            )
        )
    return ImportReport(drivers=tuple(drivers), skipped=planned_batch.skipped)


def _new_files(planned: Planned, path: Path) -> list[tuple[Path, str]]:
    """Return the files of a new draft."""
    draft = planned.draft
    record = ImportRecord(sources=planned.sources, base=fingerprint_values(draft.data), hints=draft.hints)
    titles = ", ".join(dict.fromkeys(planned.titles))
    advice = f"Its tools are not known yet: `interlock add {draft.id}` asks the server for them."
    body = f"\n# {draft.data['name']}\n\nImported from {titles}. {advice}\n"
    secrets = [(path / SECRETS_FILE, secrets_text(draft.secrets))] if draft.secrets else []
    driver_file = (path / DRAFT_FILE, frontmatter_text(draft.written, body))
    return [*secrets, (path / RECORD_FILE, record_text(record)), driver_file]


def _updated_files(
    planned: Planned, folder: ImportedFolder, record: ImportRecord
) -> tuple[Merged, list[tuple[Path, str]]]:
    """Merge a driver with the changes in its source. Return the result, and the files that change."""
    draft, files = planned.draft, []
    before = recall_values(record.base, draft.data, folder.data)
    merged = merge(before, folder.data, draft.data)
    if not merged.changed and record.hints == draft.hints:
        return merged, []
    added = [each for each in draft.secrets if each.slug not in folder.slugs]
    if added:
        text = with_secrets(folder.secrets_text, added) if folder.secrets_text else secrets_text(added)
        files.append((folder.path / SECRETS_FILE, text))
    sources = tuple(dict.fromkeys([*record.sources, *planned.sources]))
    # The old values of conflicts stay in the record, so that the next import reports them again.
    base = with_old(draft.data, before, merged.conflicts)
    record = ImportRecord(sources=sources, base=fingerprint_values(base), hints=draft.hints)
    files.append((folder.path / RECORD_FILE, record_text(record)))
    if merged.changed:
        data = {**merged.data, "version": next_version(folder.data, merged.data)}
        text = with_fields(folder.text, data, [*merged.changed, "/version"])
        files.append((folder.path / (folder.file or DRAFT_FILE), text))
    return merged, files


Proposals = tuple[ToolProposal, ...]
Agreed = Callable[[DriverReport], bool]
Decide = Callable[[Mapping[str, Proposals]], Mapping[str, Proposals]]  # by the ids of drivers


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of asking the server of a drafted driver for its tools."""

    id: str
    state: Literal["ready", "declined", "failed"]
    key: str | None = None
    reason: str | None = None
    files: tuple[str, ...] = ()
    reviews: tuple[str, ...] = ()  # what a person should look at, such as tools that are left out


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
                results[id] = ProbeResult(id=id, state="ready", key=added.key, files=added.files, reviews=added.reviews)
            except NotAdded as error:
                results[id] = ProbeResult(id=id, state="failed", reason=error.message)
    return list(results.values())


class AdoptedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was moved from a driver's file to the secret store, described without its value."""

    place: str
    slug: str


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """Result of moving a driver's secrets to the store. `left` lists the places of secrets that the user has to move by
    hand.
    """

    driver: str
    folder: str
    adopted: tuple[AdoptedSecret, ...]
    left: tuple[str, ...]


def adopt(config: Plan, wanted: str, keep: Keep) -> Adoption:
    """Move the plaintext secrets in a driver's files to the store. Blocks on file access.

    Placeholders replace the credentials in the files. The store is written first, then the inventory, then the driver
    file. So an interrupted adoption can be repeated, and no secret is lost. If the store has a different value under
    the same name, the adoption ends before any file is changed. Raise Refused if the adoption is impossible.
    """
    folder = _find_folder(config, wanted)
    text = _read_text(folder / DRIVER_FILE)
    front = read_frontmatter(text.encode(), DRIVER_FILE).value
    if front is None or not isinstance(front.data.get("id"), str):
        raise _not_adopted(f"{folder / DRIVER_FILE} cannot be read")
    inventory_path = folder / SECRETS_FILE
    inventory = _read_text(inventory_path) if inventory_path.exists() else ""
    # The names that already identify a secret in the inventory.
    slugs = inventory_slugs(inventory)
    taken = [default_slug(slug.rpartition("/")[2]).upper().replace("-", "_") for slug in slugs]
    extracted = extract_secrets(front.data, front.data["id"], taken)
    for each in extracted.secrets:
        if keep(each.slug, each.value or "") == "differs":
            hint = f"interlock secrets remove {each.slug}, or write the placeholder into the file yourself"
            raise _not_adopted(f"another value is kept as {each.slug} already", hint)
    if extracted.secrets:
        moved = extracted.secrets
        described = with_secrets(inventory, moved) if inventory else secrets_text(moved)
        changed_text = with_fields(text, extracted.data, extracted.changed)
        try:
            write_whole(inventory_path, described.encode(), None if inventory_path.exists() else 0o644)
            write_whole(folder / DRIVER_FILE, changed_text.encode())
        except OSError as error:
            raise _not_adopted(f"the file cannot be written ({error.strerror})", None) from None
    adopted = tuple(AdoptedSecret(place=f"server.{each.place}", slug=each.slug) for each in extracted.secrets)
    return Adoption(driver=front.data["id"], folder=str(folder), adopted=adopted, left=extracted.left)


def _find_folder(config: Plan, wanted: str) -> Path:
    """Return the folder of a driver, which is named by its folder or its id. Raise Refused if there is none."""
    folders = [each.path for each in scan_workspace(config).folders]
    for path in folders:
        if path.name == wanted:
            return path
    for path in folders:
        if read_imported_folder(path).data.get("id") == wanted:
            return path
    raise _not_adopted(f"there is no driver {wanted}", "interlock drivers list shows them")


def _read_text(path: Path) -> str:
    try:
        return read_file(path)[0].decode("utf-8")
    except (FolderUnreadable, UnicodeDecodeError) as fault:
        raise _not_adopted(f"{path} cannot be read: {fault}") from None


def _not_adopted(message: str, hint: str | None = "interlock check shows what is wrong with it") -> Refused:
    return Refused("not_adopted", message, hint=hint)
