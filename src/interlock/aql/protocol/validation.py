"""The validation of a request's parameters against the declaration of its operation (4.5, 4.6, C.err-4).

Checked are, in this order: required parameters are present, types, unknown names, constraints. The result is what the
handler or the tool below is sent, each value still the text in which it arrived; or the first failure, which names
everything of its kind.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.protocol import errors
from interlock.aql.protocol.errors import AqlFailure
from interlock.aql.protocol.model import AqlOperation, AqlParameter, TypeDeclaration
from interlock.aql.protocol.requests import OperationRequest, find_duplicate, raw_type
from interlock.aql.protocol.search import did_you_mean
from interlock.aql.protocol.tool_operations import json_type
from interlock.wire.jsonrpc.codec import decode_object, decode_value, encode_value
from interlock.wire.schemas.validators import Compiled, compile_schema, rewritten, without_format

SAFE_INTEGER: Final = 2**53 - 1  # 4.7.3
ERRORS_READ_MAX: Final = 50  # of one value; the first type fault among them is told first
_NUL: Final = b"\\u0000"
_search_nul = re.compile(rb"(?<!\\)(?:\\\\)*(\\u0000)").search  # and not the text of an escape, as in a program


class Arguments(msgspec.Struct, frozen=True):
    """The validated arguments of an operation.

    `text` is the JSON text to send. `own` contains the decoded parameters for the node itself (`fields`,
    `confirmation_token`).
    """

    text: Raw
    own: Mapping[str, Any] = {}
    ignored: tuple[str, ...] = ()  # unknown names, where strict_mode is off


class Validator:
    """A validator of an operation's parameters. It compiles the schema on the first call."""

    __slots__ = ("_compiled", "_operation")

    def __init__(self, operation: AqlOperation) -> None:
        self._operation = operation
        self._compiled: Compiled | None = None

    def validate(self, request: OperationRequest, *, strict: bool = True) -> Arguments | AqlFailure:
        """Validate the parameters of a request. Unless `strict`, unknown parameters are ignored (4.6.2)."""
        operation, members = self._operation, request.members
        by_name = operation.by_name
        unknown: list[str] = [name for name in members if name not in by_name]
        ignored: tuple[str, ...] = ()
        if not strict:  # AQL-4.6.2-2
            # Accept the tool's own spelling of parameters, and ignore unknown names.
            spellings = {parameter.sent_as: parameter.name for parameter in operation.parameters}
            renamed = {spellings.get(name, name): raw for name, raw in members.items()}
            members = {name: raw for name, raw in renamed.items() if name in by_name}
            ignored = tuple(unknown)
            unknown = []
        missing = [by_name[name] for name in operation.required if name not in members]
        if missing:  # AQL-4.5.3-1
            near = did_you_mean(unknown, [parameter.name for parameter in missing])
            hint = f"Did you mean {', '.join(repr(name) for name in near.values())}? " if near else ""
            described = [(each.name, each.type, each.description) for each in missing]
            return errors.missing_params(operation.name, described, unknown, hint)
        own: dict[str, Any] = {}
        if request.text is not None and not ignored and operation.passes_unchanged.issuperset(members):
            text = request.text
        else:
            sent = self._assemble(members, own)
            if isinstance(sent, AqlFailure):
                return sent
            text = Raw(b"{%b}" % b",".join(b"%b:%b" % (encode_value(key), raw) for key, raw in sent.items()))
        # A parameter contains U+0000 only if its declaration allows that (AQL 4.7.1).
        for name, raw in members.items() if bytes(text).find(_NUL) >= 0 else ():
            parameter = by_name.get(name)
            match = _search_nul(bytes(raw)) if parameter is not None and not parameter.allow_nul else None
            if match is not None:
                return errors.invalid_encoding(f"params.{name}", match.start(1))
        wrong = self._check(text, unknown)
        return wrong if wrong is not None else Arguments(text, own, ignored)

    def _assemble(self, members: Mapping[str, Raw], own: dict[str, Any]) -> dict[str, Raw] | AqlFailure:
        """Return the parameters of a request under the names that the tool uses. Return a failure if that is
        impossible.

        If the gateway added the objects `input` and `arguments`, they are replaced by their members. Parameters for the
        node itself are stored in `own`.
        """
        operation = self._operation
        sent: dict[str, Raw] = {}
        for name, raw in members.items():
            parameter = operation.by_name.get(name)
            if parameter is None:
                continue
            if parameter.of_gateway:
                own[name] = decode_value(raw)
            elif name == "input" and operation.input_type is not None:
                spread = self._spread_input(raw, operation.input_type)
                if isinstance(spread, AqlFailure):
                    return spread
                if _is_added_parameter(operation, name):
                    sent |= spread
                else:
                    sent[name] = raw  # a native handler, and a tool with an `input` of its own, take it as it is
            elif name == "arguments" and _is_added_parameter(operation, name):
                more = decode_object(raw) if raw_type(raw) == "object" else None
                if more is None:
                    return errors.invalid_type("arguments", "object", raw_type(raw))
                doubled = sorted(more.keys() & {*sent, *(each.sent_as for each in operation.parameters)})
                if doubled:
                    return errors.invalid_value("arguments", f"'{doubled[0]}' is a parameter of its own; send it once")
                sent |= more
            else:
                sent[parameter.sent_as] = raw
        return sent

    def _spread_input(self, raw: Raw, declared: TypeDeclaration) -> dict[str, Raw] | AqlFailure:
        """Return the members of `input` under the names that the tool uses, or the failure (4.5.3)."""
        operation = self._operation
        members = decode_object(raw) if raw_type(raw) == "object" else None
        if members is None:
            return errors.invalid_type("input", "object", raw_type(raw))  # AQL-4.5.3-2
        doubled = find_duplicate(members, bytes(raw), "input")
        if doubled is not None:
            return doubled
        fields = {field.name: field for field in declared.fields}
        unknown = [name for name in members if name not in fields] if fields else []
        if unknown:
            beside = [name for name in unknown if name in operation.by_name]  # AQL-4.5.3-5
            note = f"'{beside[0]}' belongs beside input, in params" if beside else ""  # AQL-4.5.3-5
            valid = list(fields)
            # AQL-4.5.3-5
            return errors.unknown_fields(operation.name, unknown, valid, did_you_mean(unknown, valid), note)
        return {fields[name].sent_as if name in fields else name: value for name, value in members.items()}

    def _check(self, text: Raw, unknown: list[str]) -> AqlFailure | None:
        """Validate the arguments. Return the first failure of a type, else of an unknown name, else of a constraint
        (C.err-4), or None.
        """
        operation = self._operation
        compiled = self._compiled
        if compiled is None:
            if operation.arguments_schema is not None:
                schema = rewritten(operation.arguments_schema, without_format)
            else:
                types = {declared.name: declared for declared in operation.types}
                schema = {"type": "object", **_object_schema(operation.parameters, types, 0)}
            compiled = self._compiled = compile_schema(schema) or _anything()
        value = decode_value(text)
        is_valid = compiled.accepts(value)
        if is_valid and not unknown:
            # An integer of a native operation must be one that every JSON reader reads exactly (AQL 4.7.3).
            for name, member in value.items() if operation.arguments_schema is None else ():
                if isinstance(member, int) and not isinstance(member, bool) and abs(member) > SAFE_INTEGER:
                    hint = "Beyond 9007199254740991 a number is sent as a string"
                    return errors.invalid_type(name, "string", "integer", hint=hint)
            return None
        faults: list[tuple[bool, AqlFailure]] = []
        # The validator raises ValueError for a value that it cannot represent. The errors before that are enough.
        with suppress(ValueError):
            for error in () if is_valid else islice(compiled.validator.iter_errors(value), ERRORS_READ_MAX):
                faults.append(_failure(error, operation))
        type_faults = [fault for is_type, fault in faults if is_type]
        if type_faults:
            return type_faults[0]  # AQL-4.5.3-3
        if unknown:
            # AQL-4.6-1 and -2, AQL-4.6.1-1
            valid = [parameter.name for parameter in operation.parameters]
            # AQL-4.6-1 and -2, AQL-4.6.1-1
            return errors.unknown_params(operation.name, unknown, valid, did_you_mean(unknown, valid))
        return faults[0][1] if faults else errors.invalid_value("params", "it is not as the operation has it")


