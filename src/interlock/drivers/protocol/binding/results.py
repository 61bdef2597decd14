"""Results of a tools/call: the contract's value in a server's result, and the result for the client.

`ResultReader` takes the content of a server's result (AIP-extract-4), parses its text (-5, -8), extracts the value (-6,
-7) and checks it against the contract's outputs (AIP-tools-13 and -14). The way in which text is parsed is decided when
the binding is matched; a result cannot change it.

`value_result`, `with_structured` and `error_result` write the client's result as a tools/call result of MCP 2026-07-28.
The front converts it to the MCP version of the client, as it does with every result. If a server asks the client for
input, `seal_state` adds the name of the driver to the request state, and the retry goes to this driver and no other
(AIP-proto-7). The name is neither secret nor a permission: the driver of a call is always resolved in the same way, and
the name can only exclude other drivers.

`read_literal` parses a Python literal of plain data, as `repr` writes it. Nothing is evaluated, and the time is linear
in the length of the text (AIP-extract-8).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.drivers.protocol.model import ResultParse
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.protocol.result_path import Miss, RecordPattern, ResultPath
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_value, encode_value, find_string
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
    """Error for a text that is not a Python literal of plain data."""


def read_literal(text: str) -> Any:
    """Return the value of a Python literal. Raise NotPlain if the text is anything else."""
    value, at = _value(text, _after_space(text, 0), 0)
    if _after_space(text, at) != len(text):
        raise NotPlain
    return value


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space is not None else at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the value that begins at position `at`, and the position after it."""
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
    return _ESCAPE.sub(_unescape, atom[atom.lastgroup or ""]), atom.end()


