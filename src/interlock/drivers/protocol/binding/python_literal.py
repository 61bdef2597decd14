"""A Python literal of plain data (as `repr` writes it) as a JSON value: None, True, False, numbers, texts, lists,
tuples and dicts with text keys. Nothing is evaluated, and the time is linear in the text (AIP-extract-8)."""

import re
from typing import Any, Final

DEPTH_MAX: Final = 100
DIGITS_MAX: Final = 4000  # of one integer; Python itself reads no longer ones

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_WORDS: Final = {"None": None, "True": True, "False": False}
_ATOM: Final = re.compile(
    r"""(?P<word>None|True|False)\b
    | (?P<float>[+-]?(?:\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+))(?![\w.])
    | (?P<int>[+-]?(?:0|[1-9]\d*))(?![\w.])
    | '(?P<single>(?:[^'\\\n]|\\.)*)'
    | "(?P<double>(?:[^"\\\n]|\\.)*)\"""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_LETTERS: Final = {
    **{"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"},
    **{"\\": "\\", "'": "'", '"': '"'},
}
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}


class NotPlain(ValueError):
    """The text is not a literal of plain data."""


def read_literal(text: str) -> Any:
    """Raises NotPlain."""
    value, at = _value(text, _after_space(text, 0), 0)
    if _after_space(text, at) != len(text):
        raise NotPlain
    return value


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found is not None else at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > DEPTH_MAX or at >= len(text):
        raise NotPlain
    if text[at] in _CLOSING:
        return _container(text, at, depth)
    found = _ATOM.match(text, at)
    if found is None:
        raise NotPlain
    match found.lastgroup:
        case "word":
            return _WORDS[found["word"]], found.end()
        case "float":
            number = float(found["float"])
            if number in (float("inf"), float("-inf")):
                raise NotPlain
            return number, found.end()
        case "int":
            if len(found["int"]) > DIGITS_MAX:
                raise NotPlain
            return int(found["int"]), found.end()
    return _unescape(found[found.lastgroup or ""]), found.end()


def _container(text: str, at: int, depth: int) -> tuple[Any, int]:
    opening = text[at]
    closing = _CLOSING[opening]
    items: list[Any] = []
    members: dict[str, Any] = {}
    at = _after_space(text, at + 1)
    commas = 0
    while text[at : at + 1] != closing:
        value, at = _value(text, at, depth + 1)
        at = _after_space(text, at)
        if opening == "{":
            if not isinstance(value, str) or text[at : at + 1] != ":":
                raise NotPlain
            members[value], at = _value(text, _after_space(text, at + 1), depth + 1)
            at = _after_space(text, at)
        else:
            items.append(value)
        if text[at : at + 1] == ",":
            commas += 1
            at = _after_space(text, at + 1)
        elif text[at : at + 1] != closing:
            raise NotPlain
    if opening == "{":
        return members, at + 1
    if opening == "(" and len(items) == 1 and not commas:
        return items[0], at + 1
    return items, at + 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_letter, text)


def _letter(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[3]
    if number is not None:
        code = int(number, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise NotPlain
        return chr(code)
    letter = _LETTERS.get(found[4])
    if letter is None:
        raise NotPlain
    return letter
