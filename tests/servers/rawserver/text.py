"""Cutting JSON text without turning it into values, so that what a peer wrote can be sent back as it was written."""

import base64
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator

# Numbers stay text: nothing is rounded, and no limit on digits applies.
_value_end = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str).raw_decode
_SPACE = " \t\r\n"


@contextlib.contextmanager
def reading_deeply() -> Iterator[None]:
    """What is nested deeply is read too, as other languages read it."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(12_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


class NotAnObject(ValueError):
    """The text is JSON but not an object, or not JSON at all."""


def members(text: str) -> dict[str, str]:
    """The members of the object `text`: key -> the text of its value. Of a repeated key the last wins."""
    try:
        return _members(text)
    except (ValueError, RecursionError, IndexError) as error:
        raise NotAnObject(str(error)) from None


def _members(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = _skip(text, 0)
    if text[at] != "{":
        raise NotAnObject("expected an object")
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _value_end(text, at)
        at = _skip(text, at)
        if not isinstance(key, str) or text[at] != ":":
            raise NotAnObject("expected a key and a colon")
        start = _skip(text, at + 1)
        _, at = _value_end(text, start)
        found[key] = text[start:at]
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        elif text[at] != "}":
            raise NotAnObject("expected a comma or the end")
    if text[at + 1 :].strip(_SPACE):
        raise NotAnObject("text after the object")
    return found


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def obj(pairs: Iterable[tuple[str, str]]) -> str:
    """An object of values that are JSON text already."""
    return "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in pairs) + "}"


def array(values: Iterable[str]) -> str:
    return "[" + ",".join(values) + "]"


def prepend(pairs: Iterable[tuple[str, str]], text: str) -> str:
    """The object `text` with `pairs` before its own members, which keep their bytes."""
    added, own = obj(pairs)[1:-1], text[1:]
    if not added:
        return text
    return "{" + added + ("," if own.lstrip(_SPACE) != "}" else "") + own


def string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def header_text(value: str | None) -> str | None:
    """The text of an MCP header: as it is, or wrapped in base64 where a header could not carry it."""
    if value is not None and value.startswith("=?base64?") and value.endswith("?="):
        return base64.b64decode(value[9:-2], validate=True).decode()
    return value
