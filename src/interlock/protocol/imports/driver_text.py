"""Driver files as text: plain data written as the YAML that `frontmatter` reads, keys in the order given."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from interlock.protocol.imports.messages import Finding

_PLAIN: Final = re.compile(r"[A-Za-z_/^~$][\w./@+^~$=-]*(?: [\w./@+^~$=(-][\w./@+^~$=()',;-]*)*", re.ASCII)
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "~"})

PENDING: Final[Mapping[str, Any]] = {  # in the place of bindings that are not known yet, where a reader wants one
    "tool": "pending",
    "version": "^1.0.0",
    "metadata": {"mcp": {"tool_name": "pending"}},
}


def driver_text(data: Mapping[str, Any], body: str = "") -> str:
    return f"---\n{yaml_text(data)}---\n{body}"


def secrets_text(secrets: Sequence[Finding]) -> str:
    """SECRETS.md: slugs, what they are for, where they come from; never a value."""
    return driver_text({"secrets": secret_entries(secrets)})


def secret_entries(secrets: Sequence[Finding]) -> list[dict[str, str]]:
    entries = []
    for each in secrets:
        entry = {"slug": each.slug, "name": each.name, "description": each.description}
        entry |= {"backend": each.backend} if each.backend else {}
        entries.append(entry)
    return entries


def yaml_text(data: Mapping[str, Any]) -> str:
    return "".join(f"{line}\n" for line in _mapping(data, ""))


def _mapping(data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in data.items():
        yield from _under(f"{indent}{_scalar(key)}:", value, indent)


def _under(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        yield head
        yield from _mapping(value, f"{indent}  ")
    elif isinstance(value, list | tuple) and value:
        if _is_short(value):
            yield f"{head} [{', '.join(_scalar(each) for each in value)}]"
            return
        yield head
        for each in value:
            yield from _item(each, f"{indent}  ")
    else:
        yield f"{head} {_scalar(value)}"


def _item(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        lines = _mapping(value, f"{indent}  ")
        first = next(lines)
        yield f"{indent}- {first.lstrip(' ')}"
        yield from lines
    elif isinstance(value, list | tuple) and value:
        yield f"{indent}- [{', '.join(json.dumps(each, ensure_ascii=False) for each in value)}]"
    else:
        yield f"{indent}- {_scalar(value)}"


def _is_short(value: Sequence[Any]) -> bool:
    plain = all(not isinstance(each, Mapping | list | tuple) for each in value)
    return (
        plain
        and sum(len(str(each)) + 2 for each in value) <= 80
        and not any(isinstance(each, str) and _PLAIN.fullmatch(each) and "," in each for each in value)
    )


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if plain else json.dumps(value, ensure_ascii=not value.isprintable())
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return json.dumps(value)
