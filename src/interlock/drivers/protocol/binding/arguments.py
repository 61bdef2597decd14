"""The arguments that a server receives for the inputs of a contract (AIP-map-1 to -5). Values are passed unchanged.

The rules are compiled once per binding (`ArgumentRules`) and applied at every call, in this order: mapping,
argument_mapping, argument_defaults, context_arguments. A default fills an argument that the inputs leave empty. A
context argument overrides the inputs.

An input that the contract does not declare reaches the server only if the contract allows additional inputs. It never
sets an argument that a rule fills; otherwise a caller could set an argument that the contract hides.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.model import Contract, Driver, Mapped, ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.wire.jsontext.canonical import pointer_step, quoted
from interlock.wire.schemas.shapes import Shape, Side

CONTEXT: Final = "context."
NAMES_MAX: Final = 10  # in one message

BRANCHES_DEPTH_MAX: Final = 4  # alternatives inside alternatives

INVALID: Final = "mapping_invalid"  # AIP-map-3


class ArgumentSource(msgspec.Struct, frozen=True, kw_only=True):
    """Mapping of one input of the contract to the argument of the server that receives its value."""

    input: str
    argument: str
    transform: str | None = None
    default: Any = msgspec.UNSET  # the contract's own, used if the server requires the argument


class ArgumentRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that turn the inputs of a contract into the arguments of a server's tool, for one binding."""

    inputs: Mapping[str, ArgumentSource]  # by the contract's name, without those that narrowing drops
    defaults: Mapping[str, Any] = {}
    context: Mapping[str, tuple[str, ...]] = {}  # argument -> steps into the context of the call
    dropped: frozenset[str] = frozenset()
    takes_more: bool = False  # the contract allows further inputs
    required: frozenset[str] = frozenset()  # the arguments that the server requires

    @property
    def filled(self) -> frozenset[str]:
        """Return the names of all arguments that these rules may set."""
        return frozenset(each.argument for each in self.inputs.values()) | set(self.defaults) | set(self.context)

    def arguments(
        self, inputs: Mapping[str, Any], context: Mapping[str, Any], transformed: Mapping[str, Any]
    ) -> dict[str, Any] | DriverRefusal:
        """Return the arguments for the server, or a refusal if the driver cannot handle these inputs.

        `transformed` holds the values that driver.py returned for inputs with a transform, keyed by the contract's name
        of the input.
        """
        used = [name for name in inputs if name in self.dropped]
        if used:  # AIP-30.implements-4
            return _refusal("input_unsupported", f"this driver takes no {_join_names(used)}", driver_lacks=used)
        arguments: dict[str, Any] = {}
        for name, value in inputs.items():
            source = self.inputs.get(name)
            if source is None:
                continue
            if source.transform is not None and name not in transformed:
                return _refusal("internal", f"the transform of {quoted(name)} was not run")
            # AIP-map-1, AIP-map-2, AIP-map-4, AIP-tools-12
            arguments[source.argument] = value if source.transform is None else transformed[name]
        stray = [name for name in inputs if name not in self.inputs]
        wrong = stray if not self.takes_more else [name for name in stray if name in self.filled]
        if wrong:
            return _refusal("input_invalid", f"the contract has no input {_join_names(wrong)}", inputs=wrong)
        arguments.update({name: inputs[name] for name in stray})  # AIP-map-2
        for name, value in self.defaults.items():
            arguments.setdefault(name, value)  # AIP-map-5
        for source in self.inputs.values():
            if source.argument in self.required and source.default is not msgspec.UNSET:
                arguments.setdefault(source.argument, source.default)
        for name, steps in self.context.items():
            value = context
            for step in steps:
                value = value.get(step) if isinstance(value, Mapping) else None
            # A null counts as absent, because the server could take it for a user.
            if value is None:  # AIP-map-5: an absent context
                missing = CONTEXT + ".".join(steps)
                return _refusal("input_invalid", f"the call has no {missing}", context=missing)
            arguments[name] = value  # AIP-map-5, AIP-security-7: over what the input has
        return arguments


def _refusal(code: str, message: str, **cause: Any) -> DriverRefusal:
    return DriverRefusal(code, message, cause=cause)


def _join_names(names: Collection[str]) -> str:
    return ", ".join(quoted(name) for name in list(names)[:NAMES_MAX])


def argument_feeds(binding: ToolBinding, contract: Contract, required: Collection[str] = ()) -> ArgumentRules:
    """Return the argument rules of a binding that passed `check_mapping`.

    `required` names the arguments that the server requires.
    """
    side = Side(contract.inputs)
    shape = side.shape(contract.inputs)
    dropped = frozenset(binding.schema_narrowing.drop_inputs)
    renames = _renames(binding)
    schemas = shape.names()
    inputs = {}
    for name in declared_names(side, shape):
        if name not in dropped:
            renamed, transform = renames.get(name, (name, None))
            argument = binding.argument_mapping.get(renamed, renamed)
            default = next(iter(side.shape(*schemas.get(name, ())).all_of("default")), msgspec.UNSET)
            inputs[name] = ArgumentSource(input=name, argument=argument, transform=transform, default=default)
    limits = [*shape.all_of("additionalProperties"), *shape.all_of("unevaluatedProperties")]
    # Further inputs must be allowed explicitly: a missing additionalProperties counts as closed (AIP-tools-4).
    takes_more = False not in limits and bool(shape.all_of("patternProperties") or limits)
    return ArgumentRules(
        inputs=inputs,
        defaults=dict(binding.argument_defaults),
        context={
            name: tuple(path.removeprefix(CONTEXT).split(".")) for name, path in binding.context_arguments.items()
        },
        dropped=dropped,
        takes_more=takes_more or not shape.is_followed,
        required=frozenset(required),
    )


