"""Foreign configuration files as plain data: JSON with comments, TOML, YAML. Bytes in, data or Unreadable out.

Everything a file can make large has a limit. Messages say where, and repeat nothing of the file.
"""

import re
import tomllib
from typing import Any, Final, Literal

import msgspec

from interlock.drivers.protocol.files.frontmatter import BYTE_ORDER_MARK, read_yaml

Format = Literal["json", "toml", "yaml"]

BYTES_MAX: Final = 32 * 1024 * 1024  # ~/.claude.json keeps histories of whole projects
TEXT_BYTES_MAX: Final = 2 * 1024 * 1024  # TOML and YAML are read by slower parsers

# A string that nothing ends is passed over whole: looked for anew at each of its quotes, it would take time by squares.
_COMMENT: Final = re.compile(rb'("(?:[^"\\\n]|\\.)*+"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TRAILING: Final = re.compile(rb'("(?:[^"\\\n]|\\.)*+"?)|,(?=[ \t\r\n]*[}\]])', re.DOTALL)
_NOT_SPACE: Final = re.compile(rb"[^\s]")


class UnreadableFile(Exception):
    """The one error of this package; its text is for the person."""


def read_data(data_untrusted: bytes, form: Format) -> Any:
    data = data_untrusted.removeprefix(BYTE_ORDER_MARK)
    limit = BYTES_MAX if form == "json" else TEXT_BYTES_MAX
    if len(data) > limit:
        raise UnreadableFile(f"it is larger than {limit // (1024 * 1024)} MiB")
    if not data.strip():
        return {}
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"line {_line_at(data, error.start)} is not UTF-8") from None
    match form:
        case "json":
            return _json(data)
        case "toml":
            return _toml(data.decode("utf-8"))
        case "yaml":
            return _yaml(data)


def blank_comments(data: bytes) -> bytes:
    """Replace comments and trailing commas in JSON by blanks. Every other byte keeps its position."""
    return _TRAILING.sub(lambda match: match[1] or b" ", without_comments(data))


def without_comments(data: bytes) -> bytes:
    return _COMMENT.sub(lambda match: match[1] or _NOT_SPACE.sub(b" ", match[0]), data)


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise UnreadableFile("values are nested too deep") from None
    except msgspec.DecodeError:
        pass
    try:
        return msgspec.json.decode(blank_comments(data))
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableFile(f"it is not JSON{_line(data, str(error))}") from None


def _line(data: bytes, message: str) -> str:
    match = re.search(r"byte (\d+)", message)
    return f" (line {_line_at(data, int(match[1]))})" if match else ""


def _line_at(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"line (\d+)", str(error))
        raise UnreadableFile(f"it is not TOML{f' (line {match[1]})' if match else ''}") from None
    except (RecursionError, ValueError):
        raise UnreadableFile("it is not TOML") from None


def _yaml(data: bytes) -> Any:
    read = read_yaml(data, "", values_max=200_000)
    if read.problems:
        fault = read.problems[0]
        raise UnreadableFile(f"line {fault.line}: {fault.message}")
    return {} if read.value is None else read.value  # nothing but comments
