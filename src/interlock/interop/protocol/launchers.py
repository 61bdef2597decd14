"""What a person or a file names to be run, as server blocks: command lines, and references such as npm:PACKAGE.

A command line starts with a launcher (npx, uvx, pipx, docker and the like), which names a package or an image with
arguments for the server (AIP-import-4). A bridge (mcp-remote, supergateway, mcp-proxy) only carries MCP to a remote
server, which is entered in its place (AIP-import-5). A command that is not understood for certain stays `binary`: a
guessed package name could be the package of somebody else.

A reference is what a person gives to `interlock add`: npm:PACKAGE, pypi:PACKAGE, docker:IMAGE, an address or a command.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.kinds import SERVERS
from interlock.interop.protocol.model import ImportNote, ServerEntry, Transport, without_empty
from interlock.net.protocol.address_scope import LOOPBACK_HOSTS

_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?", re.ASCII)

# Options that every node sets itself, or that change nothing for it.
OURS: Final = frozenset({"--interactive", "--rm", "--tty", "--init", "--quiet", "-q", "-i", "-t", "-it", "-ti"})
FLAGS: Final = frozenset(
    {"-d", "--detach", "--privileged", "--read-only", "-P", "--publish-all", "--no-healthcheck", "--oom-kill-disable"}
    | {"--disable-content-trust", "--sig-proxy", "--replace", "--tls-verify"}
)
WITH_VALUE: Final = frozenset(
    re.findall(
        r"\S+",
        """-p --publish --name --network --net -u --user -w --workdir -h --hostname --add-host --cap-add --cap-drop
        --security-opt --device --gpus --memory -m --cpus -c --cpu-shares --restart --entrypoint -l --label --label-file
        --log-driver --log-opt --dns --dns-search --dns-option --platform --pull --tmpfs --ulimit --shm-size --pid --ipc
        --uts --userns --cgroupns --group-add --link --expose --env-file --ip --ip6 --mac-address --network-alias
        --runtime --stop-signal --stop-timeout --sysctl --volumes-from --volume-driver --cidfile --isolation
        --memory-swap --pids-limit --health-cmd --domainname -a --attach --annotation --mount -v --volume -e --env""",
    )
)
HARMLESS: Final = frozenset({"--name", "--pull", "-l", "--label"})  # say nothing about what the server may do


class ClassifiedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The package, image or program that a command line starts.

    `server` is the block without env. `env` are variables that the command line sets, `passed` those that it passes on.
    """

    server: Mapping[str, Any]
    env: Mapping[str, str] = {}
    passed: tuple[str, ...] = ()
    notes: tuple[ImportNote, ...] = ()


class _Unknown(Exception):
    """Error for a command-line option that this module does not know."""


def _take_options(
    rest: list[str],
    silent: Collection[str],
    valued: Collection[str],
    *,
    bare: Collection[str] = (),
    attached: Collection[str] = (),
    posix: bool = True,
) -> Iterator[tuple[str, str]]:
    """Remove the options at the start of `rest`, and yield each with its value.

    `silent` options have no value and are not yielded, `bare` ones are yielded without a value. The value of an
    `attached` one may follow it directly. With `posix`, a value may follow `=`, and `--` ends the options. Raise
    _Unknown for any other option, because it is not known whether a value follows it.
    """
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        flag, mark, value = word.partition("=") if posix else (word, "", "")
        if flag == "--" and posix:
            return
        if flag in silent:
            continue
        if flag not in valued and flag[:2] in attached and len(flag) > 2:
            flag, mark, value = word[:2], "=", word[2:]  # -eKEY, -v/a:/b
        if flag in bare:
            yield flag, ""
        elif flag in valued:
            yield flag, value if mark else _value(flag, rest)
        else:
            raise _Unknown(flag.partition("=")[0][:40])


def _value(flag: str, rest: list[str]) -> str:
    if not rest:
        raise _Unknown(flag)
    return rest.pop(0)


