"""Results of a tools/call: how they are read, the contract's value in them, and the result for the client.

`settle` runs once per binding, before any call (AIP-tools-6, AIP-extract-5 and -7). It follows result_extract through
the server's outputSchema (`path_type`) and compares the schema at the end of the path with the contract's outputs. If
no value can satisfy the contract, the difference is a refusal. If the schemas do not decide, the difference is a doubt,
and the value is checked at every call. A tool without outputSchema returns text. The text is parsed as JSON only if
plain text could not satisfy the contract. If result_extract is a single name, the text replaces the member of that name
only if the binding allows the fallback to text (AIP-extract-7).

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

from interlock.drivers.protocol import result_path
from interlock.drivers.protocol.model import Contract, ResultParse, ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_value, encode_value, find_string
from interlock.wire.schemas import inclusion
from interlock.wire.schemas.budget import Effort, EffortSpent
from interlock.wire.schemas.shapes import DEPTH_MAX, Side, alternatives, types_shown
from interlock.wire.schemas.validators import Compiled

LITERAL_DEPTH_MAX: Final = 100
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
    """Error: a text is not a Python literal of plain data."""


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
    if depth > LITERAL_DEPTH_MAX or at >= len(text):
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

LINES_MAX: Final = 100_000


class ResultReader(msgspec.Struct, frozen=True, kw_only=True):
    """Rules by which the results of a server's tool become values of the contract."""

    binding: ToolBinding
    mode: Mode
    path: result_path.ResultPath
    pattern: result_path.RecordPattern | None = None
    falls_back: bool = False  # a single name that is absent means the text itself
    outputs: Compiled

    def value(self, result: Mapping[str, Any]) -> Any:
        """Return the value that the contract promises, taken from a result of the server.

        Return a DriverRefusal if the server reports an error, or the value cannot be read or violates the outputs.
        """
        if result.get("isError") is True:  # AIP-tools-13
            return upstream_error(result)
        binding, parse = self.binding, self.binding.result_parse
        base = self._base(result) if parse is None else self._parse(result, parse)
        if isinstance(base, DriverRefusal):
            return base
        extracted = self.path.find(base)
        if isinstance(extracted, result_path.Miss):  # AIP-extract-6
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
        if binding.result_wrap is not None:
            extracted = {binding.result_wrap: extracted}  # AIP-extract-8
        dropped = binding.schema_narrowing.drop_outputs
        if dropped and isinstance(extracted, Mapping):
            extracted = {name: value for name, value in extracted.items() if name not in dropped}  # AIP-tools-14
        return self.satisfying(extracted)

    def satisfying(self, value: Any) -> Any:
        """Return the value unchanged if it satisfies the contract's outputs, else a DriverRefusal."""
        fault = self.outputs.find_fault(value)  # AIP-tools-14
        if fault is None:
            return value
        return _failure(f"the result is not as the contract has it: {fault}", pointer=fault.pointer)  # AIP-tools-14

    def _base(self, result: Mapping[str, Any]) -> Any:
        """Return the value to which result_extract is applied if the binding has no result_parse: the structured
        content, or a value made from the text.
        """
        if "structuredContent" in result:  # AIP-extract-4
            return result["structuredContent"]
        texts = _texts(result)
        if len(texts) < len(_blocks(result)):
            return {"content": _blocks(result)}
        # With the fallback the text may be anything, such as the content of a file, so it is not read as JSON.
        if len(texts) == 1 and self.mode != "text" and not self.falls_back:  # AIP-extract-5
            return _json(texts[0])
        return {"content": "\n".join(texts)}

    def _parse(self, result: Mapping[str, Any], parse: ResultParse) -> Any:
        """Parse a result according to `result_parse`, for example as lines of text. Return the value to which
        `result_extract` is applied next (AIP-extract-8).
        """
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
    return DriverRefusal("upstream_error", "\n".join(_texts(result)) or "unknown")  # AIP-tools-13


def _failure(message: str, **cause: Any) -> DriverRefusal:
    return DriverRefusal("output_parse_failed", message, cause=cause)  # AIP-extract-6


def _json(text: str) -> Any:
    try:
        return decode_value(text.encode())
    except (CodecError, UnicodeEncodeError):
        return _failure("the text of the result is not JSON")


def _source(result: Mapping[str, Any], parse: ResultParse) -> Any:
    """Return the part of a result that result_parse reads, or a DriverRefusal if it is missing."""
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
    texts = _texts(result)
    return "\n".join(texts) if texts else _failure("the result has no text")


