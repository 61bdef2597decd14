"""Every command that Interlock tells a person to run, collected from its sources and pages.

Nothing has to be registered: a text that names `interlock` and a verb is a suggestion. In prose the command goes as far
as its words can only be arguments: options with their values, placeholders (SEGMENT), fields of an f-string, and what
looks like no English word (`files.*`, `npm:PACKAGE`). It ends at the first plain word, or behind a comma. In examples
and in the code of a page the whole line is the command.
"""

import ast
import functools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from typer.main import get_command

from interlock.cli.app import OTHER_NUMBER, app

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "interlock"
GENERATED = {"commands.md", "conformance.md", "conformance-suite.md", "operator-api.md"}

FIELD = "\x00"  # what an f-string fills in
_CALLED = re.compile(r"(?<![\w./:@-])interlock (?=[a-z])")
_WORD = re.compile(r"[a-z][a-z']*")  # what may be prose
_AFTER = "`<\n"  # where a command ends, whatever follows
_PROSE = {"in", "of", "record", "is", "serves", "runs"}  # behind the name of the program, where no verb is meant
_ADDED = re.compile(r'" \+ [\w.]+(?:\([\w.]*\))?(?: \+ ")?')  # what a script puts between two strings
_SHOWN_SECTION = re.compile(r"^ *(?:Keys|Members):$", re.MULTILINE)  # of a docstring: help and pages show it
_SHELL = ("|", "<", ">", ">>", "&&", "#", ";")


class Suggestion(NamedTuple):
    place: str
    words: tuple[str, ...]  # behind `interlock`; FIELD where something is filled in

    def __str__(self) -> str:
        return " ".join(("interlock", *self.words)).replace(FIELD, "{}")

    @property
    def skeleton(self) -> str:
        """The verb and its options, without values: one of several alike is enough to run."""
        path, _, rest = resolve(self.words)
        options = sorted({word.partition("=")[0] for word in rest if word.startswith("-") and len(word) > 1})
        return " ".join((*path, *options))


@functools.cache
def suggestions() -> tuple[Suggestion, ...]:
    """Those of messages, pages and `explain`."""
    found = [one for path in sorted(SOURCES.rglob("*.py")) for one in _of_module(path)]
    codes = tomllib.loads((SOURCES / "cli/codes.toml").read_text(encoding="utf-8"))
    for code in (code for edge in codes["edge"] for code in edge["code"]):
        for text in (code["means"], code["next"]):
            found += _of_prose(f"codes.toml: {code['name']}", text)
    for path in sorted(SOURCES.rglob("*.js")):
        joined = _ADDED.sub(FIELD, path.read_text(encoding="utf-8"))
        found += _of_prose(_name(path), joined)
    return tuple(found)


def command_sources() -> list[Path]:
    """Return the modules of the command line: the program's own, and every capability's `cli`."""
    modules = sorted(SOURCES.rglob("*.py"))
    return [path for path in modules if {"cli", "cli.py"} & set(path.relative_to(SOURCES).parts)]


@functools.cache
def examples() -> tuple[Suggestion, ...]:
    """Those of help texts and of the documentation."""
    found = [one for path in command_sources() for one in _of_examples(path)]
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if path.name not in GENERATED:
            found += _of_page(path)
    return tuple(found)


def resolve(words: tuple[str, ...]) -> tuple[tuple[str, ...], Any, tuple[str, ...]]:
    """The path of the command, the command, and its arguments. The command is None where there is none such."""
    path: tuple[str, ...] = ()
    rest = list(words)
    while rest and hasattr(_command(path), "commands"):
        name = OTHER_NUMBER.get(rest[0], rest[0]) if not path else rest[0]
        if _command((*path, name)) is None:
            break
        path, rest = (*path, name), rest[1:]
    found = _command(path)
    return path, (None if hasattr(found, "commands") else found), tuple(rest)


@functools.cache
def _command(path: tuple[str, ...]) -> Any:
    if not path:
        return get_command(app)
    above = _command(path[:-1])
    return above.get_command(None, path[-1]) if hasattr(above, "commands") else None


