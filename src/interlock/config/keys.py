"""Declarations of configuration keys, written on the fields of the plan.

A field of a section class carries everything about its key:

    class GatePlan(msgspec.Struct, frozen=True, kw_only=True):
        '''Settings for calls that are held.

        Keys:
            also: Further tools (globs) whose calls wait for a person.
        '''

        also: Annotated[tuple[str, ...], Key(["mail.send_*"])] = ()

Name, type and default are the field's own. The section "Keys:" of the docstring has the help of each key, and `Key` an
example, and the name of an environment variable if a specification gives it one. A `ValueType` beside it says how the
value is read when its type alone does not, `SecretPart` what `interlock check --effective` masks, `AT_ONCE` that a
running node applies a change without a restart. A field without a `Key` is computed and cannot be written in a file.
Reading, error messages, the JSON Schema and the effective configuration follow from these declarations (`keys_of`,
`sections_of`).

A value of a protocol package cannot import this module. Its fields carry `msgspec.Meta` instead of `Key`: `examples`
makes a key, `ge` and `le` are its bounds, and `extra` may hold arguments of the value type.
"""

import enum
import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from interlock.config.problems import WRONG, At, WrongValue, nearest, quoted_word
from interlock.config.value_types import Choice, FilePath, Flag, Many, Seconds, Size, Table, Text, ValueType, Whole

# An entry of the section "Keys:": a name and its help, which may go on in lines that are indented deeper.
_KEY_HELP: Final = re.compile(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)


class SecretPart(enum.Enum):
    """The part of a value that is replaced by a mask when the configuration is shown."""

    VALUE = enum.auto()  # all of it; of a table, each value
    ARGUMENTS = enum.auto()  # of a command, all but the program
    URL_PATH = enum.auto()
    URL_LOGIN = enum.auto()
    URL_QUERY = enum.auto()


class TakesEffect(enum.Enum):
    """A mark of sections and keys that take effect in a running node when they change. Without this mark, a change
    takes effect at the next start.
    """

    AT_ONCE = enum.auto()


AT_ONCE: Final = TakesEffect.AT_ONCE


class Key(msgspec.Struct, frozen=True):
    """The declaration of a key that may be written in a configuration, such as its example and how its value is
    read.
    """

    example: Any = None
    help: str = ""
    kind: ValueType = ValueType()
    default: Any = None  # as written in a file; None: there is none
    goes_with: tuple[str, ...] = ()  # of a server: the ways to reach it that the key may be combined with
    variable: str | None = None  # an environment variable beside INTERLOCK_SECTION__KEY
    name: str = ""
    required: bool = False


class Section(msgspec.Struct, frozen=True):
    """The declaration of a table of the configuration file, such as [node], [[tool]] or [servers.SEGMENT].

    `sections_of` fills in shape, field and keys.
    """

    help: str
    name: str = ""  # in the file, if it differs from the field
    entry: type[msgspec.Struct] | None = None  # the class whose fields are the keys, if the field's type is another
    also: type[msgspec.Struct] | None = None  # a class whose keys may be written too, each without a default
    one_of: tuple[str, ...] = ()  # keys of which an entry has exactly one
    shape: Literal["table", "list", "segments"] = "table"
    field: str = ""
    keys: dict[str, Key] = {}


class StructTable(ValueType, frozen=True):
    """A kind of configuration value: a table whose keys are the fields of a struct."""

    bare = "toml"
    make: type[msgspec.Struct]
    what: str  # "an issuer"
    where: str | None = None  # the header a person writes above it
    example: str | None = None  # how to write it in one line
    each: ValueType | None = None  # the value type of every field
    kinds: Mapping[str, ValueType] = {}  # value types of single fields
    needs: Mapping[str, tuple[str, ...]] = {}  # key -> the keys that it requires
    removed: Mapping[str, tuple[str, str]] = {}  # a key that is refused -> message and hint
    check: Callable[[Any, At], bool] | None = None  # reports what is wrong with the whole record; True if it is sound

    @property
    def fields(self) -> Mapping[str, ValueType]:
        if self.each is not None:
            return dict.fromkeys(self.make.__struct_fields__, self.each)
        return {**_field_types(self.make, tuple(self.kinds)), **self.kinds}

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(field.name for field in msgspec.structs.fields(self.make) if field.required)

    def read(self, value: object, at: At) -> Any:
        if not isinstance(value, dict):
            hint = f"write {self.where} above each one" if self.where is not None else f"for instance {self.example}"
            return at.must_be("a table", value, hint)
        fields = self.fields
        values: dict[str, Any] = {}
        for name, each in value.items():
            inside = at.inside(name)
            if name in self.removed:
                values[name] = inside.wrong(*self.removed[name])
            elif name in fields:
                values[name] = fields[name].read(each, inside)
            else:
                like = nearest(name, fields)
                hint = f"did you mean '{like}'?" if like else f"known here: {', '.join(fields)}"
                values[name] = inside.wrong(f"unknown key {quoted_word(name)} of {self.what}", hint)
        for name in self.required:
            if name not in value:
                values[name] = at.wrong(f"{at.name} needs '{name}'")
        for name, others in self.needs.items():
            for other in others:
                if name in value and other not in value:
                    values[other] = at.inside(name).wrong(f"'{name}' of {at.name} needs '{other}'")
        if any(isinstance(each, WrongValue) for each in values.values()):
            return WRONG
        record = self.make(**values)
        return record if self.check is None or self.check(record, at) else WRONG

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: kind.schema() for name, kind in self.fields.items()},
            "required": list(self.required),
            "additionalProperties": False,
        }
        if self.needs:
            schema["dependentRequired"] = {name: list(others) for name, others in self.needs.items()}
        return schema

    def to_toml(self, value: Any) -> Any:
        fields = self.fields
        return {name: fields[name].to_toml(each) for name, each in msgspec.structs.asdict(value).items() if each != ()}


