"""The arguments that a server gets for the inputs of a contract (AIP-map-1 to -5). Values are passed unchanged.

The rules are made once per binding (`ArgumentRules`) and applied at every call, in this order: mapping,
argument_mapping, argument_defaults, context_arguments. A default fills an argument that the input leaves empty. A
context argument overrides the input. An input that the contract does not declare reaches the server only if the
contract allows further inputs, and never an argument that a rule fills: otherwise a caller could set what the contract
withholds.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.model import Contract, Driver, Mapped, ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.wire.jsontext.canonical import pointer_step, quoted
from interlock.wire.schemas.shapes import Shape, Side

# The state of a server's question, marked with the driver that asked: the retry goes to no other (AIP-proto-7).
#
# The mark is no secret and gives no right: who serves the retry is resolved as for every call, and it can only be the
# driver named here or to none.


CONTEXT: Final = "context."
NAMES_MAX: Final = 10  # in one message

BRANCHES_DEPTH_MAX: Final = 4  # alternatives inside alternatives

INVALID: Final = "mapping_invalid"  # AIP-map-3


class ArgumentSource(msgspec.Struct, frozen=True, kw_only=True):
    """One input and the argument it goes to."""

    input: str
    argument: str
    transform: str | None = None
    default: Any = msgspec.UNSET  # the contract's own, used where the server requires the argument


class ArgumentRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that turn the contract's inputs into the arguments of one binding."""

    inputs: Mapping[str, ArgumentSource]  # by the contract's name, those dropped left out
    defaults: Mapping[str, Any] = {}
    context: Mapping[str, tuple[str, ...]] = {}  # argument -> steps into the context of the call
    dropped: frozenset[str] = frozenset()
    takes_more: bool = False  # the contract says that there may be further inputs
    required: frozenset[str] = frozenset()  # the server's

    @property
    def fed(self) -> frozenset[str]:
        return frozenset(each.argument for each in self.inputs.values()) | set(self.defaults) | set(self.context)

    def arguments(
        self, inputs: Mapping[str, Any], context: Mapping[str, Any], transformed: Mapping[str, Any]
    ) -> dict[str, Any] | DriverRefusal:
        """Return the arguments for the server, or why the driver cannot take these inputs.

        `transformed` holds the values that driver.py returned for inputs with a transform, by the input name of
        argument_mapping.
        """
        used = [name for name in inputs if name in self.dropped]
        if used:  # AIP-30.implements-4
            return _refusal("input_unsupported", f"this driver takes no {_join_names(used)}", driver_lacks=used)
        arguments: dict[str, Any] = {}
        for name, value in inputs.items():
            feeds = self.inputs.get(name)
            if feeds is None:
                continue
            if feeds.transform is not None and name not in transformed:
                return _refusal("internal", f"the transform of {quoted(name)} was not run")
            # AIP-map-1, AIP-map-2, AIP-map-4, AIP-tools-12
            arguments[feeds.argument] = value if feeds.transform is None else transformed[name]
        stray = [name for name in inputs if name not in self.inputs]
        wrong = stray if not self.takes_more else [name for name in stray if name in self.fed]
        if wrong:
            return _refusal("input_invalid", f"the contract has no input {_join_names(wrong)}", inputs=wrong)
        arguments.update({name: inputs[name] for name in stray})  # AIP-map-2
        for name, value in self.defaults.items():
            arguments.setdefault(name, value)  # AIP-map-5
        for feeds in self.inputs.values():
            if feeds.argument in self.required and feeds.default is not msgspec.UNSET:
                arguments.setdefault(feeds.argument, feeds.default)
        for name, steps in self.context.items():
            value = _inside(context, steps)
            if value is None:  # AIP-map-5: an absent context
                missing = CONTEXT + ".".join(steps)
                return _refusal("input_invalid", f"the call has no {missing}", context=missing)
            arguments[name] = value  # AIP-map-5, AIP-security-7: over what the input has
        return arguments


