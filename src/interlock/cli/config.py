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
    """Read the configuration that the command names. `lenient` is passed to `load`. Raise ConfigInvalid."""
    from interlock.config.load import load

    path = Path(invocation.config) if invocation.config else None
    flags = {**(set_by_flags or {}), **({"data": invocation.data} if invocation.data else {})}
    return load(path, os.environ, flags, starting=starting, lenient=lenient)


def load_configuration(
    invocation: "Invocation", *, starting: bool, set_by_flags: "Mapping[str, str] | None" = None
) -> "Loaded":
    """Read the configuration. Raise Refused with the first problem and the number of other problems."""
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
    """Return the data folder of a running node, read from a configuration that may be invalid. Return None if no
    node runs there.
    """
    from interlock.config.folders import data_folder
    from interlock.config.load import FILE_NAME

    path = Path(invocation.config or os.environ.get("INTERLOCK_CONFIG") or FILE_NAME).expanduser()
    try:
        match = _DATA.search(path.read_text("utf-8", "replace"))
    except OSError:
        match = None
    folder = path.parent / Path(match[1]).expanduser() if match is not None else data_folder(os.environ)
    return folder.absolute() if (folder / "run" / "admin.sock").exists() else None


def at_place(problem: "Problem") -> str:
    """Return `file:line:column: `, a form that editors and terminals recognise, or an empty text."""
    place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part is not None)
    return f"{place}: " if place else ""


def problem_value(problem: "Problem") -> dict[str, object]:
    fields: dict[str, object] = {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "key": problem.key,
        "message": problem.message,
        "hint": problem.hint,
    }
    return fields if problem.code is None else fields | {"code": problem.code}
