"""The server block of a DRIVER.md: what every kind of server has in common.

Each kind is a subclass of `Server` in a module beside this one. The class attributes say how the kind is written, the
fields are what one block says, and the methods answer everything that depends on the kind and needs no I/O.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Self

import msgspec

from interlock.drivers.protocol.files.schemas.universal import STRING_MAP, STRINGS
from interlock.drivers.protocol.problems import FileFindings
from interlock.wire.jsontext.pointer import quoted

JsonObject = Mapping[str, Any]
Transport = Literal["stdio", "sse", "http"]
Confinement = Literal["sandbox", "container", "elsewhere"]

# Keys of a server block in the schema that AIP-32 publishes. All others are extensions of Interlock.
PUBLISHED_KEYS: Final = frozenset({"kind", "path", "package", "image", "url", "args", "env"})
TEXT: Final = {"type": "string"}

_VERSION = re.compile(r"[A-Za-z0-9^~][A-Za-z0-9.!+_-]*", re.ASCII)


class Server(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A server block. `interlock.drivers.protocol.kinds.SERVERS` lists the subclass of each kind."""

    kind: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]  # in the block; the first is required
    transports: ClassVar[tuple[Transport, ...]]  # AIP-server-12
    confinement: ClassVar[Confinement]  # what keeps the server from the rest of the machine
    schema: ClassVar[dict[str, Any]]  # JSON Schemas of its optional keys
    published_keys: ClassVar[frozenset[str]] = PUBLISHED_KEYS
    is_published: ClassVar[bool] = True  # whether the schema that AIP-32 publishes has the kind
    registry_type: ClassVar[str | None] = None  # its name in the server.json of an MCP registry
    registry_name: ClassVar[str | None] = None  # where its packages come from, for messages
    launcher: ClassVar[tuple[str, ...]] = ()  # the words before the reference in a command that people know

    @classmethod
    def read(
        cls, block: JsonObject, transport: str, findings: FileFindings, insecure_hosts: Collection[str]
    ) -> Self | None:
        """Read a block that fits its schema. Report what is wrong to `findings`; return None if nothing can be read.

        Raises msgspec.ValidationError.
        """
        return msgspec.convert(block, cls)

    @property
    def address(self) -> str | None:
        """Return the URL that the node dials, or None if it starts the server itself."""
        return None

    @property
    def source(self) -> str | None:
        """Return what identifies the server besides its kind: a package, an image, a host (AIP-identity-2)."""
        return None

    @property
    def pinned_version(self) -> str | None:
        return None

    @property
    def relative_program(self) -> str | None:
        """Return the program's path if the file names it relative to its own folder, or None."""
        return None

    @property
    def accepts_oauth(self) -> bool:
        """Tell whether the node may ask for an OAuth token for this server."""
        return False

    @classmethod
    def publish(cls, block: JsonObject, lost: list[str], changed: list[str]) -> dict[str, Any]:
        """Return the block in the terms of AIP-32's published schema (AIP-export-3).

        Keys that have no equivalent are added to `lost`, keys that are said in other words to `changed`.
        """
        published = {key: value for key, value in block.items() if key in cls.published_keys}
        lost += [f"server.{key}" for key in block if key not in published and key != "version"]
        if block.get("version") is not None:
            lost.append("server.version")
        return published

    @classmethod
    def advise_on_start(cls, output: str, *, has_extra_packages: bool) -> str | None:
        """Return what to do about a start that failed with this output, if the kind has advice of its own."""
        return None

    @classmethod
    def name_parts(cls, reference: str) -> tuple[str, str]:
        """Return the scope and the name in a reference such as @scope/name@1.2.3."""
        return "", reference


class LocalServer(Server, frozen=True, kw_only=True):
    """A server that the node starts as a process."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None

    transports: ClassVar[tuple[Transport, ...]] = ("stdio",)
    confinement: ClassVar[Confinement] = "sandbox"
    schema: ClassVar[dict[str, Any]] = {"args": STRINGS, "env": STRING_MAP, "cwd": TEXT}

    @property
    def program(self) -> str:
        """Return the program to run: an absolute path, a path relative to DRIVER.md, or a name on the PATH.

        Only kinds that run a program of this machine have one. The others say in `interlock.drivers.kinds` how they
        are run.
        """
        raise NotImplementedError

    @property
    def program_args(self) -> tuple[str, ...]:
        """Return the arguments that the kind itself puts between `program` and server.args."""
        return ()

    def client_command(self, args: Sequence[str], variables: Sequence[str]) -> list[str]:
        """Return the command with which another MCP client starts this server itself (AIP-export-2).

        `variables` are the names of the environment variables that the client sets.
        """
        return [self.program, *self.program_args, *args]

    def registry_package(self) -> dict[str, Any] | None:
        """Return the package entry for an MCP registry without arguments, or None if no registry can hold it."""
        return None


def read_pin(suffix: str | None, version: str | None, findings: FileFindings) -> str | None:
    """Return the version of a package that is pinned in its name, in server.version, or in both."""
    if version is not None and not _VERSION.fullmatch(version):
        findings.say("/server/version", "schema_invalid", "this is not a version", "write one like 1.2.3")
    elif suffix is not None and version is not None and suffix != version:  # AIP-server-3
        findings.say(
            "/server/version",
            "version_conflict",
            "server.package and server.version name two versions",
            "keep the pin in one of them",
        )
    return version if suffix is None else suffix  # AIP-server-3


def refuse_plaintext(findings: FileFindings, pointer: str, name: str) -> None:
    """Refuse a credential in clear text. The key is named, the value is not (AIP-19.plain-2)."""
    findings.say(
        pointer,
        "plaintext_secret",  # AIP-19.plain-2
        f"{quoted(name)} holds a credential in clear",
        "store it with `interlock secrets set NAME` and write ${secrets.NAME}; if it is none: not_secret",
    )
