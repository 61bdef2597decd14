"""Command lines as server blocks: which launcher, which package, which arguments for the server (AIP-import-4).

Launchers are npx, uvx, pipx, docker and the like. Bridges (mcp-remote, supergateway, mcp-proxy) only carry MCP to a
remote server, which is entered in their place (AIP-import-5). A command that is not understood for certain stays
`binary`: a guessed package name could be the package of somebody else.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.interop.protocol.model import ImportNote, ServerEntry, Transport
from interlock.net.protocol.address_scope import LOCALHOST, LOOPBACK_ADDRESSES

# The command line of `docker run` (and podman's): the image, what it is given, and options with no place in a driver.
#
# Returns None where an option is not known: whether it takes a value decides which word is the image.

_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?", re.ASCII)

OURS: Final = frozenset({"-i", "--interactive", "--rm", "-t", "--tty", "--init", "-it", "-ti", "--quiet", "-q"})
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


class DockerRun(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    passed: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def docker_run(args: list[str]) -> DockerRun | None:
    env: dict[str, str] = {}
    passed: list[str] = []
    volumes: list[str] = []
    dropped: list[str] = []
    at = 0
    while at < len(args) and args[at].startswith("-"):
        flag, equals, value = args[at].partition("=")
        at += 1
        if flag in OURS or _all_ours(flag):
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
        elif flag == "--mount" and (volume := _bind(value)) is not None:
            volumes.append(volume)
        elif flag not in HARMLESS:
            # Names of networks and limits say what was meant; a label or an entry point may hold anything.
            dropped.append(f"{flag} {value}" if flag in {"--network", "--net", "--pid", "--ipc", "--userns"} else flag)
    if at >= len(args) or not _IMAGE.fullmatch(args[at]):
        return None
    return DockerRun(
        image=args[at],
        args=tuple(args[at + 1 :]),
        env=env,
        passed=tuple(dict.fromkeys(passed)),
        volumes=tuple(volumes),
        dropped=tuple(dict.fromkeys(dropped)),
    )


def _all_ours(flag: str) -> bool:
    return re.fullmatch(r"-[itd]+", flag) is not None and "d" not in flag


def _bind(value: str) -> str | None:
    """Convert type=bind,src=/a,dst=/b,readonly to /a:/b:ro. Return None if it is not a bind mount."""
    parts = dict(each.partition("=")[::2] for each in value.split(","))
    source = parts.get("src", parts.get("source"))
    target = parts.get("dst", parts.get("target", parts.get("destination")))
    if parts.get("type") != "bind" or not source or not target:
        return None
    return f"{source}:{target}" + (":ro" if "readonly" in parts or "ro" in parts else "")


# Programs that only carry MCP to a remote server, seen through: mcp-remote, supergateway, mcp-proxy (AIP-import-5).
#
# In comes the server block of the carrier, out the address and headers it would dial; None leaves it a program,
# because
# it is no carrier, serves instead of dialling, or has an option whose meaning is not known here.

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
    url: str
    transport: Transport = "http"
    headers: Mapping[str, str] = {}
    used_env: frozenset[str] = frozenset()  # the carrier's own variables, now in headers
    notes: tuple[ImportNote, ...] = ()


class _Unknown(Exception):
    """An option that is not known here."""


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


class ClassifiedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """`server`: the block without env. `env`: what the command line itself sets; `passed`: what it hands on."""

    server: Mapping[str, Any]
    env: Mapping[str, str] = {}
    passed: tuple[str, ...] = ()
    notes: tuple[ImportNote, ...] = ()


def program_name(path: str) -> str:
    r"""Return the name of a program without folder and extension: npx for C:\\Program Files\\nodejs\\npx.cmd."""
    return _EXTENSION.sub("", re.split(r"[/\\]", path.strip())[-1]).lower()


def is_interpreter(path: str) -> bool:
    """Return whether a program is the interpreter of a language, so that its first file argument is the program."""
    return program_name(path) in SHELLS or _INTERPRETERS.fullmatch(program_name(path)) is not None


def classify_command(command: tuple[str, ...]) -> ClassifiedCommand:
    command = _split_when_whole(command)
    command, env = _without_wrappers(command)
    if not command:
        return ClassifiedCommand(server={"kind": "binary", "path": ""})
    name, args = program_name(command[0]), list(command[1:])
    classified: ClassifiedCommand | None = None
    if name in {"npx", "bunx", "pnpx"}:
        classified = _npm(args)
    elif (name, *args[:1]) in NPM_VERBS:
        classified = _npm(args[1:])
    elif name == "uvx":
        classified = _uvx(args)
    elif name == "uv" and args[:2] == ["tool", "run"]:
        classified = _uvx(args[2:])
    elif name == "pipx" and args[:1] == ["run"]:
        classified = _pipx(args[1:])
    elif name in {"docker", "podman"}:
        classified = _docker(args)
    if classified is None:
        classified = _binary(command)
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


def _binary(command: tuple[str, ...], *notes: ImportNote) -> ClassifiedCommand:
    all_notes = list(notes)
    if program_name(command[0]) in SHELLS and any(each in {"-c", "-lc", "-ic", "-Command"} for each in command[1:3]):
        all_notes.append(
            ImportNote(code="shell_wrapper", text="a shell starts it: what runs inside is neither pinned nor checked")
        )
    server: dict[str, Any] = {"kind": "binary", "path": command[0]}
    server |= {"args": list(command[1:])} if len(command) > 1 else {}
    return ClassifiedCommand(server=server, notes=tuple(all_notes))


def _block(kind: str, package: str, args: list[str], entry: str | None = None) -> dict[str, Any]:
    block: dict[str, Any] = {"kind": kind, "package": package}
    block |= {"entry": entry} if entry is not None else {}
    return block | ({"args": args} if args else {})


def _npm(args: list[str]) -> ClassifiedCommand | None:
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


def _uvx(args: list[str]) -> ClassifiedCommand | None:
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
    return _pypi(args, source, notes)


def _pipx(args: list[str]) -> ClassifiedCommand | None:
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
    return _pypi(args, source, [])


def _pypi(args: list[str], source: str | None, notes: list[ImportNote]) -> ClassifiedCommand | None:
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


def _docker(args: list[str]) -> ClassifiedCommand | None:
    at = 1 if args[:1] == ["run"] else 2 if args[:2] == ["container", "run"] else 0
    run = docker_run(args[at:]) if at else None
    if run is None:
        return None
    server: dict[str, Any] = {"kind": "docker", "image": run.image}
    server |= {"volumes": list(run.volumes)} if run.volumes else {}
    server |= {"args": list(run.args)} if run.args else {}
    message = f"docker options without a place in a driver: {', '.join(run.dropped)}"
    note = ImportNote(code="docker_flag_dropped", text=message)
    return ClassifiedCommand(server=server, env=run.env, passed=run.passed, notes=(note,) if run.dropped else ())


# Is an entry Interlock itself? A client that was pointed at a node must not be imported into it (AIP-export-1).

PROGRAM = "interlock"


def is_own(entry: ServerEntry, addresses: Collection[str]) -> bool:
    """Return whether an entry is an Interlock node. `addresses` are the URLs of own nodes, without paths."""
    if entry.url is not None:
        return _same(entry.url, addresses)
    if entry.server is not None or not entry.command:
        return False
    if "serve" in entry.command and _starts_us(entry.command):
        return True
    carried = unwrap_bridge(classify_command(entry.command).server, entry.env)
    return isinstance(carried, Unwrapped) and _same(carried.url, addresses)


def _starts_us(command: tuple[str, ...]) -> bool:
    server = classify_command(command).server
    if program_name(command[0]) == PROGRAM or server.get("package", "").partition("==")[0] == PROGRAM:
        return True
    module = [index for index, each in enumerate(command[:-1]) if each == "-m"]
    return any(command[index + 1] == PROGRAM for index in module)


def _same(url: str, addresses: Collection[str]) -> bool:
    try:
        target = urlsplit(url)
        candidates = [urlsplit(each) for each in addresses]
        return any(
            _host(each.hostname) == _host(target.hostname) and each.port == target.port and each.scheme == target.scheme
            for each in candidates
        )
    except ValueError:
        return False


def _host(name: str | None) -> str | None:
    return LOCALHOST if name in LOOPBACK_ADDRESSES else name