def _member_text(value: Any) -> str | None:
    """Return the text of an object whose only member is a text, such as {"content": "..."}.

    Return None for any other value.
    """
    texts = list(value.values()) if isinstance(value, Mapping) else []
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else None


def _blocks(result: Mapping[str, Any]) -> list[Any]:
    content = result.get("content")
    return content if isinstance(content, list) else []


def _texts(result: Mapping[str, Any]) -> list[str]:
    return [text for block in _blocks(result) if (text := _text(block)) is not None]


def _text(block: Any) -> str | None:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    return text if isinstance(text, str) else None


ERROR_KEY: Final = "dev.interlock/error"
_HEAD: Final = b'{"resultType":"complete",'


def value_result(value: Any) -> bytes:
    """Return a result that holds the value as structured content, and as text for clients that read only text."""
    structured = encode_value(value)
    text = value if isinstance(value, str) else structured.decode()
    content = encode_value([{"type": "text", "text": text}])
    return _HEAD + b'"content":%b,"structuredContent":%b,"isError":false}' % (content, structured)


def with_structured(result: Raw, value: Any) -> bytes:
    """Return the server's result with `value` added as its structured content.

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
    """Return an input_required result whose requestState also names the driver, so that the next round goes to the same
    driver.

    The sealed state begins with the name of `driver`, followed by the server's state.
    """
    members: dict[str, Any] = decode_object(result) or {}
    state = find_string(members.get("requestState"))
    members["requestState"] = f"{PREFIX}{driver}{_END}{'' if state is None else '=' + state}"
    return Raw(encode_value(members))


def pin(driver: str) -> str:
    """Return a requestState that names a driver, so that only this driver may serve the next round of a call.

    It is used for a call for which no server has asked for input yet.
    """
    return f"{PREFIX}{driver}{_END}"


def open_state_untrusted(raw: Raw) -> tuple[str, Raw | None] | None:
    """Split a requestState into the name of the driver and the requestState of the driver's server, which may be None.

    Return None if `raw` does not have the form that `seal_state` and `pin` write. Nothing here proves who wrote it.
    """
    text = find_string(raw) or ""
    driver, end, state = text.removeprefix(PREFIX).partition(_END)
    if not text.startswith(PREFIX) or not driver or not end or (state and not state.startswith("=")):
        return None
    return driver, Raw(encode_value(state[1:])) if state else None


TEXT: Final[Mapping[str, Any]] = {"type": "string"}
CONTENT: Final = "content"  # the member under which a text stands (AIP-extract-4)
PARSE_HINT: Final = (
    "add result_parse to metadata.interlock of the binding, to read the text as json, lines or records, and set"
    ' result_extract to where it puts the value: "$", or "$.NAME" with into: NAME'
)
UNLISTED: Final = "no outputSchema"


class Nowhere(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `path_type` if `step` selects nothing in any value that satisfies the schema."""

    step: result_path.Step


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `path_type` if the schema does not describe the values that `step` selects."""

    step: result_path.Step


Schemas = tuple[Any, ...]  # all of them hold for the value


def path_type(side: Side, schema: Any, path: result_path.ResultPath) -> Schemas | Nowhere | Unknown:
    """Return the JSON Schemas of the values that a path selects. They are found from the schema alone, without a value.

    Every value at the end of the path satisfies all of them. If the path cannot be followed, return the step at which
    it ends.
    """
    try:
        return _follow(side, (schema,), path.steps, 0, Effort())
    except EffortSpent:
        return Unknown(step=path.steps[0])


def _follow(
    side: Side, schemas: Schemas, steps: tuple[result_path.Step, ...], depth: int, effort: Effort
) -> Schemas | Nowhere | Unknown:
    """Follow the remaining steps of a path through a schema, and return the schemas at its end. A value at the present
    position satisfies all of `schemas`.

    The alternatives of a schema are followed separately. `depth` and `effort` limit the work for large schemas.
    """
    effort.spend(1)
    if not steps:
        return schemas
    step, rest = steps[0], steps[1:]
    if depth > DEPTH_MAX:
        return Unknown(step=step)
    shape = side.shape(*schemas)
    effort.spend(len(shape.parts) + shape.steps)
    if ("object" if isinstance(step, result_path.NameStep) else "array") not in shape.types:
        return Nowhere(step=step)
    # One group of alternatives is enough, because each of its branches holds the others. A branch in which the path
    # ends is left out: a value of that branch fails at the call.
    branches = next(iter(alternatives(shape)), None)
    if branches is not None:
        ends = [_follow(side, branch, steps, depth + 1, effort) for branch in branches]
        unknown = next((end for end in ends if isinstance(end, Unknown)), None)
        reached = [{"allOf": list(end)} for end in ends if isinstance(end, tuple)]
        nowhere = next((end for end in ends if isinstance(end, Nowhere)), Nowhere(step=step))
        return unknown or (({"anyOf": reached},) if reached else nowhere)
    if isinstance(step, result_path.NameStep):
        member = shape.names().get(step.key)
        if member is None:
            if shape.shuts_out(step.key):
                return Nowhere(step=step)
            member = tuple(each for each in shape.all_of("additionalProperties") if isinstance(each, dict))
            if not member:
                return Unknown(step=step)
        return _follow(side, member, rest, depth + 1, effort)
    # The schemas of the array element that the step selects.
    items = shape.all_of("items")
    listed = [*shape.all_of("prefixItems"), *(each for each in items if isinstance(each, list))]
    element = tuple(each for each in items if not isinstance(each, list)) if not listed else ()
    if len(listed) == 1 and isinstance(listed[0], list) and isinstance(step, result_path.IndexStep):
        element = tuple(listed[0][step.number : step.number + 1])
    if not element:
        return Unknown(step=step)
    end = _follow(side, element, rest, depth + 1, effort)
    if isinstance(step, result_path.EachStep | result_path.WhereStep) and isinstance(end, tuple):
        return ({"type": "array", "items": {"allOf": list(end)}},)
    return end


class SettledOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Decision about how the results of a bound tool are read, with the differences between the values read and the
    contract's outputs.

    `refusals` prevent the binding; `doubts` are checked at every call. In each difference, `narrow` is the server's
    side and `wide` the contract's.
    """

    mode: Mode
    falls_back: bool = False
    refusals: tuple[inclusion.SchemaDifference, ...] = ()
    doubts: tuple[inclusion.SchemaDifference, ...] = ()
    hint: str = ""


