"""Programs of servers: the files that decide what a server does when it is started next.

A sandboxed server that could write the program of another one would be in no sandbox for long.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from interlock.config.plan import ServerPlan, Spawn
from interlock.process.launch import maybe_script
from interlock.process.sandbox.program_files import module_path


class ServerProgram(msgspec.Struct, frozen=True):
    segment: str
    path: Path


def server_programs(servers: Iterable[ServerPlan]) -> Iterator[ServerProgram]:
    for server in servers:
        if isinstance(server.reach, Spawn):
            for path in _programs(server.reach):
                yield ServerProgram(server.segment, path)


def _programs(reach: Spawn) -> Iterator[Path]:
    """The program and its script, by their names and by what links make of them."""
    if reach.package is not None or not reach.command:
        return  # it lies in the data folder, which no sandbox shows
    search = reach.env.get("PATH", os.environ.get("PATH", os.defpath))
    program = reach.command[0] if os.sep in reach.command[0] else shutil.which(reach.command[0], path=search)
    cwd = reach.cwd or (reach.sandbox.home if reach.sandbox is not None else Path())
    named = (None if program is None else cwd / program, maybe_script(reach.command, cwd), _maybe_module(reach, cwd))
    for path in named:
        if path is not None and path.exists():
            yield Path(os.path.realpath(path.parent)) / path.name
            yield Path(os.path.realpath(path))


def _maybe_module(reach: Spawn, cwd: Path) -> Path | None:
    """`python -m NAME`, where NAME lies in the folder it is started in."""
    words = reach.command
    if "-m" not in words[1:-1]:
        return None
    top = module_path(words[words.index("-m") + 1], cwd)
    return top if top.is_dir() else top.with_name(f"{top.name}.py")