def _classify_docker(rest: list[str]) -> ClassifiedCommand | None:
    """Return the image that `docker run` starts with these arguments, or None if they name no image."""
    env: dict[str, str] = {}
    passed: list[str] = []
    volumes: list[str] = []
    dropped: list[str] = []
    for flag, value in _take_options(rest, OURS, WITH_VALUE, bare=FLAGS, attached=("-e", "-v", "-p", "-u", "-w")):
        if flag in {"-e", "--env"}:
            name, assigned, setting = value.partition("=")
            if assigned:
                env[name] = setting
            else:
                passed.append(name)
        elif flag in {"-v", "--volume"}:
            volumes.append(value)
        elif flag == "--mount" and (volume := _find_bind_mount(value)) is not None:
            volumes.append(volume)
        elif flag not in HARMLESS:
            # Names of networks and limits say what was meant; a label or an entry point may hold anything.
            dropped.append(f"{flag} {value}" if flag in {"--network", "--net", "--pid", "--ipc", "--userns"} else flag)
    if not rest or not _IMAGE.fullmatch(rest[0]):
        return None
    server = without_empty({"kind": "docker", "image": rest[0], "volumes": volumes, "args": rest[1:]})
    message = f"docker options without a place in a driver: {', '.join(dict.fromkeys(dropped))}"
    note = ImportNote(code="docker_flag_dropped", text=message)
    notes = (note,) if dropped else ()
    return ClassifiedCommand(server=server, env=env, passed=tuple(dict.fromkeys(passed)), notes=notes)


def _find_bind_mount(value: str) -> str | None:
    """Convert type=bind,src=/a,dst=/b,readonly to /a:/b:ro. Return None if it is not a bind mount."""
    parts = dict(each.partition("=")[::2] for each in value.split(","))
    source = parts.get("src", parts.get("source"))
    target = parts.get("dst", parts.get("target", parts.get("destination")))
    if parts.get("type") != "bind" or not source or not target:
        return None
    return f"{source}:{target}" + (":ro" if "readonly" in parts or "ro" in parts else "")


_ADDRESS: Final = re.compile(r"https?://\S+", re.I)
_HEADER: Final = re.compile(r"\s*(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*:\s*(?P<value>.*)", re.DOTALL)
_PIN: Final = re.compile(r"(?:==|(?<=.)@)[^/]*$")


class _Bridge(msgspec.Struct, frozen=True, kw_only=True):
    """The command-line options that a bridge such as mcp-remote is known to have. A bridge with any other option is
    kept instead of being replaced by its remote server.
    """

    valued: frozenset[str]
    silent: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()  # options without a value that say what the bridge does
    transport: Transport = "http"  # its default
    transports: Mapping[str, Transport] = {}  # the values of --transport


_BRIDGES: Final = {
    "mcp-remote": _Bridge(
        valued=frozenset(
            {"--header", "--transport", "--host", "--auth-timeout", "--resource", "--protocol"}
            | {"--static-oauth-client-metadata"}
        ),
        silent=frozenset({"--debug", "--allow-http", "--enable-proxy", "--silent"}),
        transports={"http-only": "http", "http-first": "http", "sse-only": "sse", "sse-first": "sse"},
    ),
    "supergateway": _Bridge(
        valued=frozenset(
            {"--sse", "--streamableHttp", "--header", "--oauth2Bearer", "--outputTransport", "--logLevel"}
            | {"--healthEndpoint"}
        ),
        bare=frozenset({"--stdio"}),
    ),
    "mcp-proxy": _Bridge(
        valued=frozenset({"-H", "--headers", "--transport"}),
        silent=frozenset({"--debug", "--no-debug"}),
        transport="sse",
        transports={"sse": "sse", "streamablehttp": "http"},
    ),
}


