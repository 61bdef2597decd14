"""Frontmatter: the YAML between the two `---` lines of a DRIVER.md, TOOL.md or SECRETS.md, read and written.

`read_frontmatter` takes bytes and returns plain data with the line of every field. It reads the core schema of YAML
1.2: 2025-03-26 and `no` stay text (AIP-front-10). Keys must be unique strings, and tags other than the core ones are
refused. An alias counts as much as the value that it repeats, and everything that a file can make large has a limit.
The body after the frontmatter is not read. No exception is raised: for any bytes, the result is data or a problem.

The YAML library parses the text into events, and `_Builder` turns these into data. `_Builder` enforces the limits,
finds duplicate keys, records the lines and determines the types of values, because the library does none of this as
AIP-30 requires.

`frontmatter_text` writes data. YAML 1.1 and 1.2 read its text in the same way: everything that either would read as a
date, a number or a boolean is quoted. Equal data result in equal text. Data that no frontmatter can hold (a NUL, a lone
surrogate, too deep, too long) are not refused here: callers must parse the text again to find out.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.problems import FileProblem, ParsedFile, Places
from interlock.wire.jsontext.canonical import pointer_step, quoted

FILE_BYTES_MAX: Final = 4 * 1024 * 1024  # a body with pictures in it; the caller need not read more than this plus one
FRONTMATTER_BYTES_MAX: Final = 256 * 1024  # AIP-front-10
OPEN_MAX: Final = 128  # brackets that are open at once, in text or not
_NUMBER_KEY: Final = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)  # as JSON writes it: the key of a table of codes
DEPTH_MAX: Final = 64  # a contract's JSON Schema nests; the parser's time grows with the square of the depth
VALUES_MAX: Final = 20_000  # with aliases counted as what they stand for
DIGITS_MAX: Final = 40  # of one number

CODE: Final = "frontmatter_invalid"
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
FENCE: Final = "---"

_CORE = "tag:yaml.org,2002:"
_NULL = re.compile(r"(?:~|null|Null|NULL|)")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)")
_INT = re.compile(r"[-+]?[0-9]+", re.ASCII)
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_JSON = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_BRACKET = re.compile(r"[][{}]")
_CLOSING_FENCE = re.compile(rb"^---\s*?$", re.MULTILINE)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")


class Frontmatter(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a file's frontmatter, and the lines on which they are written."""

    data: dict[str, Any]
    places: Places


class _Fault(Exception):
    """Error: a text is not valid frontmatter. Its arguments are the line, a message and a hint."""

    def reading(self, file: str) -> ParsedFile[Any]:
        line, message, hint = self.args
        problem = FileProblem(file=file, line=line, code=CODE, message=message, hint=hint)
        return ParsedFile(problems=(problem,))


def read_frontmatter(data_untrusted: bytes, file: str) -> ParsedFile[Frontmatter]:
    """Parse the frontmatter of a file. `file` is the name used in problems."""
    try:
        text = _between_fences(data_untrusted)
        lines: dict[str, int] = {"": 1}
        data = _Builder(text, lines).document()
        if not isinstance(data, dict):
            message = f"the frontmatter {'is empty' if data is None else 'holds no fields'}"
            raise _Fault(1, message, "write `key: value` lines")
    except _Fault as fault:
        return fault.reading(file)
    return ParsedFile(value=Frontmatter(data=data, places=Places(file=file, lines=lines)))


def read_yaml(data_untrusted: bytes, file: str, *, values_max: int) -> ParsedFile[Any]:
    """Parse a whole file in the same YAML subset as frontmatter, without `---` lines. The caller must limit the number
    of bytes.
    """
    try:
        return ParsedFile(value=_Builder(_decode(data_untrusted), {}, values_max).document())
    except _Fault as fault:
        return fault.reading(file)


