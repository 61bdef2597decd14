"""The signature of a handler as the declaration of its operation: parameters, types and result.

Annotations are read once. Introspection, validation and the values passed to a handler all follow from them. A text
inside `Annotated` describes a parameter, `msgspec.Meta` bounds it:

title: Annotated[str, "What it is called.", Meta(min_length=1, max_length=200)]
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.inspect import StructType, type_info

from interlock.aql.protocol.model import AqlParameter, Returns, TypeDeclaration
from interlock.sdk.aql import values
from interlock.sdk.aql.executions import Execution
from interlock.sdk.aql.removal import can_be_null, can_be_removed, members

_WORDS: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean", Any: "any"}
_TEXTS: Final[Mapping[Any, tuple[str, str | None, str]]] = {  # pattern, format, what is said of them
    # AQL-4.7.2-1
    datetime: (values.DATE_TIME, "date-time", "ISO 8601 with an offset, as 2026-02-04T10:30:00Z."),
    date: (values.DATE, "date", "ISO 8601, as 2026-02-04; a day in UTC."),  # AQL-4.7.2-1
    Decimal: (values.DECIMAL, None, "A decimal number as text, so that no digit is lost."),
    values.BigInt: (values.INTEGER, None, "An integer as text of digits, of any size."),
}
_UNSET: Final = msgspec.UNSET


class DeclarationInvalid(Exception):
    """Exception for an invalid declaration of an operation. The message names the operation and the fault."""


class HandlerArgument(msgspec.Struct, frozen=True):
    """A parameter of a handler, with the type to which its value is converted."""

    name: str
    type: Any
    is_binary: bool = False


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """A handler function, with what its annotations say about parameters, types and result."""

    function: Callable[..., Any]
    parameters: tuple[AqlParameter, ...]
    arguments: tuple[HandlerArgument, ...]
    types: tuple[TypeDeclaration, ...]
    returns: Returns
    resource: type | None  # what it returns, or what a listing holds
    is_listing: bool
    context: str | None = None
    execution: str | None = None
    page: str | None = None


def read_signature(
    name: str, function: Callable[..., Any], *, partial: Mapping[str, Iterable[str]], is_merged: bool = False
) -> Signature:
    """Read the signature of a handler function. Raise DeclarationInvalid if an annotation cannot be resolved or is not
    supported.

    `partial` are the parameters that take changes of a resource, each with the fields that cannot change. With
    `is_merged`, the library merges these changes into a Struct.
    """
    try:
        hinted = get_type_hints(function, include_extras=True)
        declared = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise DeclarationInvalid(f"operation '{name}': the annotations cannot be resolved: {error}") from error
    reader = _TypeReader(name, is_merged=is_merged)
    parameters: list[AqlParameter] = []
    arguments: list[HandlerArgument] = []
    special: dict[str, str] = {}
    for parameter in declared:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DeclarationInvalid(f"operation '{name}' takes {parameter}; parameters have names, one each")
        hint = hinted.get(parameter.name, Any)
        role = {values.Context: "context", Execution: "execution", values.Page: "page"}.get(hint)
        if role is not None:
            special[role] = parameter.name
            parameters += values.PAGE_PARAMETERS if role == "page" else ()
            continue
        is_required = parameter.default is parameter.empty
        default = _UNSET if is_required else parameter.default
        if _bare(hint)[0] is values.Binary:
            parameters += _binary(parameter.name, reader.described(hint), required=is_required)
            arguments.append(HandlerArgument(parameter.name, values.Binary, is_binary=True))
            continue
        if parameter.name in partial:
            parameters.append(reader.changes(parameter.name, hint, frozenset(partial[parameter.name])))
            arguments.append(HandlerArgument(parameter.name, dict))
            continue
        parameters.append(reader.parameter(parameter.name, hint, required=is_required, default=default))
        arguments.append(HandlerArgument(parameter.name, _bare(hint)[1]))
    returned = hinted.get("return", Any)
    is_listing = get_origin(returned) is values.Listing or returned is values.Listing
    held = (get_args(returned) or (Any,))[0] if is_listing else returned
    return Signature(
        function=function,
        parameters=tuple(parameters),
        arguments=tuple(arguments),
        returns=reader.returns(returned, held, is_listing=is_listing),
        types=tuple(reader.types.values()),
        resource=held if _is_struct(held) else None,
        is_listing=is_listing,
        **special,
    )


def _bare(hint: Any) -> tuple[Any, Any]:
    """Return two variants of a type annotation: one without any metadata, and one with only the metadata that msgspec
    needs to convert values.
    """
    if get_origin(hint) is not Annotated:
        return hint, hint
    inner, metas = get_args(hint)[0], [item for item in _metadata(hint) if isinstance(item, Meta)]
    return inner, Annotated[(inner, *metas)] if metas else inner


def _metadata(hint: Any) -> tuple[Any, ...]:
    """Return the metadata of an `Annotated` type, or an empty tuple for any other type."""
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _binary(name: str, description: str, *, required: bool) -> list[AqlParameter]:
    """Return the three parameters that represent binary data (4.7.4)."""
    text = f"{description} Base64 (RFC 4648) with padding.".strip()
    return [
        AqlParameter(name=f"{name}_content", type="string", required=required, description=text),
        AqlParameter(name=f"{name}_encoding", type="string", enum=("base64",), default="base64"),  # AQL-4.7.4-1
        AqlParameter(name=f"{name}_mime_type", type="string", default=values.OCTETS, description="Its media type."),
    ]


class _TypeReader:
    """A reader of type annotations. It collects the declarations of the types that the signature of one handler
    uses.
    """

    def __init__(self, operation: str, *, is_merged: bool) -> None:
        self._operation = operation
        self._is_merged = is_merged
        self.types: dict[str, TypeDeclaration] = {}

    def described(self, hint: Any) -> str:
        """Return the description in an annotation, joined from all its texts."""
        texts = [each.description if isinstance(each, Meta) else each for each in _metadata(hint)]
        return " ".join(text.strip() for text in texts if isinstance(text, str) and text)

    def parameter(self, name: str, hint: Any, *, required: bool, default: Any = _UNSET) -> AqlParameter:
        """Return the declaration of the parameter `name`. Raise DeclarationInvalid if null is allowed but its meaning
        is not described.
        """
        inner, converted = _bare(hint)
        description = self.described(hint)
        meta = [member for member in _metadata(hint) if isinstance(member, Meta)]
        kinds = [member for member in members(inner) if member not in (type(None), msgspec.UnsetType)]
        # In Python, `X | None = None` says that a parameter may be left out. Null itself is then refused.
        is_left_out = not required and default is None and "null" not in description.lower()
        is_null = type(None) in members(inner) and not is_left_out
        if is_null and "null" not in description.lower():  # AQL-4.7.6-2
            why = f"the description of '{name}' must say what null does (4.7.6)"
            raise DeclarationInvalid(f"operation '{self._operation}': {why}")
        fields: dict[str, Any] = {"name": name, "required": required}
        for flag in ("sensitive", "allow_nul"):
            fields[flag] = any((each.extra_json_schema or {}).get(flag) is True for each in meta)
        if not required and default is not _UNSET and default is not None:
            fields["default"] = msgspec.to_builtins(default)
        fields |= _bounds(meta)
        if len(kinds) == 1:
            word, more, also = self._word(kinds[0])
            fields = {**more, **fields, "type": word}
            description = f"{description} {also}".strip()
        else:
            words = " | ".join(self._word(member)[0] for member in kinds)
            fields |= {"type": words, "schema": msgspec.json.schema(converted)}
        if is_null:
            fields["type"] = f"{fields['type']} | null"  # AQL-4.7.6-2
            if fields.get("schema") is None and fields["type"].split(" ")[0] in self.types:
                fields["schema"] = msgspec.json.schema(converted)
        return AqlParameter(description=description, **fields)

    def changes(self, name: str, hint: Any, fixed: frozenset[str]) -> AqlParameter:
        """Return the declaration of the parameter `input` of an UPDATE, which holds the fields to change. All fields
        are optional, and null removes a field that can be absent (4.5).
        """
        inner = _bare(hint)[0]
        if not _is_struct(inner):
            why = f"'{name}' takes the changes of a resource and needs a Struct type"
            raise DeclarationInvalid(f"operation '{self._operation}': {why}")
        description = self.described(hint) or "The fields to change; null removes one, what is left out stays."
        return AqlParameter(name=name, type=self._changed(inner, fixed), required=True, description=description)

    def _changed(self, kind: Any, fixed: frozenset[str] = frozenset()) -> str:
        """Declare a type for the changes of an object, and return its name. Nested objects get such types too."""
        word = f"{kind.__name__}Input"
        if word not in self.types:
            self.types[word] = TypeDeclaration(name=word, kind="object")  # ends the recursion of a type in itself
            hints = get_type_hints(kind, include_extras=True)
            fields: list[AqlParameter] = []
            info = type_info(kind)
            for field in info.fields if isinstance(info, StructType) else ():
                if field.encode_name in fixed:  # AQL-4.5-2
                    continue
                name, hint = field.encode_name, hints[field.name]
                is_removable, note = self._find_removal(hint, is_required=field.required)
                held = [member for member in members(hint) if member not in (type(None), msgspec.UnsetType)]
                if len(held) == 1 and _is_struct(held[0]):
                    changed = self._changed(held[0]) + (" | null" if is_removable else "")
                    text = f"{self.described(hint)} {note}".strip()
                    fields.append(AqlParameter(name=name, type=changed, description=text))
                    continue
                read = self.parameter(name, _nullable(hint, not is_removable, note=note), required=False)
                text = read.description if is_removable else f"{read.description} {note}".strip()
                fields.append(msgspec.structs.replace(read, required=False, default=_UNSET, description=text))
            self.types[word] = TypeDeclaration(
                name=word, kind="object", description=f"Changes of a {kind.__name__}.", fields=tuple(fields)
            )
        return word

    def _find_removal(self, hint: Any, *, is_required: bool) -> tuple[bool, str]:
        """Return whether null removes a field in changes, and what the description of the field says about null."""
        if not self._is_merged:  # the handler removes it
            return not is_required or type(None) in members(hint), "null removes it."
        if not can_be_removed(hint):  # AQL-4.5.2-2
            return False, "" if is_required else "It always has a value: null is refused."
        return True, "null: it then has no value." if can_be_null(hint) else "null removes it."

    def returns(self, returned: Any, held: Any, *, is_listing: bool) -> Returns:
        """Return the declaration of the handler's result. `returned` is the annotated type of the result, and `held`
        the type of its items if the result is a listing.
        """
        word = self._word(_bare(held)[0])[0]
        if is_listing:
            return Returns("object", "object", f"items of {word}, and pageInfo.")
        if returned is type(None) or returned is None:
            return Returns("null", "scalar")
        if word in self.types:
            return Returns(word, self.types[word].kind)
        return Returns(word, "object" if word in ("object", "any") else "scalar")

    def _word(self, kind: Any) -> tuple[str, dict[str, Any], str]:
        """Return the name of a type in declarations, its constraints, and a description that follows from the type."""
        if kind in _WORDS:
            return _WORDS[kind], {}, ""
        if kind in _TEXTS:
            pattern, form, description = _TEXTS[kind]
            return "string", {"pattern": pattern, "format": form}, description  # AQL-4.7.3-3, AQL-4.7.2-3
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Literal:
            return "string", {"enum": inner}, ""
        if isinstance(kind, type) and issubclass(kind, Enum):
            name, words = kind.__name__, tuple(str(member.value) for member in kind)
            self.types[name] = TypeDeclaration(name=name, kind="enum", values=words, description=_doc(kind))
            return name, {}, ""
        if _is_struct(kind) or _is_struct(origin):
            return self._object(kind), {}, ""
        if kind is list or origin in (list, tuple, set, frozenset):
            items: Any = {"type": self._word(_bare(inner[0])[0])[0]} if inner else {}
            return "array", {"items": items, "schema": msgspec.json.schema(kind)}, ""
        if kind is dict or origin is dict:
            return "object", {"schema": msgspec.json.schema(kind)} if inner else {}, ""
        if kind in (None, type(None)):
            return "null", {}, ""
        try:
            return "any", {"schema": msgspec.json.schema(kind)}, ""
        except (TypeError, NameError, ValueError) as error:
            raise DeclarationInvalid(f"operation '{self._operation}': {kind} cannot be declared: {error}") from error

    def _object(self, kind: Any) -> str:
        """Declare the type of a Struct, and return its name."""
        base = get_origin(kind) or kind
        name: str = base.__name__ + "".join(getattr(argument, "__name__", "") for argument in get_args(kind))
        if name in self.types:
            return name
        self.types[name] = TypeDeclaration(name=name, kind="object")  # ends the recursion of a type in itself
        info = type_info(kind)
        hints = get_type_hints(base, include_extras=True)
        bound = dict(zip(getattr(base, "__parameters__", ()), get_args(kind), strict=False))
        fields = []
        for field in info.fields if isinstance(info, StructType) else ():
            hint = hints[field.name]
            hint = bound.get(hint, hint)
            if type(None) in members(hint):
                hint = _nullable(hint, required=True, note=" null: it has no value.")
            default = field.default if field.default is not msgspec.NODEFAULT else _UNSET
            fields.append(self.parameter(field.encode_name, hint, required=field.required, default=default))
        self.types[name] = TypeDeclaration(name=name, kind="object", description=_doc(base), fields=tuple(fields))
        return name


def _nullable(hint: Any, required: bool, note: str) -> Any:
    """Return the annotation of a field, extended by null if the field is optional."""
    if required and type(None) not in members(hint):
        return hint
    inner, *more = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if msgspec.UnsetType in members(inner):  # absence is not a value in JSON
        inner = typing.Union[tuple(member for member in members(inner) if member is not msgspec.UnsetType)]  # noqa: UP007
    return Annotated[(inner | None, *more, note.strip())]


def _bounds(metas: Iterable[Meta]) -> dict[str, Any]:
    """Return the limits in annotations, such as a maximum, as members of a parameter's declaration."""
    same = {name: name for name in ("min_length", "max_length", "pattern")}
    names = {"minimum": "ge", "maximum": "le", **same}
    return {key: value for meta in metas for key, name in names.items() if (value := getattr(meta, name)) is not None}


def _doc(kind: type) -> str:
    text = kind.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{kind.__name__}(") else inspect.cleandoc(text).split("\n\n", 1)[0]