def _renames(binding: ToolBinding) -> dict[str, tuple[str, str | None]]:
    """Return the renamed inputs of `mapping`: for each input of the contract its new name and its transform.

    In the string form of `mapping` the key is the input of the contract. In the object form the key is the new name.
    """
    return dict(
        (value.source, (key, value.transform)) if isinstance(value, Mapped) else (key, (value, None))
        for key, value in binding.mapping.items()
    )


def declared_names(side: Side, shape: Shape, depth: int = 0) -> tuple[str, ...]:
    """Return the names of all properties that an object schema declares, including those of its alternatives."""
    names = dict.fromkeys([*shape.names(), *shape.required()])
    if depth < BRANCHES_DEPTH_MAX:
        for part in shape.parts:
            for key in ("anyOf", "oneOf", "if", "then", "else", "dependentSchemas"):
                inner = part.get(key)
                if key == "dependentSchemas" and isinstance(inner, Mapping):
                    inner = list(inner.values())
                for branch in inner if isinstance(inner, list) else [inner]:
                    if isinstance(branch, Mapping):
                        names.update(dict.fromkeys(declared_names(side, side.shape(branch), depth + 1)))
    return tuple(names)


def check_mapping(
    driver: Driver, binding: ToolBinding, contract: Contract, transforms: Collection[str] | None
) -> Iterator[FileProblem]:
    """Yield the faults in the mappings of a binding (AIP-map-3 and -4).

    `transforms` are the names of the transforms in driver.py, or None if there is no driver.py.
    """
    side = Side(contract.inputs)
    declared = declared_names(side, side.shape(contract.inputs))
    inputs_hint = f"its inputs are {_join_names(declared)}" if declared else "it has no inputs"

    def problem(field: str, message: str, hint: str, code: str = INVALID) -> FileProblem:
        return driver.places.problem(f"{binding.pointer}{field}", code, message, hint)

    keys: dict[str, str] = {}
    for key, value in binding.mapping.items():
        field = f"/mapping/{pointer_step(key)}"
        source, transform, name = (
            (value.source, value.transform, key) if isinstance(value, Mapped) else (key, None, value)
        )
        if source not in declared:
            yield problem(field, f"the contract has no input {quoted(source)}", inputs_hint)
        if source in keys:
            yield problem(field, f"{quoted(keys[source])} and {quoted(key)} both take {quoted(source)}", "keep one")
        keys[source] = key
        if not name:
            yield problem(field, f"{quoted(source)} has no name to go to", "write the new name")
        if transform is not None and (transforms is None or transform not in transforms):  # AIP-map-4
            lack = "there is no driver.py" if transforms is None else "driver.py does not have it"
            message = f"the transform {quoted(transform)} is not there: {lack}"
            yield problem(
                field, message, "write it in driver.py beside the DRIVER.md, or remove it", "transform_missing"
            )
    renames = _renames(binding)
    new_names = {name: renames.get(name, (name, None))[0] for name in declared}
    for key, target in binding.argument_mapping.items():
        field = f"/metadata/mcp/argument_mapping/{pointer_step(key)}"
        if key in renames and renames[key][0] != key:  # AIP-map-4
            renamed = quoted(renames[key][0])
            message = (
                f"mapping renames {quoted(key)} to {renamed}, "
                f"and argument_mapping renames {quoted(key)} to {quoted(target)}"
            )
            hint = f"keep one of the two, or rename {renamed} here: mapping runs first"
            yield problem(field, message, hint, "mapping_conflict")
        elif key not in new_names.values():  # AIP-map-3
            yield problem(field, f"the contract has no input {quoted(key)}", inputs_hint)
        if not target:  # AIP-map-3
            yield problem(field, f"{quoted(key)} has no argument to go to", "name the server's argument")
    inputs_by_argument: dict[str, str] = {}
    for name, renamed in new_names.items():
        if name in binding.schema_narrowing.drop_inputs:
            continue
        target = binding.argument_mapping.get(renamed, renamed)
        other = inputs_by_argument.setdefault(target, name)
        if other != name:  # AIP-map-3
            is_mapped = renamed in binding.argument_mapping
            field = f"/metadata/mcp/argument_mapping/{pointer_step(renamed)}" if is_mapped else "/metadata/mcp"
            message = f"the inputs {quoted(other)} and {quoted(name)} both go to the argument {quoted(target)}"
            yield problem(field, message, "give each an argument of its own")
    for name, path in binding.context_arguments.items():
        if not name or not path.startswith(CONTEXT) or not all(path.removeprefix(CONTEXT).split(".")):
            field = f"/metadata/interlock/context_arguments/{pointer_step(name)}"
            yield problem(field, "this is no place in the context of a call", "write one: context.tenant_id")