def _refusal(code: str, message: str, **cause: Any) -> DriverRefusal:
    return DriverRefusal(code=code, message=message, cause=cause)


def _join_names(names: Collection[str]) -> str:
    return ", ".join(quoted(name) for name in list(names)[:NAMES_MAX])


def _inside(context: Mapping[str, Any], steps: tuple[str, ...]) -> Any:
    """Return the value that `steps` lead to, or None if it is absent.

    A null counts as absent, because the server could take it for a user.
    """
    value: Any = context
    for step in steps:
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


def argument_feeds(binding: ToolBinding, contract: Contract, required: Collection[str] = ()) -> ArgumentRules:
    """Return the argument rules of a binding that passed `check_mapping`."""
    side = Side(contract.inputs)
    shape = side.shape(contract.inputs)
    declared = declared_names(side, shape)
    dropped = frozenset(binding.schema_narrowing.drop_inputs)
    first = _first(binding)
    names = shape.names()
    inputs = {}
    for name in declared:
        if name not in dropped:
            renamed, transform = first.get(name, (name, None))
            argument = binding.argument_mapping.get(renamed, renamed)
            defaults = side.shape(*names.get(name, ())).all_of("default")
            default = defaults[0] if defaults else msgspec.UNSET
            inputs[name] = ArgumentSource(input=name, argument=argument, transform=transform, default=default)
    return ArgumentRules(
        inputs=inputs,
        defaults=dict(binding.argument_defaults),
        context={
            name: tuple(path.removeprefix(CONTEXT).split(".")) for name, path in binding.context_arguments.items()
        },
        dropped=dropped,
        takes_more=_takes_more(shape),
        required=frozenset(required),
    )


def _first(binding: ToolBinding) -> dict[str, tuple[str, str | None]]:
    """Return `mapping` by the contract's input, as the new name and the transform.

    In the string form of `mapping` the key is the input.
    """
    renames: dict[str, tuple[str, str | None]] = {}
    for key, value in binding.mapping.items():
        if isinstance(value, Mapped):
            renames[value.source] = (key, value.transform)
        else:
            renames[key] = (value, None)
    return renames


def declared_names(side: Side, shape: Shape, depth: int = 0) -> tuple[str, ...]:
    """Return the names of all properties that an object schema declares, in any of its alternatives."""
    names = dict.fromkeys([*shape.names(), *shape.required()])
    for branch in _branches(shape) if depth < BRANCHES_DEPTH_MAX else ():
        names.update(dict.fromkeys(declared_names(side, side.shape(branch), depth + 1)))
    return tuple(names)


def _branches(shape: Shape) -> Iterator[Mapping[str, Any]]:
    for part in shape.parts:
        for key in ("anyOf", "oneOf", "if", "then", "else", "dependentSchemas"):
            inner = part.get(key)
            if key == "dependentSchemas" and isinstance(inner, Mapping):
                inner = list(inner.values())
            for branch in inner if isinstance(inner, list) else [inner]:
                if isinstance(branch, Mapping):
                    yield branch


def _takes_more(shape: Shape) -> bool:
    """Return whether the schema allows further properties explicitly.

    A missing additionalProperties counts as closed (AIP-tools-4).
    """
    if not shape.is_followed:
        return True
    limits = [*shape.all_of("additionalProperties"), *shape.all_of("unevaluatedProperties")]
    return bool(shape.all_of("patternProperties") or any(each is not False for each in limits)) and False not in limits


def check_mapping(
    driver: Driver, binding: ToolBinding, contract: Contract, transforms: Collection[str] | None
) -> tuple[FileProblem, ...]:
    """Check the mappings of a binding (AIP-map-3 and -4).

    `transforms` are those of driver.py, or None if there is no driver.py.
    """
    return tuple(_Check(driver, binding, contract).problems(transforms))


