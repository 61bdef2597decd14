"""What a person or a file names to be run, as server blocks: command lines, and references such as npm:PACKAGE.

A command line starts with a launcher (npx, uvx, pipx, docker and the like), which names a package or an image with
arguments for the server (AIP-import-4). A bridge (mcp-remote, supergateway, mcp-proxy) only carries MCP to a remote
server, which is entered in its place (AIP-import-5). A command that is not understood for certain stays `binary`: a
guessed package name could be the package of somebody else.

A reference is what a person gives to `interlock add`: npm:PACKAGE, pypi:PACKAGE, docker:IMAGE, an address or a command.
"""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.kinds import SERVERS
from interlock.interop.protocol.model import ImportNote, ServerEntry, Transport, without_empty
from interlock.net.protocol.address_scope import LOOPBACK_HOSTS

_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?", re.ASCII)

# Options that every node sets itself, or that change nothing for it; also any mix of -i and -t.
OURS: Final = frozenset({"--interactive", "--rm", "--tty", "--init", "--quiet", "-q"})
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
    """Package, image or program that a command line starts.

    `server` is the block without env. `env` are variables that the command line sets, `passed` those that it passes on.
    """

    server: Mapping[str, Any]
    env: Mapping[str, str] = {}
    passed: tuple[str, ...] = ()
    notes: tuple[ImportNote, ...] = ()


def _classify_docker(args: list[str]) -> ClassifiedCommand | None:
    """Return the image of `docker run` and what it is given.

    Return None if an option is not known: whether it takes a value decides which word is the image.
    """
    at = 1 if args[:1] == ["run"] else 2 if args[:2] == ["container", "run"] else 0
    if not at:
        return None
    env: dict[str, str] = {}
    passed: list[str] = []
    volumes: list[str] = []
    dropped: list[str] = []
    while at < len(args) and args[at].startswith("-"):
        flag, equals, value = args[at].partition("=")
        at += 1
        if flag in OURS or re.fullmatch(r"-[it]+", flag):
            continue
        if flag in FLAGS:
            dropped.append(flag)
            continue
        if flag not in WITH_VALUE and flag[:2] in {"-e", "-v", "-p", "-u", "-w"} and len(flag) > 2:
            flag, equals, value = args[at - 1][:2], "=", args[at - 1][2:]  # -eKEY, -v/a:/b
        if flag not in WITH_VALUE:
            return None
        if not equals:
            if at >= len(args):
                return None
            value = args[at]
            at += 1
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
    if at >= len(args) or not _IMAGE.fullmatch(args[at]):
        return None
    server = without_empty({"kind": "docker", "image": args[at], "volumes": volumes, "args": args[at + 1 :]})
    message = f"docker options without a place in a driver: {', '.join(dict.fromkeys(dropped))}"
    note = ImportNote(code="docker_flag_dropped", text=message)
    return ClassifiedCommand(
        server=server, env=env, passed=tuple(dict.fromkeys(passed)), notes=(note,) if dropped else ()
    )


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

_REMOTE_SILENT = {"--debug", "--allow-http", "--enable-proxy", "--silent"}
_REMOTE_VALUED = {"--host", "--auth-timeout", "--resource", "--static-oauth-client-metadata", "--protocol"}
_REMOTE_TRANSPORTS: dict[str, Transport] = {
    "http-only": "http",
    "http-first": "http",
    "sse-only": "sse",
    "sse-first": "sse",
}
_GATEWAY_VALUED = {"--outputTransport", "--logLevel", "--healthEndpoint"}


class Unwrapped(msgspec.Struct, frozen=True, kw_only=True):
    """The remote server to which a bridge would connect."""

    url: str
    transport: Transport = "http"
    headers: Mapping[str, str] = {}
    used_env: frozenset[str] = frozenset()  # variables of the bridge that are now in headers


class _Unknown(Exception):
    """Error for an option whose meaning is not known here."""