def _between_fences(data: bytes) -> str:
    """Return the text between the two `---` lines. It begins with an empty line, so that line numbers stay the same."""
    if len(data) > FILE_BYTES_MAX:
        message = f"the file is larger than {FILE_BYTES_MAX // 1024} KiB"
        raise _Fault(1, message, "keep the body short, link to the rest")
    first, _, rest = data.removeprefix(BYTE_ORDER_MARK).partition(b"\n")
    if first.rstrip() != FENCE.encode():
        raise _Fault(1, "the file does not begin with ---", "put the frontmatter between two lines of ---")
    closing = _CLOSING_FENCE.search(rest)
    # AIP-30.front-3: what follows the closing line is the body, which nothing reads
    content = rest[: closing.start() if closing is not None else len(rest)].replace(b"\r\n", b"\n")
    if len(content) > FRONTMATTER_BYTES_MAX:  # AIP-front-10
        message = f"the frontmatter is larger than {FRONTMATTER_BYTES_MAX // 1024} KiB"
        line = content.count(b"\n", 0, FRONTMATTER_BYTES_MAX) + 2
        raise _Fault(line, message, "move text to the body, after the closing ---")
    if closing is None:  # AIP-front-10
        line = len(content.splitlines()) + 1
        raise _Fault(line, "the closing --- is missing", "end the frontmatter with a line of ---")
    return _decode(b"\n" + content)