@cache
def _anything() -> Compiled:
    """Return a compiled schema that accepts everything. It is used if a tool's own schema cannot be compiled; the tool
    then validates its arguments itself.
    """
    compiled = compile_schema(True)
    if compiled is None:
        raise TypeError("true is a schema")
    return compiled


def _is_added_parameter(operation: AqlOperation, name: str) -> bool:
    """Return whether this parameter is not in the tool's own schema, because the gateway added it to group other
    parameters. The tool then gets its members instead of the object (C.map-6, C.map-10).
    """
    schema = operation.arguments_schema
    return schema is not None and name not in (schema.get("properties") or {})


def _failure(error: Any, operation: AqlOperation) -> tuple[bool, AqlFailure]:
    """Return whether an error is a type error, and its failure. Values of sensitive parameters are not repeated."""
    path = [str(step) for step in error.instance_path]
    name, parameter = _shown_path(path, operation)
    kind = error.kind
    is_secret = parameter is not None and parameter.sensitive
    match kind.name:
        case "type":
            actual = json_type(error.instance)
            is_small = not is_secret and isinstance(error.instance, str | int | float | bool)
            value = error.instance if is_small else msgspec.UNSET
            return True, errors.invalid_type(name, " | ".join(kind.types), actual, value)
        case "required":
            inner = f"{name}.{kind.property}" if path else str(kind.property)
            declared = _type_of(path, operation)
            fields = declared.fields if declared is not None else ()
            field = next((each for each in fields if each.sent_as == kind.property), None)
            missing = (inner, "any", "") if field is None else (inner, field.type, field.description)
            return True, errors.missing_params(operation.name, [missing], of_type=declared.name if declared else None)
        case "additionalProperties" | "unevaluatedProperties":
            unknown = [f"{name}.{each}" if path else str(each) for each in sorted(kind.value)[:10]]
            return False, errors.unknown_fields(operation.name, unknown, [])
        case "enum":
            allowed = list(kind.options[:20])
            why = f"it must be one of {', '.join(map(str, allowed))}"
            return False, errors.invalid_value(name, why, {"allowed": allowed})
    if is_secret:
        return False, errors.invalid_value(name, f"it is not as {kind.name} has it")
    details = {"constraint": kind.name}
    limit = getattr(kind, "limit", None)
    if isinstance(limit, int | float | str):
        details["limit"] = limit
    constraint = f"{kind.name} {limit}" if limit is not None else kind.name
    return False, errors.invalid_value(name, f"it is not as {constraint} has it", details)


