"""The module that a driver.py imports: `define_driver`, and the arguments that its hooks receive (AIP-define-1).

    from interlock import define_driver

    def build_arguments(args):
        return {**args.mapped, "limit": min(args.input.get("limit", 10), 50)}

    driver = define_driver(build_arguments=build_arguments)

define_driver takes the fields of a DRIVER.md and the functions that a file cannot contain. DRIVER.md takes precedence
(AIP-define-4), so a driver.py usually omits the fields.

This module uses only Python's standard library, because nothing else is available in the process that runs the hooks of
a driver (`worker`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = [
    "BuildArgumentsArgs",
    "DriverHandle",
    "DriverRefused",
    "ParseToolResultArgs",
    "defineDriver",
    "define_driver",
]

# How entries of other hosts spell these keywords.
ALIASES: Final = {
    "protocolVersion": "protocol_version",
    "connectionOptions": "connection_options",
    "buildArguments": "build_arguments",
    "parseToolResult": "parse_tool_result",
}
# Further fields of the frontmatter, which every kind of driver has.
# fmt: off
UNIVERSAL: Final = frozenset((
    "auth", "cost_override", "examples", "health_check", "install", "metadata", "network", "policy_tags", "region",
    "requires", "retry_override", "runner", "sandbox", "tags", "timeout_override_ms", "version_check",
))
# fmt: on


@dataclass(frozen=True, slots=True)
class BuildArgumentsArgs:
    """Argument of the hook build_arguments: the caller's input, and the tool arguments that were already mapped from
    it.
    """

    input: dict[str, Any]  # the caller's input, which satisfies the contract
    mapped: dict[str, Any]  # the server's arguments that the mappings of DRIVER.md make from the input
    context: dict[str, Any]
    tool_id: str  # the id of the contract
    tool_name: str  # the name of the server's tool


@dataclass(frozen=True, slots=True)
class ParseToolResultArgs:
    """Argument of the hook parse_tool_result: the result of the server, and the ids of contract and tool."""

    result: dict[str, Any]  # the whole result of tools/call
    tool_id: str
    tool_name: str


BuildArguments = Callable[[BuildArgumentsArgs], dict[str, Any]]
ParseToolResult = Callable[[ParseToolResultArgs], dict[str, Any]]


class DriverRefused(ValueError):
    """Error: a driver.py passes contradicting values to define_driver, or does not call it exactly once."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class DriverHandle:
    """The hooks that a driver.py passed to define_driver."""

    build_arguments: BuildArguments | None = None
    parse_tool_result: ParseToolResult | None = None
    execute: tuple[str, ...] | None = None  # the contracts that have a function of their own
    _manifest: str = field(default="{}", repr=False)

    @property
    def manifest(self) -> dict[str, Any]:
        """Return a new copy of the fields that were passed to define_driver, under their names in DRIVER.md."""
        manifest: dict[str, Any] = json.loads(self._manifest)
        return manifest


# Every handle of this process. The worker takes it from here, so that driver.py may give it any name.
handles: Final[list[DriverHandle]] = []


def define_driver(
    *,
    kind: str = "mcp",
    id: str | None = None,
    name: str | None = None,
    description: str | None = None,
    version: str | None = None,
    implements: Sequence[Mapping[str, Any]] | None = None,
    server: Mapping[str, Any] | None = None,
    transport: str | None = None,
    protocol_version: str | None = None,
    prompts: Sequence[Mapping[str, Any]] | None = None,
    resources: Sequence[Mapping[str, Any]] | None = None,
    connection_options: Mapping[str, Any] | None = None,
    build_arguments: BuildArguments | None = None,
    parse_tool_result: ParseToolResult | None = None,
    execute: Mapping[str, Any] | None = None,
    **others: Any,
) -> DriverHandle:
    """Declare a driver in its driver.py: the fields of DRIVER.md as keywords, and functions as hooks.

    Raise TypeError for an unknown or repeated keyword, a value of a type that JSON does not have or a hook that is not
    a function, and ValueError for a number that JSON does not have. Raise DriverRefused (execute_binding_mismatch) if
    `execute` and `implements` name different contracts. This is not checked if `implements` contains a path.
    """
    fields: dict[str, Any] = {**locals()}  # the keywords have the names of DRIVER.md
    del fields["execute"], fields["others"]
    for key, value in others.items():
        field_name = ALIASES.get(key, key)
        if field_name not in fields and field_name not in UNIVERSAL:
            raise TypeError(f"define_driver() got an unexpected keyword argument {key!r}")
        if fields.get(field_name) is not None:
            raise TypeError(f"define_driver() got {field_name} twice: as {field_name} and as {key}")
        fields[field_name] = value
    hooks = {hook: fields.pop(hook) for hook in ("build_arguments", "parse_tool_result")}
    for hook, function in hooks.items():
        if function is not None and not callable(function):
            raise TypeError(f"{hook} is a function")
    manifest = {key: value for key, value in fields.items() if value is not None}
    if execute is not None and implements is not None:
        # AIP-30: the functions are those of the contracts. Only the host knows which contract a path leads to.
        contracts = [str(entry.get("tool")) for entry in implements]
        if not any("/" in each or each.endswith(".md") for each in contracts) and set(contracts) != set(execute):
            raise DriverRefused(
                "execute_binding_mismatch",
                f"execute names {_join_names(execute)} and implements {_join_names(contracts)}",
            )
    handle = DriverHandle(
        **hooks,
        execute=None if execute is None else tuple(execute),
        _manifest=json.dumps(manifest, allow_nan=False, default=_plain),
    )
    handles.append(handle)
    return handle


defineDriver = define_driver  # noqa: N816  (AIP-30 wants this name)


def _join_names(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "nothing"


def _plain(value: Any) -> Any:
    """Convert a collection that JSON does not support to one that it does."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | frozenset | set):
        return list(value)
    raise TypeError(f"a field holds a {type(value).__name__}, which no file can hold")
