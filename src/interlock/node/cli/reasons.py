"""Reasons that many things share: one line for each, with how many there are and the first of their names."""

from collections.abc import Iterable

from interlock.cli.terminal.text import count, one_line

NAMES_SHOWN = 3


def grouped_reasons(found: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """(reason, name) by reason; the reason that most share first."""
    by_reason: dict[str, list[str]] = {}
    for reason, name in found:
        by_reason.setdefault(reason, []).append(name)
    return dict(sorted(by_reason.items(), key=lambda each: -len(each[1])))


def named_few(names: list[str], noun: str) -> str:
    """One by its name; of several the number and the first names."""
    if len(names) == 1:
        return one_line(names[0])
    shown = ", ".join(map(one_line, names[:NAMES_SHOWN]))
    return f"{count(len(names), noun)} ({shown}{', ...' if len(names) > NAMES_SHOWN else ''})"
