"""The initial contents of a registry, from `initial.json`: table 2 of the draft, without schemas, which it has not."""

from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from interlock.names.protocol.model import Entry, Revision, Status
from interlock.names.protocol.records import Controller, Step

_FILE: Final = Path(__file__).with_name("initial.json")
DRAFT: Final = "draft-morrison-mcp-tool-surface-names-registry-00"


class _Initial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    controller: str
    names: tuple[str, ...]
    authentication_scope: str
    vendor_prefix: str
    status: Status
    specification_reference: str
    first_registered: str


@cache
def initial_steps() -> tuple[Step, ...]:
    """The same on every installation (REG-6-3)."""
    read = msgspec.json.decode(_FILE.read_bytes(), type=_Initial)
    revision = Revision(
        revision=1,
        specification_reference=read.specification_reference,
        authentication_scope=read.authentication_scope,
        registered=read.first_registered,
    )
    return tuple(
        Step(
            at=f"{read.first_registered}T00:00:00Z",
            by=DRAFT,
            what="initial",
            subject=name,
            controller=Controller(name=read.controller) if name == read.names[0] else None,
            entry=Entry(
                surface_name=name,
                specification_reference=read.specification_reference,  # REG-6-1
                authentication_scope=read.authentication_scope,
                vendor_prefix=read.vendor_prefix,
                change_controller=read.controller,
                status=read.status,
                first_registered=read.first_registered,
                revisions=(revision,),
            ),
        )
        for name in read.names  # REG-6-1
    )
