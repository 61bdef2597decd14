"""Frontmatter written out: plain data in, the text of a DRIVER.md, TOOL.md or SECRETS.md out.

What is written reads the same in YAML 1.1 and 1.2: everything that one of them takes for a date, a number or a boolean
stands in quotes (AIP-front-10). The same data give the same text. Data that no frontmatter can hold (a NUL, half a
character, too deep, too long) are the reader's to refuse: the caller reads back what it wrote.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from interlock.drivers.protocol.files.frontmatter import DEPTH_MAX, FENCE

FLOW_CHARS_MAX: Final = 80  # a list of words longer than this stands on lines of its own
INDENT: Final = "  "

_PLAIN = re.compile(r"[A-Za-z_./^$][A-Za-z0-9_./@^$+-]*(?:[ ][A-Za-z0-9_./@^$+()-]+)*", re.ASCII)
_OTHERWISE = re.compile(r"(?i:y|yes|n|no|on|off|true|false|null|nan|inf|\.inf|\.nan|\.[0-9].*|\.)", re.ASCII)
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def frontmatter_text(data: Mapping[str, Any], body: str = "") -> str:
    lines = [FENCE, *_mapping(data, ""), FENCE, ""]
    return "\n".join(lines) + (f"\n{body.strip()}\n" if body.strip() else "")


def _mapping(data: Mapping[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in data.items():
        lines += _entry(f"{indent}{_scalar(key)}:", value, indent)
    return lines


def _sequence(data: Sequence[Any], indent: str) -> list[str]:
    lines: list[str] = []
    for value in data:
        if isinstance(value, Mapping) and value:
            first, *rest = _mapping(value, indent + INDENT)
            lines += [f"{indent}- {first.lstrip(' ')}", *rest]
        else:
            lines += _entry(f"{indent}-", value, indent)
    return lines


def _entry(head: str, value: Any, indent: str) -> list[str]:
    if len(indent) > DEPTH_MAX * len(INDENT):
        return [f"{head} {_scalar(value)}"]  # no reader goes this deep, and neither does the writer
    if isinstance(value, Mapping) and value:
        return [head, *_mapping(value, indent + INDENT)]
    if isinstance(value, list | tuple) and value:
        flow = _maybe_flow(value)
        return [f"{head} {flow}"] if flow is not None else [head, *_sequence(value, indent + INDENT)]
    if isinstance(value, str) and _is_literal(value):
        mark = "|" if value.endswith("\n") else "|-"
        text = value.removesuffix("\n").split("\n")
        return [f"{head} {mark}", *(f"{indent}{INDENT}{line}" if line else "" for line in text)]
    return [f"{head} {_scalar(value)}"]


def _maybe_flow(values: Sequence[Any]) -> str | None:
    if any(isinstance(each, Mapping | list | tuple) and each for each in values):
        return None
    flow = f"[{', '.join(map(_scalar, values))}]"
    return flow if len(flow) <= FLOW_CHARS_MAX else None


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and not _OTHERWISE.fullmatch(value) and len(value) <= FLOW_CHARS_MAX
        return value if plain else f'"{"".join(map(_escape, value))}"'
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return json.dumps(value)


def _is_literal(text: str) -> bool:
    """Whether the text can stand as it is, line by line."""
    lines = text.removesuffix("\n").split("\n")
    return (
        "\n" in text
        and lines[0][:1] not in {"", " "}
        and lines[-1].strip(" ") != ""
        and all(each.isprintable() for each in lines)
    )


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if character <= "\uffff" else f"\\U{ord(character):08x}"
