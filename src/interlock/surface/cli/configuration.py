"""The configuration as a command gets it: the flags every verb takes, applied, and problems as a refusal."""

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from interlock.surface.cli.failures import Refused

if TYPE_CHECKING:
    from interlock.config.load import Loaded, Problem
    from interlock.surface.cli.command import Invocation


def read_configuration(invocation: "Invocation", *, starting: bool = True) -> "Loaded":
    """Raises ConfigInvalid."""
    from interlock.config.load import load

    path = Path(invocation.config) if invocation.config else None
    flags = {"data": invocation.data} if invocation.data else {}
    return load(path, os.environ, flags, starting=starting)


def load_configuration(invocation: "Invocation", *, starting: bool) -> "Loaded":
    """Raises Refused, with the first problem and how many more there are."""
    from interlock.config.load import ConfigInvalid

    try:
        return read_configuration(invocation, starting=starting)
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


def at_place(problem: "Problem") -> str:
    """file:line:column, as editors and terminals understand it."""
    place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part is not None)
    return f"{place}: " if place else ""


def problem_value(problem: "Problem") -> dict[str, object]:
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "key": problem.key,
        "message": problem.message,
        "hint": problem.hint,
    }
