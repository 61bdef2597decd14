"""The declaration of an operation, from which its routing, validation, introspection and description are derived.

A native operation declares itself; the declaration of a tool is computed from the tool's definition
(`tool_operations`). Both are the same value, so that one router, one validator and one introspection serve both.
`check_operation` returns what is wrong with a declaration, in a sentence that names the operation and the fault. Below
are the names of operations and parameters that are made from those of tools (C.map-1, -2, -4), and the life cycle of an
execution (8.4).
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

SPEC_VERSION: Final = "1.0.0-draft"

NAME: Final = re.compile(r"[a-z][a-z0-9_]*")  # of operations, parameters and families (4.3, 8.5.2)
SUMMARY_CHARS_MAX: Final = 120  # of a description in a list of operations
# 8.5.4, by the version of the specification. No adapter may have these names, also while the loop is off.
RESERVED_BY_VERSION: Final[dict[str, tuple[str, ...]]] = {
    "1.0.0-draft": (
        "introspect",  # AQL-8.5.4-1
        "execute_agent",  # AQL-8.5.4-1
        "record_execution_step",  # AQL-8.5.4-1
        "complete_execution",  # AQL-8.5.4-1
        "abort_execution",  # AQL-8.5.4-1
        "confirm_operation",  # AQL-8.5.4-1
        "verify_challenge",  # AQL-8.5.4-1
    )
}
LITERAL_NAMES: Final = frozenset({"stepDescription", "nextActionHint"})  # AQL-4.3-1: prescribed by 8.6.3 against 4.3


def reserved_names() -> frozenset[str]:
    """Return the operation names that the supported version of MCP-AQL reserves."""
    return frozenset(RESERVED_BY_VERSION[SPEC_VERSION])


class Category(Enum):
    """The semantic category of an operation, which says what it does to the resources of its server (2.1)."""

    CREATE = "CREATE"
    READ = "READ"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    EXECUTE = "EXECUTE"


class Danger(IntEnum):
    """The danger level of an operation, in ascending order."""

    SAFE = 0
    REVERSIBLE = 1
    DESTRUCTIVE = 2
    DANGEROUS = 3
    FORBIDDEN = 4

    @property
    def word(self) -> str:
        return self.name.lower()


class Permissions(msgspec.Struct, frozen=True, rename={"read_only": "readOnly"}):
    """The permissions of an operation or endpoint (6.1), as introspection shows them."""

    read_only: bool
    destructive: bool


PERMISSIONS: Final = {
    Category.CREATE: Permissions(False, False),
    Category.READ: Permissions(True, False),
    Category.UPDATE: Permissions(False, True),
    Category.DELETE: Permissions(False, True),
    Category.EXECUTE: Permissions(False, True),
}
DEFAULT_DANGER: Final = {
    Category.CREATE: Danger.REVERSIBLE,
    Category.READ: Danger.SAFE,
    Category.UPDATE: Danger.REVERSIBLE,
    Category.DELETE: Danger.DESTRUCTIVE,
    Category.EXECUTE: Danger.REVERSIBLE,
}

TypeKind = Literal["enum", "object", "scalar", "union"]
_BOUNDS: Final = {  # fields of a parameter -> members of its schema
    "minimum": "minimum",
    "maximum": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
    "items": "items",
}
JSON_TYPES: Final = ("string", "integer", "number", "boolean", "array", "object", "null", "any")


class AqlParameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of an operation, or a field of an object type."""

    name: str
    type: str  # a JSON type word, "X | null", or the name of a type
    required: bool = False
    description: str = ""
    default: Any = msgspec.UNSET
    enum: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    format: str | None = None
    items: Mapping[str, Any] | None = None
    sensitive: bool = False  # its value is never repeated in an error or a log
    allow_nul: bool = False  # strings in it may hold U+0000 (4.7.1)
    original: str | None = None  # how the tool below spells it, where that differs
    of_gateway: bool = False  # read by the node (`fields`, `confirmation_token`); no handler ever sees it
    schema: Mapping[str, Any] | None = None  # of its value, where the fields above do not say all

    @property
    def sent_as(self) -> str:
        return self.original if self.original is not None else self.name

    def _members(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return those of the named fields that are set. `names` maps each field to its name in introspection or in
        JSON Schema.
        """
        values = {shown: getattr(self, name) for name, shown in names.items()}
        return {shown: value for shown, value in values.items() if value is not None and value is not False}

    def info(self) -> dict[str, Any]:
        """Return the description of the parameter that `introspect` shows. The specification allows no other members
        (C.intro-4).
        """
        shown: dict[str, Any] = {"name": self.name, "type": self.type, "required": self.required}
        description = f"{self.description} (U+0000 is allowed)".lstrip() if self.allow_nul else self.description
        if description:
            shown["description"] = description
        if self.default is not msgspec.UNSET:
            shown["default"] = self.default
        if self.enum:
            shown["enum"] = list(self.enum)
        return shown | self._members(_BOUNDS | {"format": "format", "sensitive": "sensitive"})

    def value_schema(self) -> dict[str, Any]:
        """Return the JSON Schema against which values of the parameter are validated."""
        if self.schema is not None:
            return dict(self.schema)
        words = [word.strip() for word in self.type.split("|")]
        schema: dict[str, Any] = {}
        if all(word in JSON_TYPES for word in words) and "any" not in words:
            schema["type"] = words[0] if len(words) == 1 else words
        schema |= self._members(_BOUNDS)
        if self.enum:
            schema["enum"] = [*self.enum, None] if "null" in words and None not in self.enum else list(self.enum)
        return schema


def parameter(name: str, type: str, description: str = "", **others: Any) -> AqlParameter:
    """Return a parameter, or a field of an object type. `others` are further fields of `AqlParameter`."""
    return AqlParameter(name=name, type=type, description=description, **others)


class TypeDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """A named type. `introspect` lists it in short (`info`) and shows it in full (`details`), with no other members
    (C.intro-5).
    """

    name: str
    kind: TypeKind
    description: str = ""
    values: tuple[str, ...] = ()  # of an enum
    fields: tuple[AqlParameter, ...] = ()  # of an object
    members: tuple[str, ...] = ()  # of a union

    def info(self) -> dict[str, Any]:
        return Returns(self.name, self.kind, self.description).info()

    def details(self) -> dict[str, Any]:
        shown = self.info()
        if self.kind == "enum":
            shown["values"] = list(self.values)
        elif self.kind == "object":
            shown["fields"] = [field.info() for field in self.fields]
        elif self.kind == "union":
            shown["members"] = list(self.members)
        return shown


def object_type(name: str, *fields: AqlParameter, description: str = "") -> TypeDeclaration:
    """Return the declaration of an object type with these fields."""
    return TypeDeclaration(name=name, kind="object", fields=fields, description=description)


class Returns(msgspec.Struct, frozen=True):
    """The type of an operation's answer.

    An array is {name: "array", kind: "scalar"}, with its items in the description.
    """

    name: str = "object"
    kind: TypeKind = "object"
    description: str = ""

    def info(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.description:
            shown["description"] = self.description
        return shown


class Lifecycle(msgspec.Struct, frozen=True):
    """The states of a long-running EXECUTE operation and what a client can do with it (8.4.5), as introspection shows
    them.
    """

    states: tuple[str, ...]
    supports_cancel: bool = False
    supports_retry: bool = False
    progress_reporting: bool = False


class Example(msgspec.Struct, frozen=True, omit_defaults=True):
    """An example request that a client may copy."""

    request: dict[str, Any]  # {"operation": ..., "params": {...}}
    description: str = ""


class AqlOperation(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """The declaration of one operation, which the node itself or a tool carries out.

    Without `danger`, the category determines the danger; without `family`, the profile determines the family. Without
    `examples`, introspection generates one. `upsert` marks a CREATE for a resource that may exist already (8.3).
    """

    name: str
    category: Category
    description: str
    parameters: tuple[AqlParameter, ...] = ()
    returns: Returns = Returns()
    danger: Danger | None = None
    danger_reasons: tuple[str, ...] = ()
    confirmation_message: str = ""  # what a caller is asked; {name} stands for a parameter
    family: str | None = None
    examples: tuple[Example, ...] = ()
    types: tuple[TypeDeclaration, ...] = ()  # that its parameters and its answer name
    lifecycle: Lifecycle | None = None
    upsert: bool = False
    arguments_schema: Mapping[str, Any] | None = None  # of all arguments together, as the tool below has it

    @cached_property
    def danger_level(self) -> Danger:
        return DEFAULT_DANGER[self.category] if self.danger is None else self.danger

    @cached_property
    def permissions(self) -> Permissions:
        return PERMISSIONS[self.category]

    @cached_property
    def by_name(self) -> Mapping[str, AqlParameter]:
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def required(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters if parameter.required)

    @cached_property
    def passes_unchanged(self) -> frozenset[str]:
        """The parameters that reach the handler or the tool under the same name and with the same value."""
        return frozenset(
            parameter.name
            for parameter in self.parameters
            if parameter.original is None and not parameter.of_gateway and parameter.name not in SPREAD
        )

    @cached_property
    def input_type(self) -> TypeDeclaration | None:
        """The type of the parameter `input` of an UPDATE operation (4.5), or None."""
        declared = self.by_name.get("input")
        if self.category is not Category.UPDATE or declared is None:  # AQL-4.5-1
            return None
        return next((each for each in self.types if each.name == declared.type), None)

    @cached_property
    def summary(self) -> str:
        """The first line of the description, shortened for a list."""
        line = " ".join(self.description.split("\n", 1)[0].split())
        return line if len(line) <= SUMMARY_CHARS_MAX else line[: SUMMARY_CHARS_MAX - 3].rstrip() + "..."


SPREAD: Final = frozenset({"input", "arguments"})  # whose members a tool below may get as arguments of their own


def is_name(text: object) -> bool:
    return isinstance(text, str) and NAME.fullmatch(text) is not None


def check_operation(operation: AqlOperation, *, may_be_reserved: bool = False) -> str | None:
    """Return why a declaration cannot be registered, or None if it can.

    `may_be_reserved` is true for operations of the node itself, which may have reserved names.
    """
    name = operation.name
    if not is_name(name):  # AQL-8.5.2-1
        return f"operation {name!r}: the name must match ^[a-z][a-z0-9_]*$ (8.5.2)"
    if name in reserved_names() and not may_be_reserved:  # AQL-8.5.4-1
        return f"operation '{name}': the name is reserved (8.5.4)"
    if not isinstance(operation.category, Category):
        choices = ", ".join(category.value for category in Category)
        return f"operation '{name}': the category must be one of {choices} (2.1)"
    if not operation.description.strip():
        return f"operation '{name}': the description is missing"
    seen: set[str] = set()
    for parameter in operation.parameters:
        if not is_name(parameter.name) and parameter.name not in LITERAL_NAMES:  # AQL-4.3-1
            return f"operation '{name}': the parameter name {parameter.name!r} must match ^[a-z][a-z0-9_]*$ (4.3)"
        if parameter.name in seen:
            return f"operation '{name}': the parameter '{parameter.name}' is declared twice"
        seen.add(parameter.name)
    return None


WORD_BORDER: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OUTSIDE: Final = re.compile(r"[^a-z0-9_]+")
_OPERATION_DIGITS: Final = 8
_PARAMETER_DIGITS: Final = 4


def snake(segment: str) -> str:
    """Return a segment in snake case: word boundaries and special characters become `_`, and letters become
    lower case.
    """
    return _OUTSIDE.sub("_", WORD_BORDER.sub("_", segment).lower())


def operation_name(qualified: str) -> str:
    """Return the operation name of a tool: fs.readFile becomes fs__read_file."""
    name = "__".join(snake(segment) for segment in qualified.split("."))
    return name if "a" <= name[:1] <= "z" else f"op_{name}"


def suffixed(name: str, qualified: str, digits: int = _OPERATION_DIGITS) -> str:
    """Return the name with a suffix that makes it unique. The suffix depends only on the tool, so that it never
    changes.
    """
    return f"{name}_x{hashlib.sha256(qualified.encode()).hexdigest()[:digits]}"


def parameter_name(original: str) -> str:
    """Return the parameter name for a tool's property.

    Leading underscores are dropped: underscore names belong to the protocol and are not checked (4.6.1).
    """
    name = snake(original).lstrip("_")
    return name if "a" <= name[:1] <= "z" else f"op_{name}"


def parameter_names(originals: Sequence[str]) -> list[str]:
    """Return the parameter names for the properties of a tool, in the same order. Names that would be equal each get a
    suffix.
    """
    plain = [parameter_name(original) for original in originals]
    doubled = {name for name, count in Counter(plain).items() if count > 1}
    return [
        suffixed(name, original, _PARAMETER_DIGITS) if name in doubled else name
        for name, original in zip(plain, originals, strict=True)
    ]


def type_name(*parts: str) -> str:
    """Return a type name built from an operation and its parameters: fs__read_file, options -> FsReadFileOptions."""
    return "".join(word[:1].upper() + word[1:] for part in parts for word in snake(part).split("_") if word) or "Type"


class ExecutionStatus(Enum):
    """The states of an execution (8.4.2). `MOVES` lists the allowed transitions."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = ExecutionStatus
MOVES: Final[Mapping[ExecutionStatus, frozenset[ExecutionStatus]]] = {
    _S.PENDING: frozenset({_S.RUNNING, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}
TERMINAL: Final = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})


def may_move(status: ExecutionStatus, to: ExecutionStatus, *, supports_retry: bool = False) -> bool:
    """Return whether the transition between two states is allowed (8.4.2). `failed` can be left only by a retry, if
    retries are supported.
    """
    return to in MOVES[status] or (supports_retry and status is _S.FAILED and to is _S.RUNNING)  # AQL-8.4.2-1


def state_answer(
    execution_id: str,
    status: ExecutionStatus,
    *,
    started_at: str | None = None,
    finished_at: str | None = None,
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the state of an execution in the form that clients get (8.4.3).

    `started_at` is present from running on, `finished_at` in terminal states, and `error` in failed.
    """
    state: dict[str, Any] = {"execution_id": execution_id, "status": status.value}
    if started_at is not None:
        state["started_at"] = started_at
    if finished_at is not None and status in TERMINAL:
        state["finished_at"] = finished_at
    if error is not None and status is _S.FAILED:
        state["error"] = dict(error)
    return state
