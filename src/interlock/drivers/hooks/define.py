"""`define_driver`: the fields of a DRIVER.md and the functions a file cannot hold (AIP-define-1).

What is written in the DRIVER.md wins; a field may be left out here, and mostly is.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# As the entry of other hosts writes them.
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
    input: dict[str, Any]  # as the caller gave it; it satisfies the contract
    mapped: dict[str, Any]  # the server's arguments as the DRIVER.md makes them of it
    context: dict[str, Any]
    tool_id: str  # the contract's
    tool_name: str  # the server's


@dataclass(frozen=True, slots=True)
class ParseToolResultArgs:
    result: dict[str, Any]  # the whole answer to tools/call
    tool_id: str
    tool_name: str


BuildArguments = Callable[[BuildArgumentsArgs], dict[str, Any]]
ParseToolResult = Callable[[ParseToolResultArgs], dict[str, Any]]


class DriverRefused(ValueError):
    """Error that reports arguments of define_driver that do not fit together."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class DriverHandle:
    build_arguments: BuildArguments | None = None
    parse_tool_result: ParseToolResult | None = None
    execute: tuple[str, ...] | None = None  # the contracts it names
    _manifest: str = field(default="{}", repr=False)

    @property
    def manifest(self) -> dict[str, Any]:
        """Return a new copy of the frontmatter fields passed to define_driver, under the names of DRIVER.md."""
        manifest: dict[str, Any] = json.loads(self._manifest)
        return manifest


made: Final[list[DriverHandle]] = []  # by this process, for the worker: the handle needs no name


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
    """Declare the driver of this folder, with its hooks.

    Raises TypeError for an unknown keyword, a field that is not JSON or a hook that is not a function, and
    DriverRefused (execute_binding_mismatch) if `execute` and `implements` name different contracts.
    """
    fields: dict[str, Any] = {
        "kind": kind,
        "id": id,
        "name": name,
        "description": description,
        "version": version,
        "implements": implements,
        "server": server,
        "transport": transport,
        "protocol_version": protocol_version,
        "prompts": prompts,
        "resources": resources,
        "connection_options": connection_options,
        "build_arguments": build_arguments,
        "parse_tool_result": parse_tool_result,
    }
    for key, value in others.items():
        meant = ALIASES.get(key, key)
        if meant not in fields and meant not in UNIVERSAL:
            raise TypeError(f"define_driver() got an unexpected keyword argument {key!r}")
        if fields.get(meant) is not None:
            raise TypeError(f"define_driver() got {meant} twice: as {meant} and as {key}")
        fields[meant] = value
    hooks = {hook: fields.pop(hook) for hook in ("build_arguments", "parse_tool_result")}
    for hook, function in hooks.items():
        if function is not None and not callable(function):
            raise TypeError(f"{hook} is a function")
    manifest = {key: value for key, value in fields.items() if value is not None}
    _check_execute(execute, implements)
    handle = DriverHandle(
        **hooks,
        execute=None if execute is None else tuple(execute),
        _manifest=json.dumps(manifest, allow_nan=False, default=_plain),
    )
    made.append(handle)
    return handle


defineDriver = define_driver  # noqa: N816  (AIP-30 wants this name)


def _check_execute(execute: Mapping[str, Any] | None, implements: Sequence[Mapping[str, Any]] | None) -> None:
    """AIP-30: the functions are those of the contracts. What a path leads to is known to the host alone."""
    if execute is None or implements is None:
        return
    named = [str(entry.get("tool")) for entry in implements]
    if not any("/" in each or each.endswith(".md") for each in named) and set(named) != set(execute):
        raise DriverRefused(
            "execute_binding_mismatch", f"execute names {_join_names(execute)} and implements {_join_names(named)}"
        )


def _join_names(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "nothing"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | frozenset | set):
        return list(value)
    raise TypeError(f"a field holds a {type(value).__name__}, which no file can hold")