def _of_module(path: Path) -> Iterator[Suggestion]:
    source = path.read_text(encoding="utf-8")
    if "interlock " not in source:  # most modules; parsing them all would slow down every collection of tests
        return
    tree = ast.parse(source)
    docstrings = _docstrings(tree)
    left_out = set(_example_nodes(tree)) | _parts_of_joined(tree)
    for node in ast.walk(tree):
        text = _text(node) if node not in left_out else None
        if text is not None and node in docstrings:
            text = "".join(_SHOWN_SECTION.split(text)[1:])
        if text is not None and "interlock " in text:
            yield from _of_prose(f"{_name(path)}:{node.lineno}", text)  # type: ignore[attr-defined]


def _of_examples(path: Path) -> Iterator[Suggestion]:
    for node in _example_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        for line in (_text(node) or "").splitlines():
            if line.strip().startswith("interlock "):
                yield Suggestion(f"{_name(path)}:{node.lineno}", _whole(line.strip()))


def _of_page(path: Path) -> Iterator[Suggestion]:
    is_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        place = f"{path.name}:{number}"
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif is_code:
            command = line.strip().removeprefix("$ ").rpartition("&& ")[2]
            if command.startswith("interlock "):
                yield Suggestion(place, _whole(re.split(r"\s{2,}", command)[0]))
        else:
            for inner in re.findall(r"`(interlock [a-z][^`]*)`", line):
                if len(resolve(words := _whole(inner))[2]):  # a verb alone is named, not suggested
                    yield Suggestion(place, words)


def _of_prose(place: str, text: str) -> Iterator[Suggestion]:
    for called in _CALLED.finditer(text):
        words = tuple(_taken(text[called.end() :]))
        if words and words[0] not in _PROSE:
            yield Suggestion(place, words)


def _taken(text: str) -> Iterator[str]:
    """The words of the command at the start of this text."""
    end = min((text.find(mark) for mark in _AFTER if mark in text), default=len(text))
    before: list[str] = []
    wants_value = False
    for word in text[:end].split(" "):
        plain = word.rstrip(".,:;)'\"").lstrip("('\"")
        is_name = _names_command(tuple(before), plain.rstrip(FIELD) if before == [] else plain)
        if not plain or (_WORD.fullmatch(plain) and not is_name and not wants_value):
            return
        # A field right behind a word holds further options.
        taken = plain.rstrip(FIELD) if plain != FIELD and not plain.startswith("-") else plain
        taken = taken.rstrip(FIELD) if taken.startswith("--") and "=" not in taken else taken
        before.append(taken)
        yield taken
        wants_value = taken.startswith("--") and _takes_value(tuple(before), taken)
        if word[-1:] in ".,:;)'\"":
            return


def _names_command(before: tuple[str, ...], word: str) -> bool:
    if not before:
        return True
    _, command, rest = resolve(before)
    if command is not None:  # `approvals` takes `show ID`
        return any(word in (param.metavar or "").split() for param in command.params)
    return not rest and resolve((*before, word))[2] == ()


def _takes_value(words: tuple[str, ...], option: str) -> bool:
    _, command, _ = resolve(words)
    params = command.params if command is not None else ()
    return any(option in param.opts and not param.is_flag for param in params if hasattr(param, "is_flag"))


def _whole(line: str) -> tuple[str, ...]:
    words = []
    for word in shlex.split(line.replace("...)", "").rstrip(")"))[1:]:
        if word in _SHELL:
            break
        words.append(word)
    return tuple(words)


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or FIELD for part in node.values)
    return None


def _parts_of_joined(tree: ast.AST) -> set[ast.AST]:
    return {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}


def _docstrings(tree: ast.AST) -> set[ast.AST]:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, holders)]
    return {body[0].value for body in bodies if body and isinstance(body[0], ast.Expr)}


def _example_nodes(tree: ast.AST) -> Iterator[Any]:
    """Yield the texts that hold examples: the argument `examples`, and docstrings of verbs with such a section."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    yield from (keyword.value for call in calls for keyword in call.keywords if keyword.arg == "examples")
    yield from (node for node in _docstrings(tree) if "\n    Examples:\n" in (_text(node) or ""))


def _name(path: Path) -> str:
    return path.relative_to(SOURCES).as_posix()
