"""Can every command that Interlock suggests be run as it is written, and does it help where it is suggested?"""

import re
from typing import Any

import pytest
import typer
from tests.cli.suggestions import FIELD, Suggestion, command_sources, examples, resolve, suggestions

PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_@:/.-]*")


def complaint(one: Suggestion) -> str | None:
    """What the program's own parser says against these words."""
    path, command, rest = resolve(one.words)
    if command is None and rest == ("--help",):
        return None
    if command is None:
        return f"there is no such verb: {' '.join(rest[:1]) or 'one is missing'}"
    arguments = [word.replace(FIELD, "1") for word in rest]
    try:
        command.make_context(" ".join(path), arguments, resilient_parsing=False)
    except typer.TyperException as wrong:
        open_ones = any(FIELD in word or PLACEHOLDER.fullmatch(word) for word in rest)
        is_filled_in = type(wrong).__name__ == "BadParameter" and open_ones
        return None if is_filled_in else wrong.format_message()
    except typer.Exit:  # --help
        return None
    return None


def faults(found: tuple[Suggestion, ...]) -> list[str]:
    said: list[tuple[Suggestion, Any]] = [(one, complaint(one)) for one in found]
    return [f"{one.place}: {one}: {what}" for one, what in said if what is not None]


def test_every_suggested_command_is_complete() -> None:
    assert len(suggestions()) > 80
    assert faults(suggestions()) == []


def test_every_example_of_a_help_text_or_page_is_complete() -> None:
    assert len(examples()) > 120
    assert faults(examples()) == []


def test_every_command_on_stdout_is_written_as_it_is_typed_there() -> None:
    """In a checkout the program is ./interlock."""
    raw = re.compile(r"""\bline\(\s*f?["'][^\n]*\binterlock [a-z]""")
    found = [f"{path.name}: {each.group()}" for path in command_sources() for each in raw.finditer(path.read_text())]
    assert [one for one in found if not one.startswith("version.py")] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("explian", "CODE"), "no such verb"),
        (("access",), "no such verb"),
        (("access", "token", "--for", "client"), "--name"),
        (("drivers", "show"), "missing argument"),
        (("status", "--wach"), "--wach"),
        (("access", "token", "--for", "burglar", "--name", "x"), "burglar"),
    ],
)
def test_a_wrong_suggestion_is_found(words: tuple[str, ...], said: str) -> None:
    assert said in (complaint(Suggestion("here", words)) or "").lower()