def settle(
    binding: ToolBinding,
    path: result_path.ResultPath,
    contract: Contract,
    offered: Any,
    pattern: result_path.RecordPattern | None,
) -> SettledOutput:
    """Decide how the results of a bound tool are read, and check whether the values read satisfy the contract's
    outputs.

    `offered` is the tool's outputSchema, or None if it has none. `pattern` is the compiled pattern of result_parse.
    """
    outputs = Side(contract.outputs)
    parse = binding.result_parse
    if parse is not None:
        mode: Mode = parse.form or ("text" if offered is None or parse.source in {"text", "content"} else "structured")
        side, base = _parsed_schema(parse, offered, pattern)
        return _settle_path(mode, side, base, binding, path, outputs)
    name = path.only_name
    if offered is not None:
        side = Side(offered)
        if name is not None and _is_text_shaped(side, offered) and name not in side.shape(offered).names():
            return _settle_fallback("structured", name, side, binding, outputs)
        return _settle_path("structured", side, offered, binding, path, outputs)
    doubt = inclusion.SchemaDifference(path="", narrow=UNLISTED, wide="outputs")
    first = path.steps[0] if path.steps else None
    text_schema = _object_of(CONTENT, TEXT) if first is None else TEXT
    reaches_text = first is None or name is not None or first == result_path.NameStep(CONTENT)
    if not reaches_text or inclusion.exclusions(Side({}), _wrapped_schema(text_schema, binding), outputs, outputs.root):
        return SettledOutput(mode="json", doubts=(doubt,))
    if name is None or name == CONTENT:
        return SettledOutput(mode="text", doubts=(doubt,))
    settled = _settle_fallback("text", name, Side({}), binding, outputs)
    return msgspec.structs.replace(settled, doubts=(doubt, *settled.doubts))


def needs_parsing(binding: ToolBinding, path: result_path.ResultPath, contract: Contract) -> bool:
    """Return whether the outputs of a contract are an array that a server cannot give as text, because the binding has
    no result_parse. Whether the server answers with text is not known before it is started.
    """
    outputs = Side(contract.outputs)
    if binding.result_parse is not None or outputs.shape(outputs.root).types != {"array"}:
        return False
    return bool(settle(binding, path, contract, _object_of(CONTENT, TEXT), None).refusals)


