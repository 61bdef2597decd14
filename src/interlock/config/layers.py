"""The sources of settings, each made into a `Layer`: a TOML file, the environment, the flags of a command.

A layer is a tree as TOML has it, with a function that tells where a key was written, so that a problem found later
names file and line. What cannot become a layer (an unreadable file, broken TOML) is among the findings. Text of a flag
or of the environment means itself if the key holds text, and is a TOML value everywhere else.

A file may come from anybody who can write to the workspace. Its size and the parts of its keys are limited, because
the parser's time grows with the square of the parts of a key, and a pipe in place of a file is refused, not waited
for.
"""

import contextlib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from interlock.config.problems import Findings, Layer, Problem, dotted_name, nearest
from interlock.config.schema import TOP, sections
from interlock.config.toml_text import KeyPath, key_lines, line_of, toml_text

FILE_BYTES_MAX: Final = 1024 * 1024  # a thousand servers take a tenth of it
KEY_PARTS_MAX: Final = 64  # tomllib's time grows with the square of the parts of a dotted key
PREFIX: Final = "INTERLOCK_"
_NOT_SETTINGS: Final = frozenset(("CONFIG", "URL", "TOKEN", "PROGRAM"))  # read by the commands
_LONG_KEY = re.compile(
    rf"""(?<![\w-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{KEY_PARTS_MAX}}}""", re.ASCII
)
_LONG_NUMBER = re.compile(r"[0-9_]{4000}")
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_DECLARED = re.compile(r"Cannot (?:declare|mutate|overwrite|redefine) |Duplicate inline table key ")
_TWICE: Final = ("a key or table is given twice", "keep one of them, with the keys of both")
_TEXT_HINT: Final = "text needs quotes"
_OPEN_STRING: Final = ("a string is never closed", None)
_OPENING: Final = {"Unterminated string": '"""', 'Expected "\'"': "'", "Expected \"'''\"": "'''"}
_SYNTAX: Final[dict[str, tuple[str, str | None]]] = {  # tomllib's words -> ours, with what to do
    "Invalid value": ("there is no value after '='", _TEXT_HINT),
    "Expected newline or end of document after a statement": ("there is more text after the value", _TEXT_HINT),
    "Unterminated string": _OPEN_STRING,
    'Expected "\'"': _OPEN_STRING,
    "Expected \"'''\"": _OPEN_STRING,
    "Illegal character '\\n'": ("a string is not closed on its line", None),
    "Found invalid character '\\n'": ("a string is not closed on its line", None),
    "Unclosed array": ("a list has no ',' or ']' here", None),
    "Unclosed inline table": ("a table in { } has no ',' or '}' here", "it must be on one line"),
    "Invalid statement": ("this is neither a [table] nor key = value", None),
    "Expected '=' after a key in a key/value pair": ("a key without '='", "write key = value"),
}


def file_layer(path: Path, findings: Findings, missing: Problem | None) -> Layer | None:
    """Read a TOML file into a layer, or return None if there is no such file or it cannot be read.

    `missing` is the problem to report if the file does not exist. None means that the file is optional.
    """
    name = str(path)
    text = _read_file(path)
    if not isinstance(text, str):
        if (problem := text or missing) is not None:
            findings.problem(problem)
        return None
    parsed = _parse(text, name)
    if isinstance(parsed, Problem):
        findings.problem(parsed)
        return None
    lines: dict[KeyPath, int] = {}

    def locate(at: KeyPath) -> tuple[str, int | None]:
        if not lines:
            with contextlib.suppress(RecursionError):  # the parser was just not deep enough to give up
                lines.update(key_lines(text))
        return name, line_of(lines, at)

    return Layer(tree=parsed, base=path.absolute().parent, locate=locate)