def _shown_path(path: list[str], operation: AqlOperation) -> tuple[str, AqlParameter | None]:
    """Return the path of a value as the caller spells it, and the parameter or the field of `input` that contains the
    value.
    """
    if not path:
        return "params", None
    for parameter in operation.parameters:
        if parameter.sent_as == path[0] and not parameter.of_gateway:
            return ".".join((parameter.name, *path[1:])), parameter
    declared = operation.input_type
    for field in declared.fields if declared is not None else ():
        if field.sent_as == path[0]:  # AQL-4.5.3-3
            return ".".join(("input", field.name, *path[1:])), field
    return ".".join(path), None


def _type_of(path: list[str], operation: AqlOperation) -> TypeDeclaration | None:
    """Return the declared type of the object at a path, or None."""
    types = {declared.name: declared for declared in operation.types}
    fields: tuple[AqlParameter, ...] = operation.parameters
    declared_type: TypeDeclaration | None = None
    for step in path:
        if step.isdigit() and declared_type is not None:
            continue
        field = next((each for each in fields if each.sent_as == step and not each.of_gateway), None)
        if field is None and declared_type is None and operation.input_type is not None:
            field = next((each for each in operation.input_type.fields if each.sent_as == step), None)
        names = [] if field is None else field.type.split(" | ")
        if field is not None and field.items is not None:
            names.append(str(field.items.get("type")))
        named = next((types[each] for each in names if each in types), None)
        if named is None:
            return None
        declared_type, fields = named, named.fields
    return declared_type


# Schemas


def _object_schema(
    fields: tuple[AqlParameter, ...], types: Mapping[str, TypeDeclaration], depth: int
) -> dict[str, Any]:
    properties = {field.name: _value_schema(field, types, depth) for field in fields if not field.of_gateway}
    required = [field.name for field in fields if field.required and not field.of_gateway]
    return {"properties": properties, "required": required}


def _value_schema(field: AqlParameter, types: Mapping[str, TypeDeclaration], depth: int) -> Any:
    declared = types.get(field.type.removesuffix(" | null"))
    if declared is None or field.schema is not None or depth > 8:
        return field.value_schema()
    if declared.kind == "enum":
        return {"enum": list(declared.values)}
    if declared.kind != "object":
        return True
    schema: dict[str, Any] = {"type": ["object", "null"] if field.type.endswith(" | null") else "object"}
    if declared.fields:
        schema |= {**_object_schema(declared.fields, types, depth + 1), "additionalProperties": False}  # AQL-4.5.3-3
    return schema


# The deep merge of an UPDATE operation (4.5.1): JSON Merge Patch (RFC 7396) with an object root. Objects merge, any
# other value replaces the old one, and null removes a member.


def merged(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a stored object with changes merged into it. Its arguments do not change."""
    result = dict(stored)
    for key, change in changes.items():
        if change is None:  # AQL-4.5.1-4, AQL-4.5.2-1
            result.pop(key, None)
        elif isinstance(change, Mapping):  # AQL-4.5.1-2
            before = result.get(key)
            result[key] = merged(before if isinstance(before, Mapping) else {}, change)  # AQL-4.5.1-1 and -2
        else:
            result[key] = change  # AQL-4.5.1-1, -3 and -5
    return result