def _is_text_shaped(side: Side, schema: Any) -> bool:
    """Return whether a result is an object whose only member is a text."""
    shape = side.shape(schema)
    members = list(shape.names().values())
    return shape.types == {"object"} and len(members) == 1 and types_shown(side.shape(*members[0]).types) == "string"


def _settle_fallback(mode: Mode, name: str, side: Side, binding: ToolBinding, outputs: Side) -> SettledOutput:
    """Decide how results without a member called `name` are read: from their text if the binding allows it, otherwise
    not at all (AIP-extract-7).
    """
    if not binding.text_fallback:  # AIP-extract-7
        missing = inclusion.SchemaDifference(path=f"/{name}", narrow="nothing of this name", wide="outputs")
        return SettledOutput(mode=mode, refusals=(missing,))
    return msgspec.structs.replace(_settle_comparison(mode, side, TEXT, binding, outputs), falls_back=True)


def _settle_path(
    mode: Mode, side: Side, base: Any, binding: ToolBinding, path: result_path.ResultPath, outputs: Side
) -> SettledOutput:
    """Compare the part of a result that result_extract selects with the contract's outputs. `base` is the schema from
    which `path` starts.
    """
    end = path_type(side, base, path)
    if isinstance(end, Nowhere):  # AIP-tools-6
        missing = inclusion.SchemaDifference(path=str(path), narrow=f"nothing at {end.step}", wide="outputs")
        return SettledOutput(mode=mode, refusals=(missing,))
    if isinstance(end, Unknown):
        unknown = inclusion.SchemaDifference(path=str(path), narrow=f"no schema at {end.step}", wide="outputs")
        return SettledOutput(mode=mode, doubts=(unknown,))
    return _settle_comparison(mode, side, {"allOf": list(end)}, binding, outputs)


def _settle_comparison(mode: Mode, side: Side, schema: Any, binding: ToolBinding, outputs: Side) -> SettledOutput:
    """Compare the schema of the extracted value with the contract's outputs.

    The schema is first wrapped as result_wrap demands, and reduced by the outputs that the driver drops.
    """
    offered = _wrapped_schema(schema, binding)
    if dropped := binding.schema_narrowing.drop_outputs:
        offered = _without_properties(side, offered, dropped)
    refusals = inclusion.exclusions(side, offered, outputs, outputs.root)
    if refusals:  # AIP-tools-6
        is_text = _is_text_shaped(side, schema) or side.shape(schema).types == {"string"}
        is_unread_text = is_text and binding.result_parse is None
        return SettledOutput(mode=mode, refusals=refusals, hint=PARSE_HINT if is_unread_text else "")
    outcome = inclusion.includes(outputs, outputs.root, side, offered, unnamed=inclusion.InclusionVerdict.ACCEPTS)
    return SettledOutput(mode=mode, doubts=outcome.differences)


def _parsed_schema(parse: ResultParse, offered: Any, pattern: result_path.RecordPattern | None) -> tuple[Side, Any]:
    """Return the schema of the values that result_parse produces from a result.

    The binding has a result_parse block (AIP-extract-8).
    """
    side = Side({})
    base: Any = True
    match parse.form:
        case "text":
            base = TEXT
        case "lines":
            base = {"type": "array", "items": TEXT}
        case "records" if pattern is not None:
            record = {"type": "object", "properties": dict.fromkeys(pattern.groups, TEXT)}
            base = {"type": "array", "items": {**record, "additionalProperties": False}}
        case None if parse.source in {"auto", "structured"}:
            side, base = Side(offered), True if offered is None else offered
        case None:
            base = {"text": TEXT, "content": {"type": "array"}, "result": {"type": "object"}}[parse.source]
    return side, base if parse.into is None else _object_of(parse.into, base)


def _object_of(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}


def _wrapped_schema(schema: Any, binding: ToolBinding) -> Any:
    """Return the schema that results have after the binding's result_wrap has put the value into an object. Without
    result_wrap, return `schema`.
    """
    return schema if binding.result_wrap is None else _object_of(binding.result_wrap, schema)


def _without_properties(side: Side, schema: Any, dropped: tuple[str, ...]) -> Any:
    """Return a schema without the properties that the driver does not support."""
    parts = []
    for part in side.shape(schema).parts:
        remaining = {key: value for key, value in part.items() if key not in {"$ref", "allOf"}}
        properties = remaining.get("properties")
        if isinstance(properties, Mapping):
            remaining["properties"] = {name: each for name, each in properties.items() if name not in dropped}
        parts.append(remaining)
    return {"allOf": parts}