def _decode(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _Fault(line, "the frontmatter is not UTF-8", "save the file as UTF-8") from None
    if control := _CONTROL.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise _Fault(line, "the frontmatter holds a control character", "remove it")
    return text


class _Builder:
    """Builder of the data of a YAML document, from the events of the parser.

    `lines` is filled with the line of every field.
    """

    def __init__(self, text: str, lines: dict[str, int], values_max: int = VALUES_MAX) -> None:
        self._text = text
        self._values_max = values_max
        self._lines = lines
        self._events: Iterator[Any] = iter(())
        self._anchors: dict[str, tuple[Any, int] | None] = {}  # None: begun and not ended
        self._values = 0
        self._line = 1

    def document(self) -> Any:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError

        # The scanner's time grows with the square of the open brackets, and it reads ahead of its events. So the text
        # is refused before it is scanned. Brackets within text count too: ordinary text does not leave many open.
        depth = 0
        for bracket in _BRACKET.finditer(self._text):
            depth = depth + 1 if bracket[0] in "[{" else max(depth - 1, 0)
            if depth > OPEN_MAX:
                self._line = self._text.count("\n", 0, bracket.start()) + 1
                raise self._fault(f"values are nested deeper than {DEPTH_MAX}", "flatten them")
        root, documents = None, 0
        try:
            self._events = YAML(typ="safe", pure=True).parse(self._text)
            while (event := self._next_event()) is not None:
                match type(event).__name__:
                    case "DocumentStartEvent":
                        documents += 1
                        if documents > 1:
                            raise self._fault("the frontmatter holds a second document", "remove the line of dots")
                    case "MappingStartEvent" | "SequenceStartEvent" | "ScalarEvent" | "AliasEvent":
                        root = self._value(event, "", 0)
        except _Fault:
            raise
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = self._line if mark is None else mark.line + 1
            raise _Fault(line, "this is not YAML", _advice(str(error.problem or ""))) from None
        except Exception:
            # A hostile file can make the parser fail in any way.
            raise _Fault(self._line, "this is not YAML", _advice("")) from None
        return root

    def _next_event(self) -> Any:
        """Return the parser's next event and remember its line. Return None after the last event."""
        event = next(self._events, None)
        if event is not None and event.start_mark is not None:
            self._line = event.start_mark.line + 1
        return event

    def _value(self, event: Any, pointer: str, depth: int) -> Any:
        """Return the value that begins with `event`. Read further events until the value is complete.

        `pointer` is the place of the value, and `depth` the number of lists and mappings around it.
        """
        kind = type(event).__name__
        if kind == "AliasEvent":
            target = self._anchors.get(event.anchor)
            if target is None:
                raise self._fault("an alias names no value that is complete before it", "write the value out")
            value, values = target
            self._count(values)
            self._lines.setdefault(pointer, self._line)
            return value
        anchor, values_before = event.anchor, self._values
        if kind == "ScalarEvent":
            value = self._resolve(event)
        else:
            if str(event.tag) not in {"None", "!", _CORE + ("map" if kind == "MappingStartEvent" else "seq")}:
                raise self._fault("a tag is not one of YAML's own", "remove the tag (the word after !)")
            if depth >= DEPTH_MAX:
                raise self._fault(f"values are nested deeper than {DEPTH_MAX}", "flatten them")
            self._anchors[anchor] = None
            value = {} if kind == "MappingStartEvent" else []
        self._count(1)
        self._lines.setdefault(pointer, self._line)
        if kind == "SequenceStartEvent":
            while type(event := self._next_event()).__name__ != "SequenceEndEvent":
                value.append(self._value(event, f"{pointer}/{len(value)}", depth + 1))
        elif kind == "MappingStartEvent":
            while type(event := self._next_event()).__name__ != "MappingEndEvent":
                key = self._key(event, value)
                field = f"{pointer}/{pointer_step(key)}"
                self._lines[field] = self._line
                value[key] = self._value(self._next_event(), field, depth + 1)
        if anchor is not None:
            self._anchors[anchor] = (value, self._values - values_before)
        return value

    def _key(self, event: Any, fields: dict[str, Any]) -> str:
        """Return the key of a mapping from an event of the YAML parser. `fields` has the keys that the mapping already
        has.
        """
        if type(event).__name__ == "AliasEvent":
            raise self._fault("a key is an alias", "write the key out")
        if type(event).__name__ != "ScalarEvent":
            raise self._fault("a key is not text", "write a plain word as key")
        value = self._resolve(event)
        if event.anchor is not None:
            raise self._fault("a key has an anchor", "write the key out each time")
        key = event.value if type(value) is int and _NUMBER_KEY.fullmatch(event.value) is not None else value
        if not isinstance(key, str):
            raise self._fault("a key is not text", "put quotes around the key")
        if key == "<<":
            raise self._fault("the merge key << is not part of YAML 1.2", "write the fields out")
        if key in fields:  # AIP-front-10: twice
            raise self._fault(f"the key {quoted(key)} is written twice", "keep one of the two")
        return key

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > self._values_max:
            message = f"the frontmatter holds more than {self._values_max} values, aliases expanded"
            raise self._fault(message, "shorten it")

    def _resolve(self, event: Any) -> Any:
        """Return the value of a YAML scalar. The scalar's tag or quotes decide its type.

        Its type follows from its tag if it has one, is text if it is quoted, and otherwise follows from the core schema
        of YAML 1.2.
        """
        text: str = event.value
        tag = str(event.tag)
        if _UNUSABLE.search(text):
            raise self._fault("a text holds a NUL or half a character", "remove it")
        if tag in {"!", _CORE + "str"} or (tag == "None" and event.style not in {None, ""}):
            return text
        value = self._core(text)
        if tag == "None":
            return value
        kinds: dict[str, tuple[type, ...]]
        kinds = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}
        kind = kinds.get(tag.removeprefix(_CORE)) if tag.startswith(_CORE) else None
        if kind is None:
            raise self._fault("a tag is not one of YAML's own", "remove the tag (the word after !)")
        if not isinstance(value, kind) or (isinstance(value, bool) and tag != _CORE + "bool"):
            raise self._fault("a value does not fit its tag", "remove the tag (the word after !)")
        return value

    def _core(self, text: str) -> Any:
        """Return the value of a scalar without quotes, by the core schema of YAML 1.2."""
        if _NULL.fullmatch(text):
            return None
        if _BOOL.fullmatch(text):
            return text.lower() == "true"
        if _NOT_JSON.fullmatch(text):
            raise self._fault("a number is infinite or none", "write a number, or quotes around the text")
        number = _INT.fullmatch(text) or _OCTAL.fullmatch(text) or _HEX.fullmatch(text) or _FLOAT.fullmatch(text)
        if number is None:
            return text
        if len(text) > DIGITS_MAX:
            raise self._fault(f"a number has more than {DIGITS_MAX} digits", "put quotes around it if it is text")
        if _INT.fullmatch(text):
            return int(text)
        if text.startswith(("0o", "0x")):
            return int(text, 0)
        value = float(text)
        if not math.isfinite(value):
            raise self._fault("a number is too large", "put quotes around it if it is text")
        return value

    def _fault(self, message: str, hint: str) -> _Fault:
        return _Fault(self._line, message, hint)