def _container(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the list, tuple or dict that begins at `at`, and the position after it.

    Keys must be strings, as in JSON. A set is refused.
    """
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
    # (1) is 1 in parentheses, (1,) is a tuple.
    if opening == "(" and len(items) == 1 and not commas:
        return items[0], at + 1
    return items, at + 1


def _unescape(escape: re.Match[str]) -> str:
    """Return the character that an escape sequence denotes. Raise NotPlain for a surrogate or an unknown escape."""
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
        """Return the contract's value from a result.

        Return a DriverRefusal if the server reports an error, or the value cannot be read or violates the outputs.
        """
        if result.get("isError") is True:  # AIP-tools-13
            return upstream_error(result)
        base = self._base(result) if self.parse is None else self._parse(result, self.parse)
        if isinstance(base, DriverRefusal):
            return base
        extracted = self.path.find(base)
        if isinstance(extracted, Miss):  # AIP-extract-6
            text = None
            if self.falls_back:
                # AIP-extract-7: the text is the value only if the result is nothing but this text.
                blocks = _blocks(result)
                text = _text(blocks[0]) if len(blocks) == 1 else None
                if "structuredContent" in result and text != _member_text(result["structuredContent"]):
                    text = None
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
        fault = self.outputs.find_fault(value)  # AIP-tools-14
        if fault is None:
            return value
        return _failure(f"the result is not as the contract has it: {fault}", pointer=fault.pointer)  # AIP-tools-14

    def _base(self, result: Mapping[str, Any]) -> Any:
        """Return the value to which result_extract is applied, for a binding without result_parse."""
        if "structuredContent" in result:  # AIP-extract-4
            return result["structuredContent"]
        blocks = _blocks(result)
        texts = [_text(block) for block in blocks]
        # With the fallback the text may be anything, such as the content of a file, so it is not read as JSON.
        if len(texts) == 1 and texts[0] is not None:  # AIP-extract-5
            return _json(texts[0]) if self.mode != "text" and not self.falls_back else {"content": texts[0]}
        if all(text is not None for text in texts):
            return {"content": "\n".join(text for text in texts if text is not None)}
        return {"content": blocks}

    def _parse(self, result: Mapping[str, Any], parse: ResultParse) -> Any:
        """Return the value to which result_extract is applied, for a binding with result_parse (AIP-extract-8)."""
        value = _source(result, parse)
        if parse.form is not None and not isinstance(value, DriverRefusal):
            text = value if isinstance(value, str) else _member_text(value)
            if text is None:
                return _failure(f"result_parse reads text, and {parse.source} of the result is no text")
            value = self._read(text, parse.form)
        return value if isinstance(value, DriverRefusal) or parse.into is None else {parse.into: value}

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
                # Only a line feed ends a line. What else Unicode calls a line end may be part of a name.
                lines = [line.removesuffix("\r") for line in text.split("\n")]
                if not lines[-1]:
                    lines.pop()
                if len(lines) > LINES_MAX:
                    return _failure(f"the text has more than {LINES_MAX} lines")
                if form == "lines":
                    return lines
                assert self.pattern is not None, "records are not registered without their pattern"  # noqa: S101
                records = []
                for number, line in enumerate(lines, 1):
                    record = self.pattern.record(line)
                    if record is None:  # AIP-extract-8
                        message = f"line {number} of the text is not like the pattern of result_parse"
                        return _failure(message, line=number)
                    records.append(record)
                return records
        return text


def upstream_error(result: Mapping[str, Any]) -> DriverRefusal:
    """Return the refusal for a result that the server marked as an error (AIP-tools-13)."""
    texts = [text for block in _blocks(result) if (text := _text(block)) is not None]
    return DriverRefusal("upstream_error", "\n".join(texts) or UNKNOWN)  # AIP-tools-13


def _failure(message: str, **cause: Any) -> DriverRefusal:
    return DriverRefusal("output_parse_failed", message, cause=cause)  # AIP-extract-6


def _json(text: str) -> Any:
    try:
        return decode_value(text.encode())
    except (CodecError, UnicodeEncodeError):
        return _failure("the text of the result is not JSON")


def _source(result: Mapping[str, Any], parse: ResultParse) -> Any:
    """Return the member of the result that result_parse reads, or a DriverRefusal if it is missing."""
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
    """Return the text of an object whose only member is a text, such as {"content": "..."}.

    Return None for any other value.
    """
    if isinstance(value, Mapping) and len(value) == 1:
        only = next(iter(value.values()))
        return only if isinstance(only, str) else None
    return None


def _blocks(result: Mapping[str, Any]) -> list[Any]:
    content = result.get("content")
    return content if isinstance(content, list) else []


def _text(block: Any) -> str | None:
    if isinstance(block, dict) and block.get("type") == "text":
        text = block.get("text")
        return text if isinstance(text, str) else None
    return None


ERROR_KEY: Final = "dev.interlock/error"
_HEAD: Final = b'{"resultType":"complete",'


def value_result(value: Any) -> bytes:
    """Return a result that holds the value as structured content, and as text for clients that read only text."""
    structured = encode_value(value)
    text = value if isinstance(value, str) else structured.decode()
    content = encode_value([{"type": "text", "text": text}])
    return _HEAD + b'"content":%b,"structuredContent":%b,"isError":false}' % (content, structured)


def with_structured(result: Raw, value: Any) -> bytes:
    """Return the server's result with `value` as its structured content.

    The bytes of all other members stay unchanged.
    """
    written = bytes(result)
    # Only the opening brace is replaced, so that the other members need not be decoded.
    if written.startswith(b'{"'):
        return b'{"structuredContent":%b,%b' % (encode_value(value), written[1:])
    return encode_value({**(decode_object(result) or {}), "structuredContent": value})


def error_result(error: DriverRefusal, ref: str, content: Sequence[Raw] = ()) -> bytes:
    """Return the result of a failed call. Its text begins with the error's code (AIP-tools-13).

    `content` holds the content blocks of a server that reported the error. They are forwarded, but the first text block
    is moved to the front and receives the code, so the text is not repeated. The error's cause is not sent.
    """
    first = next((block for block in content if _raw_text(block) is not None), None)
    members = decode_object(first) if first is not None else None
    text = error.message if first is None else _raw_text(first)
    head = {"type": "text", **(members or {}), "text": f"{error.code}: {text}"}  # AIP-tools-13
    blocks = [head, *(block for block in content if block is not first)]
    meta: Mapping[str, Any] = {ERROR_KEY: {"code": error.code, "retryable": error.retryable, "ref": ref}}
    return _HEAD + b'"content":%b,"isError":true,"_meta":%b}' % (encode_value(blocks), encode_value(meta))


def _raw_text(block: Raw) -> str | None:
    members = decode_object(block) or {}
    return find_string(members.get("text")) if find_string(members.get("type")) == "text" else None


PREFIX: Final = "ild1."
_END: Final = " "  # in no driver's key


def seal_state(result: Raw, driver: str) -> Raw:
    """Return an input_required result with a sealed requestState.

    The sealed state begins with the name of `driver`, followed by the server's state.
    """
    members: dict[str, Any] = decode_object(result) or {}
    state = find_string(members.get("requestState"))
    members["requestState"] = f"{PREFIX}{driver}{_END}{'' if state is None else '=' + state}"
    return Raw(encode_value(members))


def pin(driver: str) -> str:
    """Return a request state that allows only this driver to serve a call.

    It is used for a call for which no server has asked for input yet.
    """
    return f"{PREFIX}{driver}{_END}"


def open_state_untrusted(raw: Raw) -> tuple[str, Raw | None] | None:
    """Return the driver that a request state names, and the state of its server.

    Return None if `raw` does not have the form that `seal_state` and `pin` write. Nothing here proves who wrote it.
    """
    text = find_string(raw)
    if text is None or not text.startswith(PREFIX):
        return None
    driver, end, state = text.removeprefix(PREFIX).partition(_END)
    if not driver or not end or (state and not state.startswith("=")):
        return None
    return driver, Raw(encode_value(state[1:])) if state else None