class Unwrapped(msgspec.Struct, frozen=True, kw_only=True):
    """The remote server to which a bridge such as mcp-remote would connect."""

    url: str
    transport: Transport = "http"
    headers: Mapping[str, str] = {}
    used_env: frozenset[str] = frozenset()  # variables of the bridge that are now in headers


def unwrap_bridge(server: Mapping[str, Any], env: Mapping[str, str]) -> Unwrapped | ImportNote | None:
    """Return the remote server behind a bridge such as mcp-remote. Return a note if the bridge has to stay, or None if
    the server is not a bridge.
    """
    name = _PIN.sub("", str(server.get("package", "")))
    if name not in _BRIDGES or server.get("kind") not in {"npm", "pypi"}:
        return None
    try:
        return _read_bridge(name, list(server.get("args", ())), env)
    except _Unknown as unknown:
        return ImportNote(code="carrier_kept", text=f"it carries another server, and {unknown} is not known here")


def _read_bridge(name: str, rest: list[str], env: Mapping[str, str]) -> Unwrapped | None:
    """Return the remote server to which a bridge such as mcp-remote connects. Return None if the bridge offers a local
    program to others instead.
    """
    bridge = _BRIDGES[name]
    headers: dict[str, str] = {}
    url, transport = None, bridge.transport
    if name == "mcp-remote" and rest:  # its url comes first, and then perhaps the port of its callback
        url = rest.pop(0)
        if not _ADDRESS.fullmatch(url):
            return None
        rest = rest[1:] if rest and rest[0].isdigit() else rest
    while rest:
        for flag, value in _take_options(rest, bridge.silent, bridge.valued, bare=bridge.bare, posix=False):
            match flag:
                case "--header":
                    header = _HEADER.fullmatch(value)
                    if header is None:
                        raise _Unknown("a header without a colon")
                    headers[header["name"]] = header["value"]
                case "-H" | "--headers":
                    headers[value] = _value(flag, rest)
                case "--oauth2Bearer":
                    headers["Authorization"] = f"Bearer {value}"
                case "--transport":
                    if value not in bridge.transports:
                        raise _Unknown("its --transport")
                    transport = bridge.transports[value]
                case "--sse" | "--streamableHttp":
                    url, transport = value, "sse" if flag == "--sse" else "http"
                case "--stdio":
                    return None
                case "--outputTransport" if value != "stdio":
                    return None
        if rest and name != "mcp-proxy":
            raise _Unknown("an argument")
        if rest:
            if url is not None or not _ADDRESS.fullmatch(rest[0]):
                return None
            url = rest.pop(0)
    if url is None or not _ADDRESS.fullmatch(url):
        return None
    used = frozenset({"API_ACCESS_TOKEN"} & set(env)) if name == "mcp-proxy" else frozenset()
    if used:
        headers.setdefault("Authorization", f"Bearer {env['API_ACCESS_TOKEN']}")
    return _with_variables(url, transport, headers, env, used)


def _with_variables(
    url: str, transport: Transport, headers: Mapping[str, str], env: Mapping[str, str], used_env: frozenset[str]
) -> Unwrapped:
    """Return a remote server whose url and headers have values of `env` in place of variables such as ${TOKEN}.

    People write `Authorization:${AUTH}` because some clients split arguments at blanks.
    """
    used = set(used_env)

    def value(match: re.Match[str]) -> str:
        if match[1] not in env:
            return match[0]
        used.add(match[1])
        return env[match[1]]

    variable = re.compile(r"\$\{([A-Za-z_]\w*)\}")
    url = variable.sub(value, url)
    headers = {name: variable.sub(value, text) for name, text in headers.items()}
    return Unwrapped(url=url, transport=transport, headers=headers, used_env=frozenset(used))


