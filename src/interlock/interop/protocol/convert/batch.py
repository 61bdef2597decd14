"""Several entries at once: which are one server, which folder each has, and what is skipped (AIP-import-9, -13)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from interlock.drivers.protocol.kinds import SERVERS
from interlock.interop.protocol.convert.draft import Wishes, draft_entry, refusal
from interlock.interop.protocol.convert.entry import Surroundings
from interlock.interop.protocol.model import DriverDraft, Entry, Note
from interlock.interop.protocol.read.launchers import is_own

_SUFFIX = "-mcp"


class Sourced(msgspec.Struct, frozen=True, kw_only=True):
    """An entry and where it stands: `key` is the same for the same entry at each import."""

    key: str
    told: str  # "Cursor", as the report calls its source
    entry: Entry
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
    note: Note


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    planned: tuple[Planned, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def batch(
    entries: Sequence[Sourced],
    standing: Sequence[ExistingDriver],
    around: Surroundings,
    wishes: Wishes,
    *,
    everything: bool = False,
    only: Collection[str] = (),
    own_addresses: Collection[str] = (),
) -> Batch:
    planned: dict[str, Planned] = {}  # by id
    skipped: list[Skipped] = []
    folders = {each.id: each for each in standing}
    for sourced in entries:
        entry = sourced.entry
        if only and entry.name not in only:
            continue
        draft = _judge(sourced, around, wishes, everything=everything, own_addresses=own_addresses)
        if isinstance(draft, Note):
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
            if isinstance(again, Note):
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
    return Batch(planned=tuple(planned.values()), skipped=tuple(skipped))


def asks_for_hosts(planned: Planned) -> bool:
    """Return whether this is a new program without a setting for the hosts that it may reach."""
    data = planned.draft.data
    return (
        planned.standing is None
        and SERVERS[data["server"]["kind"]].confinement != "elsewhere"
        and not data["network"]["egress"]
    )


def with_hosts(planned: Planned, hosts: Sequence[str]) -> Planned | Note:
    """Return the plan with these allowed hosts, or a Note that says why they are invalid."""
    draft = msgspec.structs.replace(planned.draft, opened=tuple(hosts))
    problem = refusal(draft.written)
    return msgspec.structs.replace(planned, draft=draft) if problem is None else problem


def _judge(
    sourced: Sourced, around: Surroundings, wishes: Wishes, *, everything: bool, own_addresses: Collection[str]
) -> DriverDraft | Note:
    entry = sourced.entry
    if entry.disabled is not None and not everything:
        return Note(code="disabled", text=f"{entry.disabled}; --all takes it too")
    if is_own(entry, own_addresses):
        return Note(code="interlock_itself", text="this is Interlock itself")
    return draft_entry(entry, around, wishes)


def _shape(draft: DriverDraft) -> object:
    """Return a value that is equal for entries of the same server: what is started or dialled, and its secrets."""
    secrets = sorted((each.name, each.value or "", each.backend or "") for each in draft.secrets)
    return draft.data["server"], draft.data["transport"], secrets


def _alike(standing: ExistingDriver, draft: DriverDraft) -> bool:
    return not standing.sources and all(standing.data.get(key) == draft.data[key] for key in ("server", "transport"))
