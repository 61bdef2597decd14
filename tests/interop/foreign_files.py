"""What other clients' files look like, and entries made of them."""

import json
from typing import Any

from interlock.interop.protocol.clients import BY_NAME
from interlock.interop.protocol.convert.draft import Wishes, draft_entry
from interlock.interop.protocol.convert.entry import Surroundings
from interlock.interop.protocol.model import DriverDraft, Entry, FileReading, Note
from interlock.interop.protocol.read.client_files import read_client_file

HOME = "/srv/ada"
WORKSPACE = "/srv/ada/project"


def around(**changed: Any) -> Surroundings:
    return Surroundings(**{"home": HOME, "workspace": WORKSPACE, **changed})


def read(client: str, content: str | dict[str, Any]) -> FileReading:
    text = content if isinstance(content, str) else json.dumps(content)
    return read_client_file(text.encode(), BY_NAME[client])


def entry(client: str, raw: dict[str, Any], **file: Any) -> Entry:
    """One server of a client whose file is JSON."""
    root = BY_NAME[client].root[0]
    (found,) = read(client, {root: {"it": raw}, **file}).entries
    return found


def drafted_from(client: str, raw: dict[str, Any], *, wishes: Wishes | None = None, **surroundings: Any) -> DriverDraft:
    made = draft_entry(entry(client, raw), around(**surroundings), wishes or Wishes())
    assert isinstance(made, DriverDraft), made
    return made


def refused_from(client: str, raw: dict[str, Any], **surroundings: Any) -> Note:
    made = draft_entry(entry(client, raw), around(**surroundings), Wishes())
    assert isinstance(made, Note), made
    return made


def kept(draft: DriverDraft) -> dict[str, str | None]:
    return {each.slug: each.value for each in draft.secrets}
