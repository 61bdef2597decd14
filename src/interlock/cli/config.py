"""The configuration as a command gets it: the flags every verb takes, applied, and problems as a refusal."""

import os
import re
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from interlock.cli.command import Invocation
    from interlock.config.load import Loaded, Problem

_DATA: Final = re.compile(r"""^data\s*=\s*["'](.+?)["']""", re.MULTILINE)


def read_configuration(
    invocation: "Invocation",
    *,
    starting: bool = True,
    set_by_flags: "Mapping[str, str] | None" = None,
    lenient: bool = False,
) -> "Loaded":
    """`lenient`: as of `load`. Raises ConfigInvalid."""
    from interlock.config.load import load

    path = Path(invocation.config) if invocation.config else None
    flags = {**(set_by_flags or {}), **({"data": invocation.data} if invocation.data else {})}
    return load(path, os.environ, flags, starting=starting, lenient=lenient)


def load_configuration(
    invocation: "Invocation", *, starting: bool, set_by_flags: "Mapping[str, str] | None" = None
) -> "Loaded":
    """Raises Refused, with the first problem and how many more there are."""
    from interlock.config.load import ConfigInvalid

    try:
        return read_configuration(invocation, starting=starting, set_by_flags=set_by_flags, lenient=True)
    except ConfigInvalid as invalid:
        first, *rest = invalid.problems
        more = f" (and {len(rest)} more)" if rest else ""
        named = f" {quote(invocation.config)}" if invocation.config else ""
        raise Refused(
            "config_invalid",
            f"{at_place(first)}{first.message}{more}",
            hint=first.hint if first.hint and not rest else f"interlock check{named} shows every problem",
            details={"problems": [problem_value(problem) for problem in invalid.problems]},
        ) from None


def maybe_running_folder(invocation: "Invocation") -> Path | None:
    """The data folder of a node that runs, as far as a configuration tells it that cannot be used; None without one."""
    from interlock.config.folders import data_folder
    from interlock.config.load import FILE_NAME

    path = Path(invocation.config or os.environ.get("INTERLOCK_CONFIG") or FILE_NAME).expanduser()
    try:
        found = _DATA.search(path.read_text("utf-8", "replace"))
    except OSError:
        found = None
    folder = path.parent / Path(found[1]).expanduser() if found is not None else data_folder(os.environ)
    return folder.absolute() if (folder / "run" / "admin.sock").exists() else None


def at_place(problem: "Problem") -> str:
    """file:line:column, as editors and terminals understand it."""
    place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part is not None)
    return f"{place}: " if place else ""


def problem_value(problem: "Problem") -> dict[str, object]:
    made: dict[str, object] = {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "key": problem.key,
        "message": problem.message,
        "hint": problem.hint,
    }
    return made if problem.code is None else made | {"code": problem.code}
