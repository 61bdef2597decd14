"""Configuration files of other clients as text: read as plain data, and one entry put into them.

Reading (`read_data`): JSON with comments and trailing commas, TOML or YAML; bytes in, data or UnreadableFile out.
Everything that a file can make large has a limit. Messages name a line, and repeat nothing of the file.

Editing (`with_entry`): text in, text out, and everything but the entry stays as it is to the letter. The result is read
again and compared with what was meant. A file that is written in a way the editor does not understand is refused as
`CannotEdit`, and the person pastes the entry by hand.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.frontmatter import BYTE_ORDER_MARK, frontmatter_text, read_yaml
from interlock.interop.protocol.clients import ClientProgram, Format

BYTES_MAX: Final = 32 * 1024 * 1024  # ~/.claude.json keeps histories of whole projects
TEXT_BYTES_MAX: Final = 2 * 1024 * 1024  # TOML and YAML are read by slower parsers

# A string without an end is skipped as a whole. To search again from each of its quotes would take quadratic time.
_COMMENT: Final = re.compile(r'("(?:[^"\\\n]|\\.)*+"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TRAILING: Final = re.compile(r'("(?:[^"\\\n]|\\.)*+"?)|,(?=[ \t\r\n]*[}\]])', re.DOTALL)
_NOT_SPACE: Final = re.compile(r"\S", re.ASCII)
_SPACE: Final = " \t\r\n"


class UnreadableFile(Exception):
    """Error for a file that cannot be read. Its message is shown to the user, and repeats no content of the file."""


def read_data(data_untrusted: bytes, form: Format) -> Any:
    """Return the data of a file. Raise UnreadableFile if it is too large or is not valid in this format."""
    data = data_untrusted.removeprefix(BYTE_ORDER_MARK)
    limit = BYTES_MAX if form == "json" else TEXT_BYTES_MAX
    if len(data) > limit:
        raise UnreadableFile(f"it is larger than {limit // (1024 * 1024)} MiB")
    if not data.strip():
        return {}
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"line {_line_at(data, error.start)} is not UTF-8") from None
    match form:
        case "json":
            try:
                return msgspec.json.decode(data)
            except RecursionError:
                raise UnreadableFile("values are nested too deep") from None
            except msgspec.DecodeError:
                data = blank_comments(text).encode()
            try:
                return msgspec.json.decode(data)
            except (msgspec.DecodeError, RecursionError) as error:
                match = re.search(r"byte (\d+)", str(error))
                place = f" (line {_line_at(data, int(match[1]))})" if match else ""
                raise UnreadableFile(f"it is not JSON{place}") from None
        case "toml":
            try:
                return tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                match = re.search(r"line (\d+)", str(error))
                raise UnreadableFile(f"it is not TOML{f' (line {match[1]})' if match else ''}") from None
            except (RecursionError, ValueError):
                raise UnreadableFile("it is not TOML") from None
        case "yaml":
            read = read_yaml(data, "", values_max=200_000)
            if read.problems:
                raise UnreadableFile(f"line {read.problems[0].line}: {read.problems[0].message}")
            return {} if read.value is None else read.value  # a file of comments alone has no value


def _line_at(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def blank_comments(text: str) -> str:
    """Replace comments and trailing commas in JSON by blanks. Every other character keeps its position."""
    return _TRAILING.sub(lambda match: match[1] or " ", _without_comments(text))


def _without_comments(text: str) -> str:
    return _COMMENT.sub(lambda match: match[1] or _NOT_SPACE.sub(" ", match[0]), text)


# Numbers are only skipped, so that their size does not matter.
_DECODER: Final = json.JSONDecoder(strict=False, parse_int=str)


class JsonObjectText:
    """An object in the text of a valid JSON file, which may contain comments."""

    def __init__(self, text: str, plain: str, start: int) -> None:
        """Find the members of the object that begins at `start`. `plain` is `text` without its comments."""
        self._text, self._plain, self._start = text, plain, start
        self._members: list[tuple[str, int, int]] = []  # the key, and the start and end of the value
        at = self._skip(start + 1)
        while plain[at] == '"':
            key, end = _DECODER.raw_decode(plain, at)
            begin = self._skip(self._skip(end) + 1)  # after the colon
            _, end = _DECODER.raw_decode(plain, begin)
            self._members.append((key, begin, end))
            at = self._skip(end)
            if plain[at] == ",":
                at = self._skip(at + 1)
        self._end = at

    @classmethod
    def at(cls, text: str, path: Sequence[str]) -> "JsonObjectText | None":
        """Return the object to which a path of keys leads, or None if there is no object."""
        plain = blank_comments(text)
        around = cls(text, plain, plain.index("{"))
        for key in path:
            place = around.member(key)
            if place is None or plain[place[0]] != "{":
                return None
            around = cls(text, plain, place[0])
        return around

    def member(self, key: str) -> tuple[int, int] | None:
        """Return the start and end of a member's value in the text, or None if there is no such member. If a key occurs
        twice, the last member counts.
        """
        spans = [(start, end) for name, start, end in self._members if name == key]
        return spans[-1] if spans else None

    def with_member(self, key: str, value: Any) -> str:
        """Return the text of the whole file with this member set."""
        text = self._text
        indent, step = self._indents()
        written = json.dumps(value, ensure_ascii=False, indent=step or None)
        written = written.replace("\n", f"\n{indent}") if step else written
        if (place := self.member(key)) is not None:
            return text[: place[0]] + written + text[place[1] :]
        newline = "\n" if step else " "
        line = f"{newline}{indent}{json.dumps(key, ensure_ascii=False)}: {written}"
        if not self._members:
            inner = text[self._start + 1 : self._end].rstrip(_SPACE)  # comments, perhaps
            outer = newline + indent.removesuffix(step) if step else ""
            return text[: self._start + 1] + inner + line + outer + text[self._end :]
        last = self._members[-1][2]
        comma = "" if "," in _without_comments(text)[last : self._end] else ","
        at = max(len(text[: self._end].rstrip(_SPACE)), last)
        return text[:last] + comma + text[last:at] + line + text[at:]

    def _indents(self) -> tuple[str, str]:
        """Return the indentation of a member and of one level. Both are empty if the object is on one line."""
        outer = self._line_indent(self._start)
        if self._members:
            value = self._members[0][1]
            if self._text.rfind("\n", 0, self._plain.rfind('"', 0, value)) < self._start:
                return "", ""
            inner = self._line_indent(value)
            return inner, inner.removeprefix(outer) or "  "
        step = "\t" if "\n\t" in self._text else "  "
        return outer + step, step

    def _line_indent(self, at: int) -> str:
        line = self._text[self._text.rfind("\n", 0, at) + 1 : at]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _skip(self, at: int) -> int:
        while self._plain[at] in _SPACE:
            at += 1
        return at


_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_HEADER: Final = re.compile(r"^[ \t]*\[+(?P<name>[^\[\]]+)\]+[ \t]*(?:#.*)?$")


class CannotEdit(Exception):
    """Error for a file that cannot be changed. Its text says why."""


def with_entry(text: str, client: ClientProgram, name: str, entry: Mapping[str, Any]) -> str:
    """Return the text of a client's file with this entry added, or put in the place of the entry of the same name.

    Raise UnreadableFile if the text cannot be read, and CannotEdit if it cannot be changed safely.
    """
    form = client.form
    before = _read_fields(text, form)
    root = client.root
    servers = before["mcp"].get("servers") if isinstance(before.get("mcp"), dict) else None
    if client.shape == "opencode" and is_server_group(servers):
        root = ("mcp", "servers")
        entry = {key: value for key, value in entry.items() if key != "enabled"}
    wanted = _set_entry(before, root, name, entry, listed=client.shape == "continue")
    if wanted == before:
        return text
    match form:
        case "json":
            edited = _edit_json(text, root, name, entry)
        case "toml":
            edited = _edit_toml(text, root[0], name, entry)
        case "yaml":
            edited = _edit_yaml(text, root[0], name, entry, before, listed=client.shape == "continue")
    if _read_fields(edited, form) != wanted:
        raise CannotEdit("the file is written in a way that cannot be changed safely")
    return edited


def _read_fields(text: str, form: Format) -> dict[str, Any]:
    data = read_data(text.encode(), form)
    if not isinstance(data, dict):
        raise CannotEdit("it holds no fields")
    return data


def is_server_group(value: Any) -> bool:
    """Return whether a value maps names to servers, and is not a server itself."""
    return isinstance(value, Mapping) and "type" not in value and "command" not in value


def _set_entry(
    data: dict[str, Any], root: tuple[str, ...], name: str, entry: Mapping[str, Any], *, listed: bool
) -> dict[str, Any]:
    whole = dict(data)
    into = whole
    for key in root[:-1]:
        into[key] = dict(_servers_of(into.get(key), key))
        into = into[key]
    last = root[-1]
    if listed:
        items = list(into.get(last) or [])
        same = (at for at, each in enumerate(items) if isinstance(each, dict) and each.get("name") == name)
        at = next(same, len(items))
        into[last] = [*items[:at], dict(entry), *items[at + 1 :]]
    else:
        into[last] = {**_servers_of(into.get(last), last), name: dict(entry)}
    return whole


def _servers_of(value: Any, key: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CannotEdit(f"{key} holds no servers")
    return value


def _edit_json(text: str, root: tuple[str, ...], name: str, entry: Mapping[str, Any]) -> str:
    text = text if text.strip() else "{}\n"
    steps, value = [*root, name], dict(entry)
    while steps:  # the innermost object that exists gets the rest as its member
        *outer, key = steps
        around = JsonObjectText.at(text, outer)
        if around is not None:
            return around.with_member(key, value)
        steps, value = outer, {key: value}
    raise CannotEdit("the file is written in a way that cannot be changed safely")


def _edit_toml(text: str, root: str, name: str, entry: Mapping[str, Any]) -> str:
    table = f"{root}.{_toml_key(name)}"
    lines = [f"[{table}]"]
    below: list[str] = []
    for field, value in entry.items():
        if isinstance(value, Mapping):
            below += ["", f"[{table}.{field}]"]
            below += [f"{_toml_key(each)} = {_toml_value(inner)}" for each, inner in value.items()]
        else:
            lines.append(f"{field} = {_toml_value(value)}")
    block = "\n".join([*lines, *below]) + "\n"
    rest, at = _without_table(text, (root, name))
    if at is None:
        head = rest if not rest or rest.endswith("\n") else f"{rest}\n"
        return f"{head}\n{block}" if head.strip() else block
    return rest[:at] + block + ("\n" if rest[at:].strip() else "") + rest[at:]


def _without_table(text: str, table: tuple[str, str]) -> tuple[str, int | None]:
    """Remove the lines of a table and its subtables. Return the text and the position of the first removed line."""
    remaining: list[str] = []
    at: int | None = None
    inside = False
    for line in text.splitlines(keepends=True):
        if (header := _HEADER.match(line.rstrip("\r\n"))) is not None:
            keys = re.findall(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|([A-Za-z0-9_-]+)', header["name"])
            inside = tuple(next((part for part in each if part), "") for each in keys)[:2] == table
            if inside and at is None:
                at = sum(len(each) for each in remaining)
        if not inside:
            remaining.append(line)
    return "".join(remaining), at


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False)


def _edit_yaml(
    text: str, root: str, name: str, entry: Mapping[str, Any], before: Mapping[str, Any], *, listed: bool
) -> str:
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    top = next((at for at, line in enumerate(lines) if re.match(rf"{re.escape(root)}[ \t]*:", line)), None)
    if top is None:
        block = _yaml_lines({root: [dict(entry)] if listed else {name: dict(entry)}})
        return "".join([*lines, *block])
    end = top + 1  # of the block: the next line with content that is not indented
    while end < len(lines) and not (_is_content(lines[end]) and not lines[end].startswith((" ", "\t", "-"))):
        end += 1
    children = [at for at in range(top + 1, end) if _is_content(lines[at])]
    if not children:
        if before.get(root):
            raise CannotEdit(f"{root} is written on one line")
        value = [dict(entry)] if listed else {name: dict(entry)}
        return "".join([*lines[:top], *_yaml_lines({root: value}), *lines[top + 1 :]])
    indent = _indent(lines[children[0]])
    starts = [at for at in children if _indent(lines[at]) == indent]
    block = [f"{indent}{line}" for line in _yaml_lines([dict(entry)] if listed else {name: dict(entry)})]
    names = [each.get("name") if isinstance(each, dict) else each for each in before[root]]
    index = names.index(name) if name in names else None
    if index is None:
        last = children[-1] + 1
        return "".join([*lines[:last], *block, *lines[last:]])
    if listed:
        starts = [at for at in starts if lines[at].lstrip().startswith("-")]
    start = starts[index]
    until = next((at for at in starts if at > start), children[-1] + 1)
    comments = [line for line in lines[start + 1 : until] if line.lstrip().startswith("#") and _indent(line) == indent]
    return "".join([*lines[:start], *block, *comments, *lines[until:]])


def _yaml_lines(data: Any) -> list[str]:
    whole = {"it": data} if isinstance(data, list) else data
    lines = frontmatter_text(whole).splitlines(keepends=True)[1:-1]
    if isinstance(data, list):
        return [line[2:] for line in lines[1:]]
    return lines


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
