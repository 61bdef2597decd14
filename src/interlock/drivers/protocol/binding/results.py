"""The value of a contract in the tools/call result of a server.

`ResultReader` takes the content of a result (AIP-extract-4), reads its text (-5, -8), extracts the value (-6, -7) and
checks it against the contract's outputs (AIP-tools-13 and -14). How text is read is decided when the binding is
matched; nothing in a result can change it.

`read_literal` reads a Python literal of plain data, as `repr` writes it. Nothing is evaluated, and the time is linear
in the length of the text (AIP-extract-8).
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from interlock.drivers.protocol.model import ResultParse
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.protocol.result_path import Miss, RecordPattern, ResultPath
from interlock.wire.jsonrpc.codec import CodecError, decode_value
from interlock.wire.schemas.validators import Compiled

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
    """Return the value of a literal text. Raise NotPlain if the text is anything else."""
    value, at = _value(text, _after_space(text, 0), 0)
    if _after_space(text, at) != len(text):
        raise NotPlain
    return value


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space is not None else at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > DEPTH_MAX or at >= len(text):
        raise NotPlain
    if text[at] in _CLOSING:
        return _container(text, at, depth)
    atom = _ATOM.match(text, at)
    if atom is None:
        raise NotPlain
    match atom.lastgroup:
        case "word":
            return _WORDS[atom["word"]], atom.end()
        case "float":
            number = float(atom["float"])
            if number in (float("inf"), float("-inf")):
                raise NotPlain
            return number, atom.end()
        case "int":
            if len(atom["int"]) > DIGITS_MAX:
                raise NotPlain
            return int(atom["int"]), atom.end()
    return _unescape(atom[atom.lastgroup or ""]), atom.end()


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


def _letter(escape: re.Match[str]) -> str:
    number = escape[1] or escape[2] or escape[3]
    if number is not None:
        code = int(number, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise NotPlain
        return chr(code)
    letter = _LETTERS.get(escape[4])
    if letter is None:
        raise NotPlain
    return letter


Mode = Literal["structured", "text", "json", "python_literal", "lines", "records"]

UNKNOWN: Final = "unknown"  # AIP-tools-13: the message of an error without a text
LINES_MAX: Final = 100_000


class ResultReader(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for reading the results of one binding."""

    mode: Mode
    path: ResultPath
    parse: ResultParse | None = None
    pattern: RecordPattern | None = None
    falls_back: bool = False  # a single name that is absent means the text itself
    wrap: str | None = None
    dropped: tuple[str, ...] = ()
    outputs: Compiled

    def value(self, result: Mapping[str, Any]) -> Any:
        """Return the contract's value from a result, or a DriverRefusal."""
        if result.get("isError") is True:  # AIP-tools-13
            return upstream_error(result)
        base = self._base(result)
        if isinstance(base, DriverRefusal):
            return base
        extracted = self.path.find(base)
        if isinstance(extracted, Miss):  # AIP-extract-6
            text = _only_text(result) if self.falls_back else None
            if text is None:
                return _failure(f"result_extract {self.path}: {extracted}", step=str(extracted.step))
            extracted = text
        if self.wrap is not None:
            extracted = {self.wrap: extracted}  # AIP-extract-8
        if self.dropped and isinstance(extracted, Mapping):
            extracted = {name: value for name, value in extracted.items() if name not in self.dropped}  # AIP-tools-14
        return self.satisfying(extracted)

    def satisfying(self, value: Any) -> Any:
        """Return the value unchanged if it satisfies the contract's outputs, else a DriverRefusal."""
        fault = self.outputs.maybe_fault(value)  # AIP-tools-14
        if fault is None:
            return value
        return _failure(f"the result is not as the contract has it: {fault}", pointer=fault.pointer)  # AIP-tools-14

    def _base(self, result: Mapping[str, Any]) -> Any:
        if self.parse is not None:
            return self._parse(result, self.parse)
        if "structuredContent" in result:  # AIP-extract-4
            return result["structuredContent"]
        blocks = _blocks(result)
        texts = [_text(block) for block in blocks]
        # With the fallback the text may be anything, a file's content for one: it is not looked into.
        if len(texts) == 1 and texts[0] is not None:  # AIP-extract-5
            return _json(texts[0]) if self.mode != "text" and not self.falls_back else {"content": texts[0]}
        if all(text is not None for text in texts):
            return {"content": "\n".join(text for text in texts if text is not None)}
        return {"content": blocks}

    def _parse(self, result: Mapping[str, Any], parse: ResultParse) -> Any:
        value = _source(result, parse)
        if isinstance(value, DriverRefusal):
            return value
        if parse.form is not None:
            text = value if isinstance(value, str) else _member_text(value)
            if text is None:
                return _failure(f"result_parse reads text, and {parse.source} of the result is none")
            value = self._read(text, parse.form)
            if isinstance(value, DriverRefusal):
                return value
        return value if parse.into is None else {parse.into: value}

    def _read(self, text: str, form: str) -> Any:
        match form:
            case "json":
                return _json(text)
            case "python_literal":
                try:
                    return read_literal(text)
                except NotPlain:
                    return _failure("the text is not a Python literal of plain data")
            case "lines" | "records":
                lines = _lines(text)
                if len(lines) > LINES_MAX:
                    return _failure(f"the text has more than {LINES_MAX} lines")
                return lines if form == "lines" else self._records(lines)
        return text

    def _records(self, lines: list[str]) -> Any:
        assert self.pattern is not None, "records are not registered without their pattern"  # noqa: S101
        records = []
        for number, line in enumerate(lines, 1):
            record = self.pattern.record(line)
            if record is None:  # AIP-extract-8
                return _failure(f"line {number} of the text is not like the pattern of result_parse", line=number)
            records.append(record)
        return records