_NPM: Final = re.compile(r"(?:@[a-z0-9~][\w.~-]*/)?[a-z0-9~][\w.~-]*(?:@[A-Za-z0-9^~][\w.+-]*)?", re.ASCII | re.I)
_PYPI: Final = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?(?:\[[\w.,-]+\])?)(?:(?:==|@)(?P<version>[A-Za-z0-9][\w.!+-]*))?",
    re.ASCII,
)
_ASSIGNMENT: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.ASCII | re.DOTALL)
_EXTENSION: Final = re.compile(r"\.(?:exe|cmd|bat|ps1)$", re.I)
_DOS_SWITCH: Final = re.compile(r"/[a-z]", re.I)

SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "fish", "ksh", "powershell", "pwsh"})
NPX_QUIET: Final = frozenset({"-y", "--yes", "-q", "--quiet", "--prefer-offline", "--prefer-online", "--silent", "-s"})
UVX_QUIET: Final = frozenset(
    {"-q", "--quiet", "--refresh", "--no-cache", "-n", "--isolated", "-U", "--upgrade", "--no-progress", "--offline"}
)
UVX_DROPPED: Final = frozenset({"--python", "-p", "--refresh-package"})  # the host chooses the interpreter
PIPX_QUIET: Final = frozenset({"--no-cache", "-q", "--quiet", "--verbose"})


_INTERPRETERS: Final = re.compile(r"node|deno|bun|python(?:[23](?:\.\d+)?)?|ruby|perl|java")


def program_name(path: str) -> str:
    r"""Return the name of a program without folder and extension: npx for C:\\Program Files\\nodejs\\npx.cmd."""
    return _EXTENSION.sub("", re.split(r"[/\\]", path.strip())[-1]).lower()


def is_interpreter(path: str) -> bool:
    """Return whether a program is the interpreter of a language, so that its first file argument is the program."""
    return program_name(path) in SHELLS or _INTERPRETERS.fullmatch(program_name(path)) is not None


def classify_command(command: tuple[str, ...]) -> ClassifiedCommand:
    """Return what a command line starts: a package, an image, or any other program."""
    command = _split_when_whole(command)
    command, env = _without_wrappers(command)
    if not command:
        return ClassifiedCommand(server={"kind": "binary", "path": ""})
    name, args = program_name(command[0]), list(command[1:])
    classified: ClassifiedCommand | None = None
    try:
        match [name, *args]:
            case (
                ["npx" | "bunx" | "pnpx", *rest]
                | ["bun", "x", *rest]
                | ["pnpm" | "yarn", "dlx", *rest]
                | ["npm", "exec" | "x", *rest]
            ):
                classified = _classify_npm(rest)
            case ["uvx", *rest] | ["uv", "tool", "run", *rest]:
                classified = _classify_pypi(rest, UVX_QUIET, "--from", UVX_DROPPED)
            case ["pipx", "run", *rest]:
                classified = _classify_pypi(rest, PIPX_QUIET, "--spec")
            case ["docker" | "podman", "run", *rest] | ["docker" | "podman", "container", "run", *rest]:
                classified = _classify_docker(rest)
    except _Unknown:
        pass  # whether an option takes a value decides which word is the package or image
    if classified is None:
        is_shell = name in SHELLS and any(each in {"-c", "-lc", "-ic", "-Command"} for each in args[:2])
        message = "a shell starts it: what runs inside is neither pinned nor checked"
        server = {"kind": "binary", "path": command[0]} | without_empty({"args": args})
        notes = (ImportNote(code="shell_wrapper", text=message),) if is_shell else ()
        classified = ClassifiedCommand(server=server, notes=notes)
    return msgspec.structs.replace(classified, env={**env, **classified.env})


def _split_when_whole(command: tuple[str, ...]) -> tuple[str, ...]:
    """Split a command whose first word contains the arguments too, such as "npx -y pkg"."""
    if not command:
        return command
    first = command[0].split()
    if len(first) > 1 and first[0] in {"npx", "uvx", "bunx", "docker", "podman", "pipx", "uv", "node", "python"}:
        return (*first, *command[1:])
    return command