class _Check:
    def __init__(self, driver: Driver, binding: ToolBinding, contract: Contract) -> None:
        self._places, self._binding = driver.places, binding
        side = Side(contract.inputs)
        shape = side.shape(contract.inputs)
        self._declared = declared_names(side, shape)
        self._found: list[FileProblem] = []

    def _say(self, where: str, code: str, message: str, hint: str) -> None:
        self._found.append(self._places.problem(f"{self._binding.pointer}{where}", code, message, hint))

    def problems(self, transforms: Collection[str] | None) -> list[FileProblem]:
        binding = self._binding
        self._mapping(transforms)
        first = _first(binding)
        renamed = {first.get(name, (name, None))[0]: name for name in self._declared}
        for key, target in binding.argument_mapping.items():
            where = f"/metadata/mcp/argument_mapping/{pointer_step(key)}"
            moved = first.get(key)
            if moved is not None and moved[0] != key:  # AIP-map-4
                self._say(
                    where,
                    "mapping_conflict",
                    f"mapping renames {quoted(key)} to {quoted(moved[0])}, and argument_mapping renames "
                    f"{quoted(key)} to {quoted(target)}",
                    f"keep one of the two, or rename {quoted(moved[0])} here: mapping runs first",
                )
            elif key not in renamed:  # AIP-map-3
                self._say(where, INVALID, f"the contract has no input {quoted(key)}", self._inputs())
            if not target:  # AIP-map-3
                self._say(where, INVALID, f"{quoted(key)} has no argument to go to", "name the server's argument")
        self._twice(first)
        for name, path in binding.context_arguments.items():
            steps = path.removeprefix(CONTEXT).split(".")
            if not name or not path.startswith(CONTEXT) or not all(steps):
                where = f"/metadata/interlock/context_arguments/{pointer_step(name)}"
                self._say(where, INVALID, "this is no place in the context of a call", "write one: context.tenant_id")
        return self._found

    def _mapping(self, transforms: Collection[str] | None) -> None:
        seen: dict[str, str] = {}
        for key, value in self._binding.mapping.items():
            where = f"/mapping/{pointer_step(key)}"
            source = value.source if isinstance(value, Mapped) else key
            if source not in self._declared:
                self._say(where, INVALID, f"the contract has no input {quoted(source)}", self._inputs())
            if source in seen:
                self._say(
                    where,
                    INVALID,
                    f"{quoted(seen[source])} and {quoted(key)} both take {quoted(source)}",
                    "keep one",
                )
            seen[source] = key
            if not (key if isinstance(value, Mapped) else value):
                self._say(where, INVALID, f"{quoted(source)} has no name to go to", "write the new name")
            transform = value.transform if isinstance(value, Mapped) else None
            if transform is not None and (transforms is None or transform not in transforms):  # AIP-map-4
                lacks = "there is no driver.py" if transforms is None else "driver.py does not have it"
                self._say(
                    where,
                    "transform_missing",
                    f"the transform {quoted(transform)} is not there: {lacks}",
                    "write it in driver.py beside the DRIVER.md, or remove it",
                )

    def _twice(self, first: Mapping[str, tuple[str, str | None]]) -> None:
        """Two inputs in one argument."""
        dropped = self._binding.schema_narrowing.drop_inputs
        taken: dict[str, str] = {}
        for name in self._declared:
            if name in dropped:
                continue
            renamed = first.get(name, (name, None))[0]
            target = self._binding.argument_mapping.get(renamed, renamed)
            if target in taken:  # AIP-map-3
                listed = renamed in self._binding.argument_mapping
                where = f"/metadata/mcp/argument_mapping/{pointer_step(renamed)}" if listed else "/metadata/mcp"
                self._say(
                    where,
                    INVALID,
                    f"the inputs {quoted(taken[target])} and {quoted(name)} both go to the argument {quoted(target)}",
                    "give each an argument of its own",
                )
            taken.setdefault(target, name)

    def _inputs(self) -> str:
        return f"its inputs are {_join_names(self._declared)}" if self._declared else "it has no inputs"
