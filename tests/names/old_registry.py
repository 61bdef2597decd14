"""A registry that is older than the node that reads it: entries whose reviews and confirmations are late."""

import asyncio
import datetime
import json
from pathlib import Path
from typing import Any

import msgspec

from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.names.protocol.criteria import schema_digest
from interlock.names.protocol.entry import EntryStatus, RegistryEntry, Revision
from interlock.names.protocol.registry import RegistryStep
from interlock.names.state import RegistryChange, RegistryState
from interlock.store.sqlite.store import SqliteNamesLog

ARGUMENT: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
RETURN: dict[str, Any] = {"type": "object", "properties": {"did": {"type": "string"}}, "required": ["did"]}
TODAY = datetime.datetime.now(datetime.UTC).date()  # one day for what is written and what is expected


def before(days: int) -> str:
    return (TODAY - datetime.timedelta(days=days)).isoformat()


def entry(name: str, scope: str = "member-recognition", **members: Any) -> RegistryEntry:
    """`argument`, `returned`: its schemas."""
    first = members.pop("first_registered", before(400))
    schemas = members.pop("argument", ARGUMENT), members.pop("returned", RETURN)
    argument, returned = (json.dumps(schema).encode() for schema in schemas)
    revision = Revision(
        revision=1,
        specification_reference="draft-acme-search-03",
        authentication_scope=scope,
        registered=first,
        argument_schema=msgspec.Raw(argument),
        return_schema=msgspec.Raw(returned),
        argument_digest=schema_digest(msgspec.Raw(argument)),
        return_digest=schema_digest(msgspec.Raw(returned)),
        schema_source="registrant",
    )
    given: dict[str, Any] = {"status": EntryStatus.ACTIVE, **members}
    return RegistryEntry(
        surface_name=name,
        specification_reference="draft-acme-search-03",
        authentication_scope=scope,
        vendor_prefix="acme_",
        change_controller="Acme",
        first_registered=first,
        revisions=(revision,),
        **given,
    )


ENTRIES = (
    entry("acme_draft", status=EntryStatus.PROVISIONAL, review_due=before(35)),
    entry("acme_fire", "public"),
    entry("acme_read", "public", public_confirmed_on=before(10)),
    entry("acme_search"),
)


async def _register(data: Path, entries: tuple[RegistryEntry, ...]) -> None:
    state = RegistryState(SqliteNamesLog(data), Recorder(None), Clock())  # type: ignore[arg-type]
    await state.open()
    steps = (
        RegistryStep(at=state.now, by="expert:eve", what="accept", subject=one.surface_name, entry=one)
        for one in entries
    )
    await state.change(lambda registry: RegistryChange(tuple(steps), None))
    await state.close()


def register(data: Path, *entries: RegistryEntry) -> None:
    """Into the data folder, as another process does."""
    asyncio.run(_register(data, entries or ENTRIES))
