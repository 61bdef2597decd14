"""What other clients' files look like, and entries made of them."""

import json
from typing import Any

from interlock.interop.protocol.client_files import read_client_file
from interlock.interop.protocol.clients import BY_NAME
from interlock.interop.protocol.drafts import ImportChoices, draft_entry
from interlock.interop.protocol.model import DriverDraft, FileReading, ImportNote, ServerEntry
from interlock.interop.protocol.translation import Surroundings

HOME = "/srv/ada"
WORKSPACE = "/srv/ada/project"


def wrap_servers(**changed: Any) -> Surroundings:
    return Surroundings(**{"home": HOME, "workspace": WORKSPACE, **changed})


def read(client: str, content: str | dict[str, Any]) -> FileReading:
    text = content if isinstance(content, str) else json.dumps(content)
    return read_client_file(text.encode(), BY_NAME[client])


def entry(client: str, raw: dict[str, Any], **file: Any) -> ServerEntry:
    """One server of a client whose file is JSON."""
    root = BY_NAME[client].root[0]
    (found,) = read(client, {root: {"it": raw}, **file}).entries
    return found


def drafted_from(
    client: str, raw: dict[str, Any], *, wishes: ImportChoices | None = None, **surroundings: Any
) -> DriverDraft:
    made = draft_entry(entry(client, raw), wrap_servers(**surroundings), wishes or ImportChoices())
    assert isinstance(made, DriverDraft), made
    return made


def refused_from(client: str, raw: dict[str, Any], **surroundings: Any) -> ImportNote:
    made = draft_entry(entry(client, raw), wrap_servers(**surroundings), ImportChoices())
    assert isinstance(made, ImportNote), made
    return made


def written_files(draft: DriverDraft) -> dict[str, str | None]:
    return {each.slug: each.value for each in draft.secrets}
