"""The table of server kinds, to which a new kind of server is added. `interlock.drivers.kinds` explains how.

To add a kind of server, write a subclass of `ServerBlock` here and add it to `SERVERS`. The class attributes define how
the kind is written in DRIVER.md, the fields hold the values of one server block, and the methods do everything that
depends on the kind and needs no I/O: reading, identity, export. `interlock.drivers.kinds` installs and starts servers.

A block is read after it has passed the schema that `files.schemas` makes from the fields of these classes. `read`
checks what the schema cannot express and adds problems to the findings. Messages name the field and never its value,
which may be a secret.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.problems import FileFindings, Severity
from interlock.net.protocol.address_scope import is_loopback
from interlock.wire.jsontext.canonical import quoted

JsonObject = Mapping[str, Any]
Transport = Literal["stdio", "sse", "http"]
Confinement = Literal["sandbox", "container", "elsewhere"]

# Keys of a server block in the schema that AIP-32 publishes. All others are extensions of Interlock.
PUBLISHED_KEYS: Final = frozenset({"kind", "path", "package", "image", "url", "args", "env"})


def rule(**keywords: Any) -> msgspec.Meta:
    """Return a rule for the values of a struct's field. It is written to the JSON Schema of the file but not checked by
    the decoder.
    """
    return msgspec.Meta(extra_json_schema=keywords)


class BlockContext(msgspec.Struct, frozen=True, kw_only=True):
    """Context in which a server block is read: the driver's transport, where problems are added, and hosts allowed
    without encryption.
    """

    transport: str
    findings: FileFindings
    insecure_hosts: Collection[str] = ()  # hosts that the operator allows without encryption (AIP-security-10)


_VERSION = re.compile(r"[A-Za-z0-9^~][A-Za-z0-9.!+_-]*", re.ASCII)


class ServerBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of the classes for the block `server` of a DRIVER.md. Each kind of server has a subclass (`SERVERS`)."""

    kind: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]  # in the block; the first is required
    transports: ClassVar[tuple[Transport, ...]]  # AIP-server-12
    confinement: ClassVar[Confinement]  # what keeps the server from the rest of the machine
    published_keys: ClassVar[frozenset[str]] = PUBLISHED_KEYS
    is_published: ClassVar[bool] = True  # whether the schema that AIP-32 publishes has the kind
    registry_type: ClassVar[str | None] = None  # its name in the server.json of an MCP registry
    registry_name: ClassVar[str | None] = None  # where its packages come from, for messages
    launcher: ClassVar[tuple[str, ...]] = ()  # the words before the reference in a command that people know

    @classmethod
    def read(cls, block: JsonObject, context: BlockContext) -> Self | None:
        """Convert a block that has passed its schema. Add problems to the findings of the context. Return None if the
        block cannot be used.

        Raise msgspec.ValidationError if a field has the wrong type.
        """
        return msgspec.convert(block, cls)

    @property
    def address(self) -> str | None:
        """Return the URL that the node connects to, or None if the node starts the server itself."""
        return None

    @property
    def source(self) -> str | None:
        """Return the package, the image or the host that identifies the server (AIP-identity-2).

        Return None if nothing in the block does.
        """
        return None

    @property
    def pinned_version(self) -> str | None:
        """Return the version of the server's package that the file prescribes, or None."""
        return None

    @property
    def relative_program(self) -> str | None:
        """Return the path of the server's program if it is relative to the driver's folder, otherwise None."""
        return None

    @property
    def accepts_oauth(self) -> bool:
        """Return whether the node may request an OAuth token for this server."""
        return False

    @classmethod
    def publish(cls, block: JsonObject, lost: list[str], changed: list[str]) -> dict[str, Any]:
        """Return the block in the form of AIP-32's published schema, which other hosts can read (AIP-export-3).

        Add the keys that have no equivalent to `lost`, and those that were replaced by an equivalent to `changed`.
        """
        published = {key: value for key, value in block.items() if key in cls.published_keys}
        lost += [f"server.{key}" for key in block if key not in published and key != "version"]
        if block.get("version") is not None:
            lost.append("server.version")
        return published

    @classmethod
    def advise_on_start(cls, output: str, *, has_extra_packages: bool) -> str | None:
        """Return a hint for a person if a failed start with this output has a known cause, otherwise None."""
        return None

    @classmethod
    def name_parts(cls, reference: str) -> tuple[str, str]:
        """Split a package reference into the scope and the name of the package: @scope/name@1.2.3 has the scope "scope"
        and the name "name".
        """
        return "", reference