def keys_of(plan: type[msgspec.Struct], *, defaults: bool = True) -> dict[str, Key]:
    """Return the keys that the fields of the struct type `plan` declare, by name. Inherited keys come last."""
    keys: dict[str, Key] = {}
    sections = (inspect.cleandoc(each.__doc__ or "").partition("\n\nKeys:\n")[2] for each in plan.__mro__)
    help_texts = {name: " ".join(text.split()) for section in sections for name, text in _KEY_HELP.findall(section)}
    own = inspect.get_annotations(plan)
    for field in sorted(msgspec.structs.fields(plan), key=lambda field: field.name not in own):
        declared: Key | None = None
        for note in _split_annotation(field.type)[1]:
            if isinstance(note, Key):
                declared = msgspec.structs.replace(note, help=note.help or help_texts[field.name])
            elif isinstance(note, msgspec.Meta) and note.examples:
                declared = Key(note.examples[0], help_texts[field.name])
        if declared is None:
            continue
        kind = _value_type(field.name, field.type)
        default = declared.default
        if default is None and not field.required and defaults:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            default = None if default is None else kind.to_toml(default)
        keys[field.name] = msgspec.structs.replace(
            declared, name=field.name, kind=kind, default=default, required=field.required
        )
    return keys


def sections_of(plan: type[msgspec.Struct]) -> dict[str, Section]:
    """Return the sections that the fields of the struct type `plan` declare, by their name in the file."""
    sections: dict[str, Section] = {}
    for field in msgspec.structs.fields(plan):
        type_, notes = _split_annotation(field.type)
        section = next((note for note in notes if isinstance(note, Section)), None)
        if section is None:
            continue
        is_list = get_origin(type_) is tuple
        entry = section.entry or (get_args(type_)[0] if is_list else type_)
        keys = keys_of(entry)
        if section.also is not None:
            keys |= keys_of(section.also, defaults=False)
        name = section.name or field.name
        shape = section.shape if section.shape != "table" else "list" if is_list else "table"
        sections[name] = msgspec.structs.replace(section, name=name, field=field.name, keys=keys, shape=shape)
    return sections


def secrets_of(plan: type[msgspec.Struct]) -> dict[str, SecretPart]:
    """Return the fields of the struct type `plan` that hold secrets, with the part of each that is masked."""
    notes = {field.name: _split_annotation(field.type)[1] for field in msgspec.structs.fields(plan)}
    return {name: note for name, each in notes.items() for note in each if isinstance(note, SecretPart)}


@functools.cache
def _field_types(plan: type[msgspec.Struct], without: tuple[str, ...] = ()) -> Mapping[str, ValueType]:
    return {
        field.name: _value_type(field.name, field.type)
        for field in msgspec.structs.fields(plan)
        if field.name not in without
    }


def _split_annotation(type_: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(type_) is Annotated:
        bare, *notes = get_args(type_)
        return bare, tuple(notes)
    return type_, ()


def _value_type(name: str, type_: Any) -> ValueType:
    """Return the kind of configuration value that a field of this Python type takes. Raise TypeError if the type does
    not determine it.
    """
    bare, notes = _split_annotation(type_)
    meta = next((note for note in notes if isinstance(note, msgspec.Meta)), msgspec.Meta())
    for note in notes:
        if isinstance(note, ValueType):
            return note
    if get_origin(bare) in (Union, types.UnionType):
        (bare,) = (each for each in get_args(bare) if each is not types.NoneType)
    extra = meta.extra or {}
    origin = get_origin(bare) or bare
    if origin is bool:
        return Flag()
    if origin is str:
        return Text()
    if origin is Path:
        return FilePath()
    if origin is tuple:
        return Many(_value_type(name, get_args(bare)[0]))
    if origin is Literal:
        return Choice(get_args(bare), **extra)
    if origin is dict and extra:
        return Table(item=_value_type(name, get_args(bare)[1]), **extra)
    if origin in (int, float) and meta.ge is not None and meta.le is not None:
        if origin is float:
            return Seconds(meta.ge, meta.le)
        return (Size if name.endswith("_bytes") else Whole)(int(meta.ge), int(meta.le))
    if inspect.isclass(origin) and issubclass(origin, enum.Enum):
        return Choice(tuple(member.value for member in origin), **extra)
    if inspect.isclass(origin) and issubclass(origin, msgspec.Struct) and extra:
        return StructTable(origin, **extra)
    raise TypeError(f"the type of {name} does not say how it is read: {type_}")