def unwrap_bridge(server: Mapping[str, Any], env: Mapping[str, str]) -> Unwrapped | ImportNote | None:
    """Return the remote server behind a bridge, a Note that says why the bridge stays, or None if it is not a
    bridge.
    """
    carrier = {"mcp-remote": _mcp_remote, "supergateway": _supergateway, "mcp-proxy": _mcp_proxy}.get(
        _PIN.sub("", str(server.get("package", "")))
    )
    if carrier is None or server.get("kind") not in {"npm", "pypi"}:
        return None
    try:
        return carrier(list(server.get("args", ())), env)
    except _Unknown as unknown:
        return ImportNote(code="carrier_kept", text=f"it carries another server, and {unknown} is not known here")


def _mcp_remote(args: list[str], env: Mapping[str, str]) -> Unwrapped | None:
    if not args or not _ADDRESS.fullmatch(args[0]):
        return None
    headers: dict[str, str] = {}
    transport: Transport = "http"
    rest = args[1:]
    if rest and rest[0].isdigit():  # the port of its callback
        rest = rest[1:]
    while rest:
        flag = rest.pop(0)
        if flag == "--header":
            _add_header(headers, _value(flag, rest))
        elif flag == "--transport":
            chosen = _REMOTE_TRANSPORTS.get(_value(flag, rest))
            if chosen is None:
                raise _Unknown("its --transport")
            transport = chosen
        elif flag in _REMOTE_VALUED:
            _value(flag, rest)
        elif flag not in _REMOTE_SILENT:
            raise _Unknown(_describe(flag))
    return _with_variables(args[0], transport, headers, env)


def _supergateway(args: list[str], env: Mapping[str, str]) -> Unwrapped | None:
    headers: dict[str, str] = {}
    target: tuple[str, Transport] | None = None
    rest = list(args)
    while rest:
        flag = rest.pop(0)
        if flag in {"--sse", "--streamableHttp"}:
            target = (_value(flag, rest), "sse" if flag == "--sse" else "http")
        elif flag == "--header":
            _add_header(headers, _value(flag, rest))
        elif flag == "--oauth2Bearer":
            headers["Authorization"] = f"Bearer {_value(flag, rest)}"
        elif flag == "--stdio":
            return None  # serves a program to others
        elif flag in _GATEWAY_VALUED:
            if _value(flag, rest) != "stdio" and flag == "--outputTransport":
                return None
        else:
            raise _Unknown(_describe(flag))
    if target is None or not _ADDRESS.fullmatch(target[0]):
        return None
    return _with_variables(target[0], target[1], headers, env)


def _mcp_proxy(args: list[str], env: Mapping[str, str]) -> Unwrapped | None:
    headers: dict[str, str] = {}
    transport: Transport = "sse"  # its default
    url = None
    rest = list(args)
    while rest:
        flag = rest.pop(0)
        if flag in {"-H", "--headers"}:
            name = _value(flag, rest)
            headers[name] = _value(flag, rest)
        elif flag == "--transport":
            chosen = _value(flag, rest)
            if chosen not in {"sse", "streamablehttp"}:
                raise _Unknown("its --transport")
            transport = "sse" if chosen == "sse" else "http"
        elif flag in {"--debug", "--no-debug"}:
            continue
        elif flag in {"--client-id", "--client-secret", "--token-url"} or flag.startswith("-"):
            raise _Unknown(_describe(flag))
        elif url is None and _ADDRESS.fullmatch(flag):
            url = flag
        else:
            return None  # a program to serve
    if url is None:
        return None
    used = frozenset({"API_ACCESS_TOKEN"} & set(env))
    if used:
        headers.setdefault("Authorization", f"Bearer {env['API_ACCESS_TOKEN']}")
    unwrapped = _with_variables(url, transport, headers, env)
    return msgspec.structs.replace(unwrapped, used_env=unwrapped.used_env | used)


def _value(flag: str, rest: list[str]) -> str:
    if not rest:
        raise _Unknown(_describe(flag))
    return rest.pop(0)


def _describe(flag: str) -> str:
    return flag.partition("=")[0][:40] if flag.startswith("-") else "an argument"


def _add_header(headers: dict[str, str], written: str) -> None:
    match = _HEADER.fullmatch(written)
    if match is None:
        raise _Unknown("a header without a colon")
    headers[match["name"]] = match["value"]