_ADVICE: Final = (
    ("\\t", "use spaces, not tabs"),
    ("mapping values", "put quotes around a text with a colon and a space in it"),
    ("undefined alias", "write the value out"),
    ("special characters", "remove the control character"),
    ("quoted scalar", "close the quotes"),
    ("end of stream", "close the quotes"),
    ("',' or", "close the bracket"),
    ("block end", "check the indentation"),
)


def _advice(message: str) -> str:
    """Return a hint that fits an error message of the YAML parser.

    The message itself is not shown, because it may contain a value from the file.
    """
    return next((advice for sign, advice in _ADVICE if sign in message), "check indentation, quotes and brackets")


FLOW_CHARS_MAX: Final = 80  # of a list on one line; the entries of a longer one get a line each
INDENT: Final = "  "

_PLAIN = re.compile(r"[A-Za-z_./^$][A-Za-z0-9_./@^$+-]*(?:[ ][A-Za-z0-9_./@^$+()-]+)*", re.ASCII)
_OTHERWISE = re.compile(r"(?i:y|yes|n|no|on|off|true|false|null|nan|inf|\.inf|\.nan|\.[0-9].*|\.)", re.ASCII)
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def frontmatter_text(data: Mapping[str, Any], body: str = "") -> str:
    """Return the text of a file with this frontmatter, followed by `body` if it is not empty."""
    lines = [FENCE, *_mapping(data, ""), FENCE, ""]
    return "\n".join(lines) + (f"\n{body.strip()}\n" if body.strip() else "")


def _mapping(data: Mapping[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in data.items():
        lines += _entry(f"{indent}{_scalar(key)}:", value, indent)
    return lines


def _entry(head: str, value: Any, indent: str) -> list[str]:
    """Return the lines of a value. `head` is the text in front of it: a key with a colon, or a dash."""
    if len(indent) > DEPTH_MAX * len(INDENT):
        # No reader goes this deep, and neither does the writer.
        return [f"{head} {_scalar(value)}"]
    if isinstance(value, Mapping) and value:
        return [head, *_mapping(value, indent + INDENT)]
    if isinstance(value, list | tuple) and value:
        if not any(isinstance(each, Mapping | list | tuple) and each for each in value):
            flow = f"[{', '.join(map(_scalar, value))}]"
            if len(flow) <= FLOW_CHARS_MAX:
                return [f"{head} {flow}"]
        lines = [head]
        for each in value:
            if isinstance(each, Mapping) and each:
                first, *rest = _mapping(each, indent + INDENT * 2)
                lines += [f"{indent}{INDENT}- {first.lstrip(' ')}", *rest]
            else:
                lines += _entry(f"{indent}{INDENT}-", each, indent + INDENT)
        return lines
    if isinstance(value, str) and "\n" in value:
        text = value.removesuffix("\n").split("\n")
        # Only such a text can be written unchanged, line by line.
        if text[0][:1] not in {"", " "} and text[-1].strip(" ") and all(each.isprintable() for each in text):
            mark = "|" if value.endswith("\n") else "|-"
            return [f"{head} {mark}", *(f"{indent}{INDENT}{line}" if line else "" for line in text)]
    return [f"{head} {_scalar(value)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and not _OTHERWISE.fullmatch(value) and len(value) <= FLOW_CHARS_MAX
        return value if plain else f'"{"".join(map(_escape, value))}"'
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return json.dumps(value)


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if character <= "\uffff" else f"\\U{ord(character):08x}"