def _read_file(path: Path) -> str | Problem | None:
    """Return the text of a configuration file. Return a problem if it cannot be read, or None if it does not exist."""
    name = str(path)
    try:
        # Opened without blocking: for a named pipe, this would wait until another program opens the other end.
        with open(path, "rb", opener=lambda file, flags: os.open(file, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                hint = "write what it holds to a file, and name that"
                return Problem(file=name, message="is not a regular file", hint=hint)
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            return Problem(file=name, message=f"is larger than {FILE_BYTES_MAX} bytes")
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        return Problem(file=name, message="this is a folder", hint=f"did you mean {path / 'interlock.toml'}?")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Problem(file=name, line=line, message="is not UTF-8 text", hint="save it as UTF-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no such path"
        return Problem(file=name, message=f"cannot be read: {why}")


def environment_layer(env: Mapping[str, str], here: Path, findings: Findings) -> Layer:
    """Return the settings in environment variables. INTERLOCK_SECTION__KEY sets a key of a section, INTERLOCK_KEY a key
    above all sections or a whole section.

    Other programs set variables with our prefix too (Kubernetes does), so an unknown one is ignored. It gets a warning
    if it is probably misspelled.
    """
    settings: dict[KeyPath, tuple[str, str]] = {}
    for name, text in sorted(env.items()):
        word = name.removeprefix(PREFIX)
        if not text or word == name or word in _NOT_SETTINGS:
            continue
        section, double, key_name = word.lower().partition("__")
        if double:
            settings[section, key_name] = (f"environment variable {name}", text)
        elif section in TOP or section in sections():
            settings[(section,)] = (f"environment variable {name}", text)
        else:
            known_names = [PREFIX + each.upper() for each in (*TOP, *sections(), *_NOT_SETTINGS)]
            known_names += [f"{PREFIX}{each.name}__{key}".upper() for each in sections().values() for key in each.keys]
            like = nearest(name, known_names, likeness=0.9)
            if like is not None:
                file, message = f"environment variable {name}", f"{name} is not a setting and is ignored"
                findings.warning(Problem(file=file, message=message, hint=f"did you mean {like}?"))
    # A specification (MCP-AQL) gives some keys an environment variable with another name.
    for declared in sections().values():
        for key in declared.keys.values():
            if key.variable is not None and env.get(key.variable):
                settings[declared.name, key.name] = (f"environment variable {key.variable}", env[key.variable])
    return _text_layer(settings, here, findings)


def flags_layer(flags: Mapping[str, str], here: Path, findings: Findings) -> Layer:
    """Return the settings given on the command line.

    `flags` maps dotted keys to text: {"data": "...", "node.listen": "..."}.
    """
    settings: dict[KeyPath, tuple[str, str]] = {}
    for name, text in flags.items():
        section, dot, key = name.partition(".")
        settings[(section, key) if dot else (section,)] = ("command line", text)
    return _text_layer(settings, here, findings)


def _text_layer(settings: dict[KeyPath, tuple[str, str]], here: Path, findings: Findings) -> Layer:
    tree: dict[str, Any] = {}
    for path, (file, text) in settings.items():
        value: Any = text
        bare, example = _bare_form(path)
        if bare != "text":
            parsed = _parse(f"value = {text}", file)
            if isinstance(parsed, dict) and parsed.keys() == {"value"}:
                value = parsed["value"]
            elif bare == "toml":
                hint = f"for instance {toml_text(example)}"
                findings.problem(Problem(file=file, key=dotted_name(path), message="is not a TOML value", hint=hint))
                continue
        section = str(path[0])
        if len(path) == 1:
            tree[section] = value
        elif isinstance(tree.setdefault(section, {}), dict):
            tree[section][path[1]] = value

    def locate(at: KeyPath) -> tuple[str, int | None]:
        """Return the variable or flag that set the value at this place, or a value inside it."""
        around = [at[:length] for length in range(len(at), 0, -1) if at[:length] in settings]
        inside = [path for path in settings if path[: len(at)] == at]
        return settings[(around + inside)[0]][0], None

    return Layer(tree=tree, base=here, locate=locate)


def _bare_form(path: KeyPath) -> tuple[Literal["text", "toml", "either"], Any]:
    """Return how the text of an environment variable or a flag is read for this key: as plain text, as TOML, or as
    either. Also return an example value.
    """
    name = str(path[0])
    section = sections().get(name)
    if section is None:
        key = TOP.get(name) if len(path) == 1 else None
    elif len(path) == 1 or section.shape == "segments":
        example = {each.name: each.example for each in section.keys.values() if each.required} or next(
            {each.name: each.example} for each in section.keys.values()
        )
        return "toml", [example] if section.shape == "list" else example
    else:
        key = section.keys.get(str(path[1]))
    return (key.kind.bare, key.example) if key else ("text", "")


def _parse(text: str, file: str) -> dict[str, Any] | Problem:
    """Parse a TOML text. If it is invalid, return the problem in our own words, with the line."""
    long_key = _LONG_KEY.search(text)
    if long_key is not None:
        message = f"a key has more than {KEY_PARTS_MAX} parts"
        return Problem(file=file, line=_line(text, long_key.start()), message=message)
    try:
        return tomllib.loads(text)
    except RecursionError:
        return Problem(file=file, message="is nested too deeply")
    except tomllib.TOMLDecodeError as error:
        words = str(error)
    except ValueError:
        # Python refuses to read such integers, and tomllib does not say where it stood.
        number = _LONG_NUMBER.search(text)
        line = _line(text, number.start()) if number is not None else None
        return Problem(file=file, line=line, message="is not valid TOML: a number is too long")
    position = _POSITION.search(words)
    words = _POSITION.sub("", words)
    message, hint = _TWICE if _DECLARED.match(words) else _SYNTAX.get(words, (words[:1].lower() + words[1:], None))
    message = f"is not valid TOML: {message}"
    if position is not None and position[1]:
        return Problem(file=file, line=int(position[1]), column=int(position[2]), message=message, hint=hint)
    # At the end of the text: a string still open there was opened by the last of its marks.
    opened = text.rfind(_OPENING[words]) if words in _OPENING else -1
    if words == "Invalid value":
        message, hint = "is not valid TOML: the text ends in the middle of a value", None
    return Problem(
        file=file, line=_line(text, opened if opened >= 0 else len(text.rstrip("\n"))), message=message, hint=hint
    )


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