def upstream_error(result: Mapping[str, Any]) -> DriverRefusal:
    """Return the refusal for a result that the server marked as an error (AIP-tools-13)."""
    texts = [text for block in _blocks(result) if (text := _text(block)) is not None]
    return DriverRefusal(code="upstream_error", message="\n".join(texts) or UNKNOWN)  # AIP-tools-13


def _failure(message: str, **cause: Any) -> DriverRefusal:
    return DriverRefusal(code="output_parse_failed", message=message, cause=cause)  # AIP-extract-6


def _json(text: str) -> Any:
    try:
        return decode_value(text.encode())
    except (CodecError, UnicodeEncodeError):
        return _failure("the text of the result is not JSON")


def _lines(text: str) -> list[str]:
    """Ended by a line feed, with or without a carriage return; what else Unicode calls a line end may be in a name."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if not lines[-1] else lines


def _source(result: Mapping[str, Any], parse: ResultParse) -> Any:
    match parse.source:
        case "result":
            return dict(result)
        case "content":
            return _blocks(result)
        case "structured":
            if "structuredContent" not in result:
                return _failure("the result has no structuredContent")
            return result["structuredContent"]
        case "auto" if parse.form is None and "structuredContent" in result:
            return result["structuredContent"]
    texts = [text for block in _blocks(result) if (text := _text(block)) is not None]
    if not texts:
        return _failure("the result has no text")
    return "\n".join(texts)


def _member_text(value: Any) -> str | None:
    """Return the text of an object whose only member is a text, such as {"content": "..."}, or None."""
    if isinstance(value, Mapping) and len(value) == 1:
        only = next(iter(value.values()))
        return only if isinstance(only, str) else None
    return None


def _only_text(result: Mapping[str, Any]) -> str | None:
    """Return the text of a text-shaped result, or None for any other result (AIP-extract-7)."""
    blocks = _blocks(result)
    text = _text(blocks[0]) if len(blocks) == 1 else None
    if text is None or "structuredContent" not in result:
        return text
    return text if _member_text(result["structuredContent"]) == text else None


def _blocks(result: Mapping[str, Any]) -> list[Any]:
    content = result.get("content")
    return content if isinstance(content, list) else []


def _text(block: Any) -> str | None:
    if isinstance(block, dict) and block.get("type") == "text":
        text = block.get("text")
        return text if isinstance(text, str) else None
    return None