def _with_variables(url: str, transport: Transport, headers: Mapping[str, str], env: Mapping[str, str]) -> Unwrapped:
    """Replace variables in the url and headers by their values in `env`.

    People write `Authorization:${AUTH}` because some clients split arguments at blanks.
    """
    used: set[str] = set()

    def filled(text: str) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] not in env:
                return match[0]
            used.add(match[1])
            return env[match[1]]

        return re.sub(r"\$\{([A-Za-z_]\w*)\}", value, text)

    return Unwrapped(
        url=filled(url),
        transport=transport,
        headers={name: filled(value) for name, value in headers.items()},
        used_env=frozenset(used),
    )


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
NPM_VERBS: Final = frozenset({("bun", "x"), ("pnpm", "dlx"), ("yarn", "dlx"), ("npm", "exec"), ("npm", "x")})
PIPX_QUIET: Final = frozenset({"--no-cache", "-q", "--quiet", "--verbose"})


_INTERPRETERS: Final = re.compile(r"node|deno|bun|python(?:[23](?:\.\d+)?)?|ruby|perl|java")


def program_name(path: str) -> str:
    r"""Return the name of a program without folder and extension: npx for C:\\Program Files\\nodejs\\npx.cmd."""
    return _EXTENSION.sub("", re.split(r"[/\\]", path.strip())[-1]).lower()


def is_interpreter(path: str) -> bool:
    """Return whether a program is the interpreter of a language, so that its first file argument is the program."""
    return program_name(path) in SHELLS or _INTERPRETERS.fullmatch(program_name(path)) is not None


def classify_command(command: tuple[str, ...]) -> ClassifiedCommand:
    """Return what a command line starts: a package, an image, or a program as it is."""
    command = _split_when_whole(command)
    command, env = _without_wrappers(command)
    if not command:
        return ClassifiedCommand(server={"kind": "binary", "path": ""})
    name, args = program_name(command[0]), list(command[1:])
    classified: ClassifiedCommand | None = None
    if name in {"npx", "bunx", "pnpx"}:
        classified = _classify_npm(args)
    elif (name, *args[:1]) in NPM_VERBS:
        classified = _classify_npm(args[1:])
    elif name == "uvx":
        classified = _classify_uvx(args)
    elif name == "uv" and args[:2] == ["tool", "run"]:
        classified = _classify_uvx(args[2:])
    elif name == "pipx" and args[:1] == ["run"]:
        classified = _classify_pipx(args[1:])
    elif name in {"docker", "podman"}:
        classified = _classify_docker(args)
    if classified is None:
        is_shell = name in SHELLS and any(each in {"-c", "-lc", "-ic", "-Command"} for each in args[:2])
        message = "a shell starts it: what runs inside is neither pinned nor checked"
        server = {"kind": "binary", "path": command[0]} | without_empty({"args": args})
        notes = (ImportNote(code="shell_wrapper", text=message),) if is_shell else ()
        classified = ClassifiedCommand(server=server, notes=notes)
    return msgspec.structs.replace(classified, env={**env, **classified.env})


def _split_when_whole(command: tuple[str, ...]) -> tuple[str, ...]:
    """Split a program that contains its arguments, such as "npx -y pkg"."""
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
            at = 1
            while at < len(command) and _DOS_SWITCH.fullmatch(command[at]):
                at += 1
            command = _split_when_whole(command[at:])
        elif name == "env" and _ASSIGNMENT.fullmatch(command[1]):
            at = 1
            while at < len(command) and (assigned := _ASSIGNMENT.fullmatch(command[at])):
                env[assigned["name"]] = assigned["value"]
                at += 1
            command = command[at:]
        else:
            break
    return command, env


def _block(kind: str, package: str, args: list[str], entry: str | None) -> dict[str, Any]:
    named = {"entry": entry} if entry is not None else {}
    return {"kind": kind, "package": package, **named, **without_empty({"args": args})}


