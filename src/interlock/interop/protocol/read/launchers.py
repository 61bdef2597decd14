"""A command line as a server block: which launcher, which package, what is left for the server (AIP-import-4).

What cannot be told for certain stays `binary`: a package name that was guessed could be somebody else's package.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.interop.protocol.model import Note
from interlock.interop.protocol.read.docker_run import docker_run

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


class Classified(msgspec.Struct, frozen=True, kw_only=True):
    """`server`: the block without env. `env`: what the command line itself sets; `passed`: what it hands on."""

    server: Mapping[str, Any]
    env: Mapping[str, str] = {}
    passed: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def program_name(path: str) -> str:
    """npx of C:\\Program Files\\nodejs\\npx.cmd and of /usr/local/bin/npx."""
    return _EXTENSION.sub("", re.split(r"[/\\]", path.strip())[-1]).lower()


def is_interpreter(path: str) -> bool:
    """Of a language: the first file it is given is the program."""
    return program_name(path) in SHELLS or _INTERPRETERS.fullmatch(program_name(path)) is not None


def classify_command(command: tuple[str, ...]) -> Classified:
    command = _split_when_whole(command)
    command, env = _without_wrappers(command)
    if not command:
        return Classified(server={"kind": "binary", "path": ""})
    name, args = program_name(command[0]), list(command[1:])
    found: Classified | None = None
    if name in {"npx", "bunx", "pnpx"}:
        found = _npm(args)
    elif (name, *args[:1]) in NPM_VERBS:
        found = _npm(args[1:])
    elif name == "uvx":
        found = _uvx(args)
    elif name == "uv" and args[:2] == ["tool", "run"]:
        found = _uvx(args[2:])
    elif name == "pipx" and args[:1] == ["run"]:
        found = _pipx(args[1:])
    elif name in {"docker", "podman"}:
        found = _docker(args)
    if found is None:
        found = _binary(command)
    return msgspec.structs.replace(found, env={**env, **found.env})


def _split_when_whole(command: tuple[str, ...]) -> tuple[str, ...]:
    """ "npx -y pkg" in the place of the program, as some people write it."""
    if not command:
        return command
    first = command[0].split()
    if len(first) > 1 and first[0] in {"npx", "uvx", "bunx", "docker", "podman", "pipx", "uv", "node", "python"}:
        return (*first, *command[1:])
    return command


def _without_wrappers(command: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Without `cmd /c` and `env K=V`, which start another program and nothing more."""
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


def _binary(command: tuple[str, ...], *notes: Note) -> Classified:
    said = list(notes)
    if program_name(command[0]) in SHELLS and any(each in {"-c", "-lc", "-ic", "-Command"} for each in command[1:3]):
        said.append(
            Note(code="shell_wrapper", text="a shell starts it: what runs inside is neither pinned nor checked")
        )
    server: dict[str, Any] = {"kind": "binary", "path": command[0]}
    server |= {"args": list(command[1:])} if len(command) > 1 else {}
    return Classified(server=server, notes=tuple(said))


def _block(kind: str, package: str, args: list[str], entry: str | None = None) -> dict[str, Any]:
    block: dict[str, Any] = {"kind": kind, "package": package}
    block |= {"entry": entry} if entry is not None else {}
    return block | ({"args": args} if args else {})


def _npm(args: list[str]) -> Classified | None:
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
    return Classified(server=_block("npm", package, rest, entry)) if _NPM.fullmatch(package) else None


def _uvx(args: list[str]) -> Classified | None:
    source: str | None = None
    notes: list[Note] = []
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
            notes.append(Note(code="flag_dropped", text=f"{flag} is not carried over"))
    return _pypi(args, source, notes)


def _pipx(args: list[str]) -> Classified | None:
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


def _pypi(args: list[str], source: str | None, notes: list[Note]) -> Classified | None:
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
    return Classified(server=_block("pypi", package, rest, entry), notes=tuple(notes))


def _docker(args: list[str]) -> Classified | None:
    at = 1 if args[:1] == ["run"] else 2 if args[:2] == ["container", "run"] else 0
    run = docker_run(args[at:]) if at else None
    if run is None:
        return None
    server: dict[str, Any] = {"kind": "docker", "image": run.image}
    server |= {"volumes": list(run.volumes)} if run.volumes else {}
    server |= {"args": list(run.args)} if run.args else {}
    said = f"docker options without a place in a driver: {', '.join(run.dropped)}"
    note = Note(code="docker_flag_dropped", text=said)
    return Classified(server=server, env=run.env, passed=run.passed, notes=(note,) if run.dropped else ())
