"""Models of a server in another program's file (`ServerEntry`) and of the driver made from it (`DriverDraft`).

Names of places and notes contain keys but never values, because any value in such a file may be a secret.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

Transport = Literal["stdio", "http", "sse"]
Style = Literal[
    "common", "gemini", "opencode", "continue", "registry", "bundle", "docker", "driver"
]  # how placeholders are written

ENTRIES_MAX: Final = 1000  # servers of one file


def without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value other than an empty one, such as None, "" or an empty list."""
    return {key: value for key, value in fields.items() if value}


class ImportNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note for the user about one server: what was left out, and why."""

    code: str
    text: str


class PersonInput(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the user must enter, such as VS Code's inputs, a registry's variables or an MCPB's user_config."""

    description: str = ""
    secret: bool = True
    default: str | None = None


class ServerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A server as its source describes it. Placeholders are kept as they are written in the source."""

    name: str
    style: Style = "common"
    title: str | None = None
    description: str | None = None
    version: str | None = None
    transport: Transport = "stdio"
    command: tuple[str, ...] = ()  # program and arguments
    server: Mapping[str, Any] | None = None  # a block of AIP-32 where the source says what it is, instead of a command
    env: Mapping[str, str] = {}
    env_passed: tuple[str, ...] = ()  # names taken from the environment as they are
    env_unset: tuple[str, ...] = ()  # names whose values the source keeps elsewhere
    env_file: str | None = None
    project: str | None = None  # the folder it belongs to, where the file itself says so
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = {}
    auth: Mapping[str, Any] | None = None  # server.auth, without its secret
    client_secret: str | None = None
    inputs: Mapping[str, PersonInput] = {}
    secrets: frozenset[str] = frozenset()  # names in env or headers that the source itself declares secret
    disabled: str | None = None  # why it is skipped unless all are wanted
    connect_timeout_ms: int | None = None
    call_timeout_ms: int | None = None
    egress: tuple[str, ...] | None = None
    only_tools: tuple[str, ...] | None = None
    without_tools: tuple[str, ...] = ()
    asks: bool = False  # every call is to be asked about
    asks_tools: tuple[str, ...] = ()
    install: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[ImportNote, ...] = ()
    refused: ImportNote | None = None  # why it cannot be imported at all

    def refuse(self, code: str, text: str) -> "ServerEntry":
        """Return this entry marked as one that cannot be imported, with the reason."""
        return msgspec.structs.replace(self, refused=ImportNote(code=code, text=text))


class FileReading(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of a file, and notes about the file as a whole."""

    entries: tuple[ServerEntry, ...] = ()
    notes: tuple[ImportNote, ...] = ()


class SecretFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A secret of a driver: where it was found, its new name, and its value if the source contains it."""

    place: str  # env.GITHUB_TOKEN, headers.Authorization, args --api-key, url ?key
    name: str  # as ${secrets.NAME}
    slug: str
    description: str
    value: str | None = None
    backend: str | None = None  # env://VAR

    def __repr__(self) -> str:
        return f"Finding({self.place} -> {self.slug})"


class DriverDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A driver that an import will write. `data` is its frontmatter without tool contracts, and contains no secrets."""

    id: str
    source: str  # the name the server has in its file
    data: Mapping[str, Any]
    opened: tuple[str, ...] | None = None  # hosts that the person allowed besides what the source says
    hints: Mapping[str, Any] = {}  # only_tools, without_tools, asks, asks_tools: for when its tools are known
    secrets: tuple[SecretFinding, ...] = ()
    notes: tuple[ImportNote, ...] = ()
    withheld: tuple[str, ...] = ()  # absolute paths that were not opened to it

    @property
    def written(self) -> Mapping[str, Any]:
        """Return the frontmatter as it is written to the driver file, with the hosts that the user allowed."""
        return self.data if self.opened is None else {**self.data, "network": {"egress": list(self.opened)}}