def _classify_npm(args: list[str]) -> ClassifiedCommand | None:
    packages: list[str] = []
    while args:
        flag = args[0]
        if flag in NPX_QUIET:
            args = args[1:]
        elif flag in {"-p", "--package"} and len(args) > 1:
            packages.append(args[1])
            args = args[2:]
        elif flag.startswith("--package="):
            packages.append(flag.partition("=")[2])
            args = args[1:]
        elif flag == "--":
            args = args[1:]
            break
        elif flag.startswith("-"):
            return None
        else:
            break
    if not args or len(packages) > 1:
        return None
    package, entry = (packages[0], args[0]) if packages else (args[0], None)
    rest = args[1:]
    # npx hands on what follows the package, also after a `--` of its own.
    rest = rest[1:] if rest[:1] == ["--"] and entry is None else rest
    return ClassifiedCommand(server=_block("npm", package, rest, entry)) if _NPM.fullmatch(package) else None


def _classify_uvx(args: list[str]) -> ClassifiedCommand | None:
    source: str | None = None
    notes: list[ImportNote] = []
    while args and args[0].startswith("-"):
        flag, equals, value = args[0].partition("=")
        if flag == "--":
            args = args[1:]
            break
        if flag in UVX_QUIET:
            args = args[1:]
            continue
        if flag not in {"--from", *UVX_DROPPED} or (not equals and len(args) < 2):
            return None
        value = value if equals else args[1]
        args = args[1:] if equals else args[2:]
        if flag == "--from":
            source = value
        else:
            notes.append(ImportNote(code="flag_dropped", text=f"{flag} is not carried over"))
    return _classify_pypi(args, source, notes)


def _classify_pipx(args: list[str]) -> ClassifiedCommand | None:
    source: str | None = None
    while args and args[0].startswith("-"):
        flag, equals, value = args[0].partition("=")
        if flag in PIPX_QUIET:
            args = args[1:]
        elif flag == "--spec" and (equals or len(args) > 1):
            source = value if equals else args[1]
            args = args[1:] if equals else args[2:]
        else:
            return None
    return _classify_pypi(args, source, [])


def _classify_pypi(args: list[str], source: str | None, notes: list[ImportNote]) -> ClassifiedCommand | None:
    if not args:
        return None
    named = _PYPI.fullmatch(source or args[0])
    if named is None:
        return None
    version = named["version"]
    package = named["name"] if version in {None, "latest"} else f"{named['name']}=={version}"
    rest = args[1:]
    rest = rest[1:] if rest[:1] == ["--"] and source is None else rest
    entry = args[0] if source is not None and args[0] != named["name"].partition("[")[0] else None
    return ClassifiedCommand(server=_block("pypi", package, rest, entry), notes=tuple(notes))


PROGRAM = "interlock"


def is_own(entry: ServerEntry, addresses: Collection[str]) -> bool:
    """Return whether an entry is an Interlock node. `addresses` are the URLs of own nodes, without paths."""
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
    passed: Sequence[str] = (),
    secret_variables: Sequence[str] = (),
    headers: Mapping[str, str] = MappingProxyType({}),
    egress: Sequence[str] = (),
) -> ServerEntry:
    """Return the entry for a reference, or for the command in `args` if `reference` is empty.

    `passed` are variables of the environment. `secret_variables` are variables whose values are stored as secrets.
    Raise UnknownReference if the reference names nothing to install or run.
    """
    name, how = _read_reference(reference, tuple(args))
    return ServerEntry(
        name=name,
        env=dict(env),
        env_passed=tuple(passed),
        env_unset=tuple(secret_variables),
        headers=dict(headers),
        egress=tuple(egress),
        **how,
    )


def _read_reference(reference: str, args: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return the name of the server, and the fields of its entry that say what it is."""
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
    raise UnknownReference(
        f"{reference} is not npm:PACKAGE, pypi:PACKAGE, docker:IMAGE, https://…, ./program or a draft; "
        "a command goes after --"
    )


def name_of_package(kind: str, named: str) -> str:
    """Return a short name for a package: filesystem for @modelcontextprotocol/server-filesystem."""
    scope, last = PACKAGED[kind].name_parts(named)
    return _without_empty_words(last) or _without_empty_words(scope) or last


def name_of_address(address: str) -> str:
    """Return a short name for an address: linear for https://mcp.linear.app/mcp.

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