def _without_wrappers(command: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Remove `cmd /c` and `env K=V`, which only start another program. Return the command and the variables."""
    env: dict[str, str] = {}
    while len(command) > 1:
        name = program_name(command[0])
        if name == "cmd" and _DOS_SWITCH.fullmatch(command[1]):
            command = _split_when_whole(tuple(itertools.dropwhile(_DOS_SWITCH.fullmatch, command[1:])))
        elif name == "env" and _ASSIGNMENT.fullmatch(command[1]):
            command = command[1:]
            while command and (assigned := _ASSIGNMENT.fullmatch(command[0])):
                env[assigned["name"]] = assigned["value"]
                command = command[1:]
        else:
            break
    return command, env


def _block(kind: str, package: str, args: list[str], entry: str | None) -> dict[str, Any]:
    named = {"entry": entry} if entry is not None else {}
    return {"kind": kind, "package": package, **named, **without_empty({"args": args})}


def _classify_npm(rest: list[str]) -> ClassifiedCommand | None:
    packages = [package for _, package in _take_options(rest, NPX_QUIET, ("-p", "--package"))]
    if not rest or len(packages) > 1:
        return None
    package, entry = (packages[0], rest[0]) if packages else (rest[0], None)
    args = rest[1:]
    # npx hands on what follows the package, also after a `--` of its own.
    args = args[1:] if args[:1] == ["--"] and entry is None else args
    return ClassifiedCommand(server=_block("npm", package, args, entry)) if _NPM.fullmatch(package) else None


def _classify_pypi(
    rest: list[str], silent: Collection[str], source_flag: str, dropped: Collection[str] = ()
) -> ClassifiedCommand | None:
    source: str | None = None
    notes: list[ImportNote] = []
    for flag, value in _take_options(rest, silent, (source_flag, *dropped)):
        if flag == source_flag:
            source = value
        else:
            notes.append(ImportNote(code="flag_dropped", text=f"{flag} is not carried over"))
    named = _PYPI.fullmatch(source or rest[0]) if rest else None
    if named is None:
        return None
    version = named["version"]
    package = named["name"] if version in {None, "latest"} else f"{named['name']}=={version}"
    args = rest[1:]
    args = args[1:] if args[:1] == ["--"] and source is None else args
    entry = rest[0] if source is not None and rest[0] != named["name"].partition("[")[0] else None
    return ClassifiedCommand(server=_block("pypi", package, args, entry), notes=tuple(notes))


PROGRAM = "interlock"


def is_own(entry: ServerEntry, addresses: Collection[str]) -> bool:
    """Return whether an entry connects to Interlock itself. `addresses` are the URLs of this machine's nodes, without
    paths.
    """
    if entry.url is not None:
        return _is_same_origin(entry.url, addresses)
    if entry.server is not None or not entry.command:
        return False
    server = classify_command(entry.command).server
    modules = [after for word, after in itertools.pairwise(entry.command) if word == "-m"]
    programs = (program_name(entry.command[0]), server.get("package", "").partition("==")[0], *modules)
    if "serve" in entry.command and PROGRAM in programs:
        return True
    carried = unwrap_bridge(server, entry.env)
    return isinstance(carried, Unwrapped) and _is_same_origin(carried.url, addresses)


def _is_same_origin(url: str, addresses: Collection[str]) -> bool:
    try:
        target = urlsplit(url)
        candidates = [urlsplit(each) for each in addresses]
        return any(
            (each.scheme, each.port) == (target.scheme, target.port)
            and (each.hostname == target.hostname or {each.hostname, target.hostname} <= LOOPBACK_HOSTS)
            for each in candidates
        )
    except ValueError:
        return False


PACKAGED: Final = {each.kind: each for each in SERVERS.values() if each.registry_type is not None}
_EMPTY_WORDS: Final = frozenset(("mcp", "server", "servers", "modelcontextprotocol"))
_HOST_WORDS: Final = frozenset(("mcp", "api", "www", "app", "server"))


class UnknownReference(Exception):
    """Error for a reference that names nothing to install or run. Its text says what would be valid."""


def entry_of(
    reference: str,
    args: Sequence[str] = (),
    *,
    env: Mapping[str, str] = MappingProxyType({}),
    headers: Mapping[str, str] = MappingProxyType({}),
    **fields: tuple[str, ...],
) -> ServerEntry:
    """Return the entry for a reference such as npm:PACKAGE, or for the command in `args` if `reference` is empty.

    `fields` are further fields of the entry. Raise UnknownReference if the reference names nothing to install or run.
    """
    name, how = _read_reference(reference, tuple(args))
    return msgspec.structs.replace(ServerEntry(name=name, env=env, headers=headers, **how), **fields)


def _read_reference(reference: str, args: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return a name for the server, and the fields of its entry, such as its command or its url."""
    if not reference:
        if not args:
            raise UnknownReference("there is no command after --")
        return name_of_command(args), {"command": args}
    if _ADDRESS.fullmatch(reference):
        if args:
            raise UnknownReference("a server at an address takes no arguments")
        return name_of_address(reference), {"url": reference, "transport": "http"}
    kind, colon, named = reference.partition(":")
    if colon and kind in PACKAGED:
        if not named:
            raise UnknownReference(f"{reference} names no {PACKAGED[kind].keys[0]}")
        server = {"kind": kind, PACKAGED[kind].keys[0]: named, "args": list(args)}
        return name_of_package(kind, named), {"server": server}
    if reference.startswith("@"):
        raise UnknownReference(f"{reference} looks like an npm package, which is written npm:{reference}")
    if "/" in reference:
        command = (reference, *args)
        return name_of_command(command), {"command": command}
    forms = "npm:PACKAGE, pypi:PACKAGE, docker:IMAGE, https://…, ./program or a draft"
    raise UnknownReference(f"{reference} is not {forms}; a command goes after --")


def name_of_package(kind: str, named: str) -> str:
    """Return a short name for a package, for example filesystem for @modelcontextprotocol/server-filesystem."""
    scope, last = PACKAGED[kind].name_parts(named)
    return _without_empty_words(last) or _without_empty_words(scope) or last


def name_of_address(address: str) -> str:
    """Return a short name for the server at an address, for example linear for https://mcp.linear.app/mcp.

    The name of an IP address or of this machine is the host itself.
    """
    host = urlsplit(address).hostname or "remote"
    labels = host.split(".")
    if len(labels) < 2 or labels[-1].isdigit() or ":" in host:
        return host
    telling = [label for label in labels[:-1] if label not in _HOST_WORDS]
    return telling[-1] if telling else labels[0]


def name_of_command(command: Sequence[str]) -> str:
    """Return a short name for a command: that of its package, its script or its program."""
    server = classify_command(tuple(command)).server
    kind = server.get("kind")
    if kind in PACKAGED:
        return name_of_package(kind, server[PACKAGED[kind].keys[0]])
    program = program_name(command[0])
    if is_interpreter(command[0]):
        rest = list(command[1:])
        if "-m" in rest[:-1]:
            return _without_empty_words(rest[rest.index("-m") + 1]) or program
        script = next((each for each in rest if not each.startswith("-")), None)
        if script is not None:
            stem, parent = program_name(script).partition(".")[0], program_name(script.rpartition("/")[0])
            return _without_empty_words(stem) or _without_empty_words(parent) or stem or program
    return _without_empty_words(program.partition(".")[0]) or program


def _without_empty_words(name: str) -> str:
    """Return a name without words that every MCP server could have in its name."""
    words = re.split(r"[^A-Za-z0-9]+", name)
    return "-".join(word for word in words if word and word.lower() not in _EMPTY_WORDS)
