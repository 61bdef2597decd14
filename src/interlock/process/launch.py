"""What a child process is started with: its environment and its program. Refusals name what to repair."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

# fmt: off
INHERITED = frozenset({
    "PATH", "HOME", "LANG", "TZ", "TMPDIR", "TERM", "USER", "LOGNAME", "SHELL", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SYSTEMROOT",
})
# fmt: on
INHERITED_PREFIX = "LC_"
RESERVED_PREFIX = "INTERLOCK_"

_INTERPRETER = re.compile(
    r"(?:python|pypy)[\d.]*|node|nodejs|bun|deno|tsx|ts-node|uv|ruby|perl|php|lua|java|sh|bash|dash|zsh", re.ASCII
)
_SCRIPT_SUFFIXES = (".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".rb", ".pl", ".php", ".lua", ".jar", ".sh")
_CODE_FOLLOWS = frozenset({"-m", "-c", "-e", "-p", "--eval", "--print", "--"})  # what comes is no path, or the script's


class ChildStartFailed(Exception):
    """The child could not be started; the message says what to repair."""


def child_environment(declared: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a child: a few harmless variables of the node's and what was declared for it."""
    reserved = sorted(name for name in declared if name.startswith(RESERVED_PREFIX))
    if reserved:
        raise ChildStartFailed(
            f"{', '.join(reserved)}: names that start with {RESERVED_PREFIX} are the node's own and reach no server; "
            "remove it from env"
        )
    kept = {
        name: value
        for name, value in inherited.items()
        # A value that starts with "()" is a function some shells export, and would be code in the child's shell.
        if (name in INHERITED or name.startswith(INHERITED_PREFIX)) and not value.startswith("()")
    }
    return kept | dict(declared)


def program(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> str:
    """The file to run for `argv`. Refuses what no loop or not every loop would refuse clearly."""
    if not argv or not argv[0]:
        raise ChildStartFailed("no command is given; name the program to run")
    # uvloop would cut the text at the NUL and run something else.
    if any("\0" in text for text in (*argv, *env, *env.values())):
        raise ChildStartFailed("a NUL character in command or env; remove it")
    if any(not name or "=" in name for name in env):
        raise ChildStartFailed("a name in env is empty or holds '='; correct it")
    if cwd is not None and not cwd.is_dir():
        raise ChildStartFailed(f"{cwd} is not a folder; correct cwd or make it")
    if os.sep in argv[0]:
        return argv[0]
    found = shutil.which(argv[0], path=env.get("PATH", os.defpath))
    if found is None:
        raise ChildStartFailed(f"no program {argv[0]!r} on the PATH of the server; install it or give its full path")
    return found


def missing_script(argv: Sequence[str], cwd: Path | None) -> Path | None:
    """The script that an interpreter is told to run, if it is not there."""
    script = maybe_script(argv, cwd)
    return None if script is None or script.exists() else script


def maybe_script(argv: Sequence[str], cwd: Path | None) -> Path | None:
    """The script that an interpreter is told to run: `python3 server.py`, `uv run server.py`."""
    if _INTERPRETER.fullmatch(Path(argv[0]).name) is None:
        return None
    for argument in argv[1:]:
        if argument in _CODE_FOLLOWS or "://" in argument:
            return None
        if argument.endswith(_SCRIPT_SUFFIXES):
            return (cwd or Path()) / argument
    return None
