"""Cutting a JSON array into the texts of its elements, none of them read."""

import json

_value_end = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str).raw_decode
_SPACE = " \t\r\n"


def elements(text: str) -> list[str]:
    found: list[str] = []
    at = _skip(text, 0)
    assert text[at] == "[", text[:80]
    at = _skip(text, at + 1)
    while text[at] != "]":
        _, end = _value_end(text, at)
        found.append(text[at:end])
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