class LocalServer(ServerBlock, frozen=True, kw_only=True):
    """Base of the `server` blocks for servers that the node starts on this machine."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None

    transports: ClassVar[tuple[Transport, ...]] = ("stdio",)
    confinement: ClassVar[Confinement] = "sandbox"

    @property
    def program(self) -> str:
        """Return the program to run: an absolute path, a path relative to DRIVER.md, or a name on the PATH.

        Only kinds that run a program of this machine have one. For the other kinds, the classes in
        `interlock.drivers.kinds` define the command.
        """
        raise NotImplementedError

    @property
    def program_args(self) -> tuple[str, ...]:
        """Return the arguments that the kind of server adds between the program and server.args."""
        return ()

    def client_command(self, args: Sequence[str], variables: Sequence[str]) -> list[str]:
        """Return the command with which another MCP client can start this server (AIP-export-2).

        `variables` are the names of the environment variables that the client sets.
        """
        return [self.program, *self.program_args, *args]

    def registry_package(self) -> dict[str, Any] | None:
        """Return the description of this server's package for an MCP registry, without server.args.

        Return None if registries do not support this kind.
        """
        return None


def read_pin(suffix: str | None, version: str | None, findings: FileFindings) -> str | None:
    """Return the version that a package reference or server.version prescribes, or None if neither does.

    `suffix` is the version in the package's name and `version` is server.version. If both are present and differ, or
    server.version is not a version, a problem is added to the findings.
    """
    if version is not None and not _VERSION.fullmatch(version):
        findings.add_invalid("/server/version", "this is not a version", "write one like 1.2.3")
    elif suffix is not None and version is not None and suffix != version:  # AIP-server-3
        message = "server.package and server.version name two versions"
        findings.add("/server/version", "version_conflict", message, "keep the pin in one of them")
    return version if suffix is None else suffix  # AIP-server-3


def refuse_plaintext(findings: FileFindings, pointer: str, name: str) -> None:
    """Report a credential in clear text as an error of the file. The message names the key and never shows the value
    (AIP-19.plain-2).
    """
    message = f"{quoted(name)} holds a credential in clear text"
    hint = "store it with `interlock secrets set NAME` and write ${secrets.NAME}; if it is no secret: not_secret"
    findings.add(pointer, "plaintext_secret", message, hint)  # AIP-19.plain-2


class BinaryServer(LocalServer, frozen=True, kw_only=True, tag="binary"):
    """The block `server` of a DRIVER.md for a program that is installed on this machine. `path` names the program."""

    kind: ClassVar[str] = "binary"
    keys: ClassVar[tuple[str, ...]] = ("path", "args", "env", "cwd")  # AIP-server-1

    path: str

    @property
    def program(self) -> str:
        return self.path

    @property
    def relative_program(self) -> str | None:
        return self.path if "/" in self.path and not self.path.startswith("/") else None


_NPM_PACKAGE = re.compile(
    r"(?P<name>(?:@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*)(?:@(?P<version>[A-Za-z0-9^~][\w.+-]*))?",
    re.ASCII,
)


class PackageServer(LocalServer, frozen=True, kw_only=True):
    """Base of the `server` blocks for packages. The block may fix the version of the package."""

    package: str  # without the pin, which is `version`
    version: str | None = None

    @property
    def source(self) -> str | None:
        return self.package

    @property
    def pinned_version(self) -> str | None:
        return self.version

    def registry_package(self) -> dict[str, Any]:
        pin = {"version": self.version} if self.version not in {None, "latest"} else {}
        return {"registryType": self.registry_type, "identifier": self.package, **pin, "transport": {"type": "stdio"}}


class NpmServer(PackageServer, frozen=True, kw_only=True, tag="npm"):
    """The block `server` of a DRIVER.md for an npm package. `entry` names the package's program if
    there are several.
    """

    kind: ClassVar[str] = "npm"
    keys: ClassVar[tuple[str, ...]] = ("package", "version", "entry", "args", "env", "cwd")
    registry_type: ClassVar[str | None] = "npm"
    registry_name: ClassVar[str | None] = "the npm registry"
    launcher: ClassVar[tuple[str, ...]] = ("npx",)

    entry: str | None = None

    @classmethod
    def read(cls, block: JsonObject, context: BlockContext) -> Self | None:
        match = _NPM_PACKAGE.fullmatch(block["package"])
        if match is None:
            message = "this is not the name of an npm package"
            context.findings.add_invalid("/server/package", message, "write @scope/name or name@1.2.3")
            return None
        version = read_pin(match["version"], block.get("version"), context.findings)
        return msgspec.convert({**block, "package": match["name"], "version": version}, cls)

    @classmethod
    def publish(cls, block: JsonObject, lost: list[str], changed: list[str]) -> dict[str, Any]:
        version = block.get("version")
        if not isinstance(version, str):
            return super().publish(block, lost, changed)
        changed.append("server.version")
        published = super().publish({key: value for key, value in block.items() if key != "version"}, lost, changed)
        is_pinned = "@" in published["package"][1:]
        return published if is_pinned else {**published, "package": f"{published['package']}@{version}"}

    def client_command(self, args: Sequence[str], variables: Sequence[str]) -> list[str]:
        package = self.package if self.version is None else f"{self.package}@{self.version}"
        words = ["-p", package, self.entry] if self.entry else [package]
        return ["npx", "-y", *words, *args]

    @classmethod
    def name_parts(cls, reference: str) -> tuple[str, str]:
        scope, _, name = re.sub(r"(?<=.)@[^/@]*$", "", reference).rpartition("/")
        return scope, name


_PYPI_PACKAGE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?P<extras>\[[A-Za-z0-9][A-Za-z0-9._,-]*\])?"
    r"(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?",
    re.ASCII,
)
_MODULE = re.compile(r"-m [A-Za-z_][A-Za-z0-9_.]*", re.ASCII)
_SCRIPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_PYPI_PIN = re.compile(r"(?P<name>.+?)==(?P<version>[^=]+)")
_AFTER_NAME = re.compile(r"[\[=<>!~;@ ].*", re.DOTALL)
_NEWER_MCP = re.compile(
    r"cannot import name .* from '?mcp[.' ]|No module named '?mcp\b|module 'mcp[\w.]*' has no attribute"
    r"|'(Server|FastMCP|MCPServer|ServerSession|RequestContext|NotificationOptions)' object has no attribute"
    r"|type object '\w+' has no attribute .*mcp"
)


class PypiServer(PackageServer, frozen=True, kw_only=True, tag="pypi"):
    """The block `server` of a DRIVER.md for a Python package from PyPI."""

    kind: ClassVar[str] = "pypi"
    keys: ClassVar[tuple[str, ...]] = ("package", "version", "entry", "runner", "args", "env", "cwd")
    is_published: ClassVar[bool] = False
    registry_type: ClassVar[str | None] = "pypi"
    registry_name: ClassVar[str | None] = "PyPI"
    launcher: ClassVar[tuple[str, ...]] = ("uvx",)

    # `package` keeps its extras: name[extra].
    entry: str  # the console script, or "-m module"
    runner: Literal["auto", "uvx", "pipx", "venv"] = "auto"

    @classmethod
    def read(cls, block: JsonObject, context: BlockContext) -> Self | None:
        match = _PYPI_PACKAGE.fullmatch(block["package"])
        if match is None:
            message = "this is not the name of a PyPI package"
            context.findings.add_invalid("/server/package", message, "write name or name==1.2.3")
            return None
        entry = block.get("entry", match["name"])
        if not _SCRIPT.fullmatch(entry) and not _MODULE.fullmatch(entry):
            context.findings.add_invalid("/server/entry", "this is no console script", "write its name, or `-m module`")
        version = read_pin(match["version"], block.get("version"), context.findings)
        package = match["name"] + (match["extras"] or "")
        return msgspec.convert({**block, "package": package, "version": version, "entry": entry}, cls)

    @classmethod
    def publish(cls, block: JsonObject, lost: list[str], changed: list[str]) -> dict[str, Any]:
        """Return the block as a program that runs uvx with the package, because AIP-32 has no kind for Python
        packages.
        """
        package = str(block["package"])
        pin = _PYPI_PIN.fullmatch(package)
        name, version = (pin["name"], pin["version"]) if pin is not None else (package, block.get("version"))
        entry = str(block.get("entry", name.partition("[")[0]))
        program = ["python", *entry.split(" ", 1)] if entry.startswith("-m ") else [entry]
        requirement = name if version is None else f"{name}=={version}"
        changed.append("server.kind")
        lost += [f"server.{key}" for key in ("cwd", "runner") if key in block]
        published: dict[str, Any] = {"kind": "binary", "path": "uvx"}
        published["args"] = ["--from", requirement, *program, *block.get("args", ())]
        return published | ({"env": block["env"]} if "env" in block else {})

    def client_command(self, args: Sequence[str], variables: Sequence[str]) -> list[str]:
        package = self.package if self.version is None else f"{self.package}=={self.version}"
        words = [package] if self.package == self.entry else ["--from", package, *self.entry.split(" ")]
        return ["uvx", *words, *args]

    @classmethod
    def advise_on_start(cls, output: str, *, has_extra_packages: bool) -> str | None:
        if has_extra_packages or _NEWER_MCP.search(output) is None:
            return None
        return "it was made for an older mcp package: --with 'mcp<2' installs that beside it"

    @classmethod
    def name_parts(cls, reference: str) -> tuple[str, str]:
        return "", _AFTER_NAME.sub("", reference)


_IMAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._/:-]*?(?P<tag>:[A-Za-z0-9_][A-Za-z0-9._-]*)?(?P<digest>@sha256:[0-9a-f]{64})?", re.ASCII
)


class DockerServer(LocalServer, frozen=True, kw_only=True, tag="docker"):
    """The block `server` of a DRIVER.md for a container image."""

    kind: ClassVar[str] = "docker"
    keys: ClassVar[tuple[str, ...]] = ("image", "port", "path", "volumes", "args", "env", "cwd")
    transports: ClassVar[tuple[Transport, ...]] = ("stdio", "http")
    confinement: ClassVar[Confinement] = "container"
    # The published schema has `path` for programs only. Here it is the path of a URL.
    published_keys: ClassVar[frozenset[str]] = LocalServer.published_keys - {"path"}
    registry_type: ClassVar[str | None] = "oci"
    registry_name: ClassVar[str | None] = "the registry of images"
    launcher: ClassVar[tuple[str, ...]] = ("docker", "run")

    image: str
    port: Annotated[int, rule(minimum=1, maximum=65535)] | None = None
    path: str = "/mcp"  # of the URL at which the container serves HTTP
    volumes: tuple[str, ...] = ()

    @classmethod
    def read(cls, block: JsonObject, context: BlockContext) -> Self | None:
        image = _IMAGE.fullmatch(block["image"])
        if image is None:
            context.findings.add_invalid("/server/image", "this is not the name of an image", "write registry/name:tag")
            return None
        if image["digest"] is None and (image["tag"] in {None, ":latest"}):  # AIP-server-5
            message = "the image names no fixed version"
            hint = "write a tag or a digest, so that an update is your decision"
            context.findings.add("/server/image", "image_unpinned", message, hint, "warning")
        if context.transport == "http" and "port" not in block:
            hint = "name the port the container serves HTTP on"
            context.findings.add_invalid("/server/port", "port is missing", hint)
        if "path" in block and not re.fullmatch(r"/[!-~]*", block["path"]):
            context.findings.add_invalid("/server/path", "this is no path of a URL", "write one like /mcp")
        return msgspec.convert(block, cls)

    @property
    def source(self) -> str | None:
        """Return the name of the image without tag and digest."""
        folder, slash, name = self.image.partition("@")[0].rpartition("/")
        return folder + slash + name.partition(":")[0]

    def client_command(self, args: Sequence[str], variables: Sequence[str]) -> list[str]:
        volumes = [word for each in self.volumes for word in ("-v", each)]
        environment = [word for each in variables for word in ("-e", each)]
        return ["docker", "run", "-i", "--rm", *volumes, *environment, self.image, *args]

    def registry_package(self) -> dict[str, Any]:
        package: dict[str, Any] = {"registryType": "oci", "identifier": self.image, "transport": {"type": "stdio"}}
        volumes = [{"type": "named", "name": "-v", "value": each} for each in self.volumes]
        return {**package, "runtimeHint": "docker", "runtimeArguments": volumes} if volumes else package

    @classmethod
    def name_parts(cls, reference: str) -> tuple[str, str]:
        scope, _, name = reference.partition("@")[0].rpartition("/")
        return scope, name.partition(":")[0]


_URL = re.compile(r"[!-~]+")


class RemoteAuth(msgspec.Struct, frozen=True, kw_only=True):
    """The block server.auth of a DRIVER.md: how the node logs in to a remote server."""

    type: Literal["none", "bearer", "header", "oauth", "mtls"]
    secret: str | None = None
    header: str | None = None
    scopes: tuple[str, ...] = ()
    client_id: str | None = None


def _required_by(field: str, *types: str) -> dict[str, Any]:
    """Return a JSON Schema that requires a field of server.auth if its type is one of `types`."""
    has_type = {"properties": {"type": {"enum": [*types]}}, "required": ["type"]}
    return {"if": has_type, "then": {"required": [field]}}


_AUTH_RULES: Final = [_required_by("secret", "bearer", "header"), _required_by("header", "header")]


class RemoteServer(ServerBlock, frozen=True, kw_only=True, tag="remote"):
    """The block `server` of a DRIVER.md for a server that runs elsewhere. The node reaches the server at `url`."""

    kind: ClassVar[str] = "remote"
    keys: ClassVar[tuple[str, ...]] = ("url", "headers", "query", "auth")
    transports: ClassVar[tuple[Transport, ...]] = ("http", "sse")
    confinement: ClassVar[Confinement] = "elsewhere"

    url: str
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    auth: Annotated[RemoteAuth, rule(allOf=_AUTH_RULES)] | None = None

    @classmethod
    def read(cls, block: JsonObject, context: BlockContext) -> Self | None:
        url: str = block["url"]
        try:
            parts = urlsplit(url)
            # Reading the port raises ValueError if it is not one.
            host, _ = parts.hostname, parts.port
        except ValueError:
            host, parts = None, urlsplit("")
        if "@" in parts.netloc:  # AIP-server-7
            refuse_plaintext(context.findings, "/server/url", "url")
        elif parts.scheme not in {"http", "https"} or not host or not _URL.fullmatch(url) or "#" in url:  # AIP-server-7
            message = "this is not the address of a server"
            context.findings.add("/server/url", "url_invalid", message, "write https://host/path, without a fragment")
        elif parts.scheme == "http" and not is_loopback(host):  # AIP-security-10
            severity: Severity = "warning" if host in context.insecure_hosts else "error"
            hint = "write https://, or let the operator name the host in drivers.insecure_hosts"
            context.findings.add("/server/url", "insecure_url", "this address is not encrypted", hint, severity)
        return msgspec.convert(block, cls)

    @property
    def address(self) -> str | None:
        return self.url

    @property
    def source(self) -> str | None:
        return urlsplit(self.url).hostname

    @property
    def accepts_oauth(self) -> bool:
        return self.auth is None or self.auth.type in {"oauth", "none"}


# The table of kinds by the value of server.kind, in the order in which messages list them.
SERVERS: Final[Mapping[str, type[ServerBlock]]] = {
    each.kind: each for each in (BinaryServer, NpmServer, PypiServer, DockerServer, RemoteServer)
}
