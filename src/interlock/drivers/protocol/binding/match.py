"""The match of a binding with its contract and the tool that its server lists (AIP-tools-2, -4 to -8, -11).

There are three stages. `check_binding` and `contract_misfits` compare DRIVER.md with TOOL.md before any server is
started. `match` compares the contract with the tool definition that the server lists. It returns a `Bound`, which
creates arguments and reads results, or every difference as a problem. At each call, everything is checked that two JSON
Schemas do not decide in advance (the warning contract_unverified): arguments are checked against the server's
inputSchema before they are sent, and values against the contract's outputs before they are returned.

The arguments that a server receives for the inputs of a contract follow rules that are compiled once per binding
(`ArgumentRules`) and applied at every call, in this order: mapping, argument_mapping, argument_defaults,
context_arguments (AIP-map-1 to -5). Values are passed unchanged. A default fills an argument that the inputs leave
empty. A context argument overrides the inputs. An input that the contract does not declare reaches the server only if
the contract allows additional inputs. It never sets an argument that a rule fills; otherwise a caller could set an
argument that the contract hides.

A driver.py takes part in each stage. `HookEntry` describes its contents. `check_entry` compares it with the DRIVER.md
in the same folder, which wins if the two differ (AIP-define-4). The values that its hooks return cannot be compared in
advance: at each call `read_driver_result` checks their form, and the binding checks their content.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.binding.results import UNLISTED, ResultReader, settle
from interlock.drivers.protocol.files.driver import ENTRY, check_reading
from interlock.drivers.protocol.files.versions import satisfies
from interlock.drivers.protocol.model import Contract, Driver, Mapped, ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem, Severity, is_refused
from interlock.drivers.protocol.result_path import RecordPattern, ResultPath, read_path, read_pattern
from interlock.wire.jsontext.canonical import pointer_step, quoted
from interlock.wire.schemas.inclusion import InclusionOutcome, InclusionVerdict, combine, differs, includes
from interlock.wire.schemas.shapes import Shape, Side
from interlock.wire.schemas.validators import Compiled, compile_schema

CONTEXT: Final = "context."
NAMES_MAX: Final = 10  # in one message

BRANCHES_DEPTH_MAX: Final = 4  # alternatives inside alternatives


class ArgumentSource(msgspec.Struct, frozen=True, kw_only=True):
    """Rule by which one input of a contract becomes an argument of the server's tool."""

    input: str
    argument: str
    transform: str | None = None
    default: Any = msgspec.UNSET  # the contract's own, used if the server requires the argument


class ArgumentRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that turn the inputs of a contract into the arguments of a server's tool."""

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
    """Return the rules by which a binding turns the inputs of its contract into arguments of the server's tool. The
    binding must have passed `check_binding`.

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
    """Return how the block `mapping` renames inputs: for each input its new name and its transform.

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


def check_binding(
    driver: Driver, binding: ToolBinding, contract: Contract, *, transforms: Collection[str] | None = None
) -> Iterator[FileProblem]:
    """Yield the errors in a driver's binding that can be found without asking the server for its tools (AIP-map-3 and
    -4, AIP-extract-3 and -8).

    `transforms` are the names of the transforms in driver.py, or None if there is no driver.py.
    """
    yield from check_reading(driver.places, binding)
    side = Side(contract.inputs)
    declared = declared_names(side, side.shape(contract.inputs))
    inputs_hint = f"its inputs are {_join_names(declared)}" if declared else "it has no inputs"

    def problem(field: str, message: str, hint: str, code: str = "mapping_invalid") -> FileProblem:
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
            hint = "write it in driver.py beside the DRIVER.md, or remove it"
            yield problem(field, message, hint, "transform_missing")
    renames = _renames(binding)
    new_names = {name: renames.get(name, (name, None))[0] for name in declared}
    for key, target in binding.argument_mapping.items():
        field = f"/metadata/mcp/argument_mapping/{pointer_step(key)}"
        if key in renames and renames[key][0] != key:  # AIP-map-4
            name, renamed = quoted(key), quoted(renames[key][0])
            message = f"mapping renames {name} to {renamed}, and argument_mapping renames {name} to {quoted(target)}"
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


UNAVAILABLE: Final = "tool_unavailable"
MISMATCH: Final = "contract_mismatch"  # AIP-tools-2
MESSAGE_CHARS_MAX: Final = 4096  # of an error that a hook returns
# fmt: off
STANDARD: Final = frozenset((  # AIP-30.errors-1
    "auth_required", "auth_failed", "version_mismatch", "install_failed", "tool_unavailable",
    "execute_binding_mismatch", "input_unsupported", "policy_violation", "region_mismatch",
    "pinned_provider_unavailable", "output_parse_failed", "cancelled", "timeout", "internal",
))
# fmt: on

_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_ALTERNATIVES: Final = ("anyOf", "oneOf", "if", "not")
# Keywords about the object as a whole. Property by property, nothing shows whether an input satisfies them.
_ROOT_DOUBTS: Final = (
    *_ALTERNATIVES,
    *("dependencies", "dependentRequired", "dependentSchemas", "minProperties", "maxProperties", "propertyNames"),
    "unevaluatedProperties",
)
_HINTS: Final = {
    "input": "map the input with argument_mapping, add argument_defaults, or bind another tool",
    "output": "fix result_extract, or bind another tool",
    "effect": "say in the contract what it mutates, or bind a tool that only reads",
}


class HookEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Declarations of a loaded driver.py: its fields and its hooks."""

    manifest: dict[str, Any] = {}  # the fields of DRIVER.md that it passes to define_driver
    builds: bool = False  # it has build_arguments
    parses: bool = False  # it has parse_tool_result
    execute: tuple[str, ...] | None = None  # the contracts that have a function of their own
    transforms: frozenset[str] = frozenset()


class HookInvalid(Exception):
    """Error: a hook returned a value of the wrong form.

    The message completes a sentence that begins with the name of the hook, such as "parse_tool_result ...".
    """


class Bound(ResultReader, frozen=True, kw_only=True):
    """A checked binding, in which the contract, the driver and the server's tool fit together. It makes arguments for
    calls and reads their results.
    """

    contract: Contract
    tool_name: str
    tool_digest: str  # of the listed definition; a tool with another digest has to be matched again
    warnings: tuple[FileProblem, ...] = ()
    feeding: ArgumentRules
    accepted: Compiled  # the server's inputSchema

    def arguments(
        self, inputs: Mapping[str, Any], context: Mapping[str, Any], transformed: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | DriverRefusal:
        """Return the arguments for the server, or a refusal. `inputs` must already satisfy the contract.

        `transformed` holds the values that driver.py returned for inputs with a transform, keyed by the contract's
        input.
        """
        arguments = self.feeding.arguments(inputs, context, transformed or {})
        return arguments if isinstance(arguments, DriverRefusal) else self.check_arguments(arguments)

    def check_arguments(self, arguments: dict[str, Any]) -> dict[str, Any] | DriverRefusal:
        """Return the arguments unchanged if the server's inputSchema accepts them, else a refusal (AIP-tools-8)."""
        fault = self.accepted.find_fault(arguments)
        if fault is None:  # AIP-tools-8
            return arguments
        message = f"the server's {self.tool_name} does not take these arguments: {fault}"
        return DriverRefusal(MISMATCH, message, cause={"pointer": fault.pointer})


def contract_misfits(driver: Driver, binding: ToolBinding, contract: Contract) -> Iterator[FileProblem]:
    """Yield the conflicts between a driver and a contract that it binds, for example versions that do not fit
    (AIP-30.implements-3 to -5).

    The contract's version must be in the range of the binding, narrowing may drop only optional fields, and the timeout
    of the binding may not be longer than the contract's.
    """
    places = driver.places
    if satisfies(contract.version, binding.version) is False:  # AIP-30.implements-3
        message = f"the contract {contract.id} is {contract.version}, which is not in {quoted(binding.version)}"
        hint = "name a range that holds it, once the driver serves that version"
        yield places.problem(f"{binding.pointer}/version", UNAVAILABLE, message, hint)
    narrowing = binding.schema_narrowing
    for key, dropped, schema in (
        ("drop_inputs", narrowing.drop_inputs, contract.inputs),
        ("drop_outputs", narrowing.drop_outputs, contract.outputs),
    ):
        side = Side(schema)
        shape = side.shape(schema)
        for index, name in enumerate(dropped):
            fault = "is required" if name in shape.required() else ""  # AIP-30.implements-4
            if name not in declared_names(side, shape):  # AIP-30.implements-4
                fault = "does not exist"
            if fault:
                pointer = f"{binding.pointer}/schema_narrowing/{key}/{index}"
                hint = "drop only what the contract has and does not require"
                yield places.problem(pointer, "narrowing_invalid", f"{quoted(name)} of {contract.id} {fault}", hint)
    # The timeout of the binding takes precedence over the driver's.
    is_own = binding.timeout_ms is not None
    timeout_ms = binding.timeout_ms if is_own else driver.timeout_ms
    if timeout_ms is not None and timeout_ms > contract.timeout_ms:  # AIP-30.implements-5
        message = f"this is longer than the {contract.timeout_ms} ms that the contract {contract.id} allows"
        pointer = f"{binding.pointer}/timeout_override_ms" if is_own else "/timeout_override_ms"
        hint = "shorten it; a driver never lengthens a contract's time"
        yield places.problem(pointer, "timeout_widened", message, hint)


def match(
    driver: Driver, binding: ToolBinding, contract: Contract, tool: Mapping[str, Any], *, entry: HookEntry | None = None
) -> Bound | tuple[FileProblem, ...]:
    """Check whether a server's tool satisfies the contract that a driver binds to the tool. Return the checked binding,
    or the problems.

    `tool` is the decoded item of tools/list. `entry` describes the driver's driver.py; values that a hook returns are
    not compared in advance.
    """
    transforms = None if entry is None else entry.transforms
    problems = [
        *check_binding(driver, binding, contract, transforms=transforms),
        *contract_misfits(driver, binding, contract),
    ]
    if is_refused(problems):
        return tuple(problems)
    comparison = _ToolComparison(driver, binding, contract, tool, entry or HookEntry(), problems)
    return comparison.bind() or tuple(problems)


def digest_of(tool: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a tool definition. The order of its keys does not matter."""
    return hashlib.sha256(msgspec.json.encode(tool, order="deterministic")).hexdigest()


@dataclass(frozen=True, slots=True)
class _ToolComparison:
    """Comparison of a contract with a tool that the server lists. Its methods add the differences to `problems`."""

    driver: Driver
    binding: ToolBinding
    contract: Contract
    tool: Mapping[str, Any]
    entry: HookEntry
    problems: list[FileProblem]

    def bind(self) -> Bound | None:
        """Return the checked binding, or None if `problems` contains an error."""
        schema = self.tool.get("inputSchema", {"type": "object"})
        accepted = self._compile(schema, "input")
        listed_outputs = self.tool.get("outputSchema")
        if listed_outputs is not None:
            self._compile(listed_outputs, "output")
        outputs = compile_schema(self.contract.outputs)
        if outputs is None:
            self._refuse("output", "", "a schema that does not compile", "whatever it has")
        if accepted is None or outputs is None or is_refused(self.problems):
            return None
        rules = self._compare_inputs(schema)
        # Hints count only if they are written and restrict (AIP-tools-7).
        hints = self.tool.get("annotations")
        if isinstance(hints, Mapping) and not self.contract.mutates:
            if hints.get("readOnlyHint") is False:  # AIP-tools-7
                self._refuse("effect", "", "mutates nothing", "readOnlyHint false")
            elif hints.get("destructiveHint") is True and hints.get("readOnlyHint") is not True:
                self._refuse("effect", "", "mutates nothing", "destructiveHint true")
        reader = self._compare_outputs(listed_outputs, outputs)
        if reader is None or is_refused(self.problems):
            return None
        return Bound(
            **msgspec.structs.asdict(reader),
            contract=self.contract,
            tool_name=self.binding.tool_name,
            tool_digest=digest_of(self.tool),
            warnings=tuple(self.problems),
            feeding=rules,
            accepted=accepted,
        )

    def _compile(self, schema: Any, side: str) -> Compiled | None:
        compiled = compile_schema(schema)
        if compiled is None:
            self._refuse(side, "", "a schema" if side == "input" else "outputs", "a schema that does not compile")
        elif not compiled.is_whole:  # AIP-tools-11
            self._note_unverified(side, "", "its schema", "a reference to another place, which is not fetched")
        return compiled

    def _compare_inputs(self, schema: Any) -> ArgumentRules:
        """Compare the contract's inputs with the server's inputSchema (AIP-tools-4 and -5).

        Return the rules that create the arguments.
        """
        ours, theirs = Side(self.contract.inputs), Side(schema)
        inputs, accepted = ours.shape(self.contract.inputs), theirs.shape(schema)
        rules = argument_feeds(self.binding, self.contract, accepted.required())
        names, always = inputs.names(), set(inputs.required())
        outcomes = [_check_supply(argument, rules, always) for argument in accepted.required()]
        for source in rules.inputs.values():
            if source.argument not in rules.context:
                outcomes.append(_compare_input(source, names.get(source.input, ()), ours, theirs, accepted))
        for name, value in rules.defaults.items():
            outcome = _find_argument(name, "a constant", accepted)
            schemas = accepted.names().get(name, ())
            if outcome.verdict is InclusionVerdict.ACCEPTS and theirs.accepts(value, *schemas) is False:
                pointer = f"/{pointer_step(name)}"
                outcome = differs(InclusionVerdict.REJECTS, pointer, "a constant", "another kind of value")
            outcomes.append(outcome)
        outcomes += [_find_argument(name, "a context argument", accepted) for name in rules.context]
        if "object" not in accepted.types:
            outcomes.append(differs(InclusionVerdict.REJECTS, "", "an object", "no object"))
        doubts = [key for key in _ROOT_DOUBTS if accepted.all_of(key) or (inputs.all_of(key) and key in _ALTERNATIVES)]
        if not (inputs.is_followed and accepted.is_followed):
            doubts.append("a reference that is not followed")
        outcomes += [differs(InclusionVerdict.UNDECIDED, "", "the input as a whole", doubt) for doubt in doubts]
        outcome = combine(outcomes)
        for each in outcome.differences:
            # AIP-tools-2, AIP-tools-5, AIP-tools-8
            if outcome.verdict is InclusionVerdict.REJECTS and not self.entry.builds:
                self._refuse("input", each.path, each.narrow, each.wide)  # AIP-tools-2
            else:
                self._note_unverified("input", each.path, each.narrow, each.wide)  # AIP-tools-8
        return rules

    def _compare_outputs(self, listed: Any, outputs: Compiled) -> ResultReader | None:
        """Compare the server's outputSchema with the contract's outputs (AIP-tools-6).

        Return the rules for reading results, or None if they cannot be determined.
        """
        binding = self.binding
        path = read_path(binding.result_extract)
        if not isinstance(path, ResultPath):
            return None
        parse = binding.result_parse
        pattern = read_pattern(parse.pattern) if parse is not None and parse.pattern is not None else None
        pattern = pattern if isinstance(pattern, RecordPattern) else None
        settled = settle(binding, path, self.contract, listed, pattern)
        for each in settled.refusals:
            if self.entry.parses:
                self._note_unverified("output", each.path, each.wide, each.narrow)
            else:
                self._refuse("output", each.path, each.wide, each.narrow, settled.hint)
        for each in settled.doubts:
            self._note_unverified("output", each.path, each.wide, each.narrow)
        if settled.falls_back and not self.entry.parses:  # AIP-extract-7
            message = f"the server has no {quoted(path.only_name or '')}, so its text is taken"
            hint = "write $.content, or set text_fallback: false to have this refused"
            self._add("extract_text_fallback", "output", "", message, hint, "warning", "/metadata/mcp/result_extract")
        mode, falls_back = settled.mode, settled.falls_back
        return ResultReader(
            binding=binding, mode=mode, path=path, pattern=pattern, falls_back=falls_back, outputs=outputs
        )

    def _refuse(self, side: str, path: str, contract: str, server: str, hint: str = "") -> None:
        message = f"the contract has {contract}, the server has {server}"
        self._add(MISMATCH, side, path, message, hint or _HINTS[side])  # AIP-tools-2

    def _note_unverified(self, side: str, path: str, contract: str, server: str) -> None:
        message = f"the contract has {contract}, the server has {server}"
        # A server that does not describe its results makes no mistake, so this is only a note (AIP-tools-6).
        severity: Severity = "note" if server == UNLISTED else "warning"  # AIP-tools-6
        self._add("contract_unverified", side, path, message, "nothing to do: it is checked at every call", severity)

    def _add(
        self, code: str, side: str, path: str, message: str, hint: str, severity: Severity = "error", pointer: str = ""
    ) -> None:
        binding = self.binding
        place = f"{side}, {path}" if path else side
        message = f"binding {binding.index} ({self.contract.id} to {quoted(binding.tool_name)}), {place}: {message}"
        pointer = f"{binding.pointer}{pointer}"
        self.problems.append(self.driver.places.problem(pointer, code, message, hint, severity=severity))


def _check_supply(argument: str, rules: ArgumentRules, always: set[str]) -> InclusionOutcome:
    """Check that an argument which the server requires always gets a value.

    `always` holds the inputs that are present in every call.
    """
    if argument in rules.defaults or argument in rules.context:  # AIP-tools-4: filled by argument_defaults
        return InclusionOutcome()
    source = next((each for each in rules.inputs.values() if each.argument == argument), None)
    # AIP-tools-4: fed by no input
    narrow = "no input for it" if source is None else f"the optional input {quoted(source.input)} without default"
    if source is not None and (source.input in always or source.default is not msgspec.UNSET):  # AIP-tools-4
        return InclusionOutcome()
    return differs(InclusionVerdict.REJECTS, f"/{pointer_step(argument)}", narrow, "required")


def _compare_input(
    source: ArgumentSource, schemas: tuple[Any, ...], ours: Side, theirs: Side, accepted: Shape
) -> InclusionOutcome:
    """Check that the server has the argument to which an input is mapped, and that it accepts every value of the
    input.
    """
    outcome = _find_argument(source.argument, f"the input {quoted(source.input)}", accepted)
    if outcome.verdict is not InclusionVerdict.ACCEPTS:
        return outcome
    wide = accepted.names().get(source.argument)
    if wide is None:
        wide = tuple(schema for schema in accepted.all_of("additionalProperties") if isinstance(schema, Mapping))
    pointer = f"/{pointer_step(source.argument)}"
    if source.transform is None and schemas:
        return includes(theirs, {"allOf": list(wide)}, ours, *schemas, path=pointer)
    undecided = differs(InclusionVerdict.UNDECIDED, pointer, "a value made at the call", "its own schema")
    return undecided if wide else InclusionOutcome()


def _find_argument(name: str, source: str, accepted: Shape) -> InclusionOutcome:
    """Check that the server's tool accepts an argument called `name`. `source` says which input or default sets the
    argument, and appears in the reported difference.

    A schema without additionalProperties counts as closed. Most servers omit this keyword and ignore unknown arguments,
    so an input would be lost without notice (AIP-tools-4).
    """
    if name in accepted.names():
        return InclusionOutcome()
    pointer = f"/{pointer_step(name)}"
    if accepted.all_of("patternProperties"):
        return differs(InclusionVerdict.UNDECIDED, pointer, source, "patternProperties")
    more = accepted.all_of("additionalProperties")
    if more and all(each is True or isinstance(each, Mapping) for each in more):  # AIP-tools-4
        return InclusionOutcome()
    return differs(InclusionVerdict.REJECTS, pointer, source, "no argument of this name")


def check_entry(
    driver: Driver, entry: HookEntry, written: Mapping[str, Any], contracts: Collection[str]
) -> Iterator[FileProblem]:
    """Yield the differences between what driver.py and DRIVER.md declare.

    `written` is the frontmatter exactly as it is in the file. `contracts` are the ids of the contracts that the driver
    binds.
    """
    for name, value in entry.manifest.items():
        if written.get(name) == value:
            continue
        message = f"{ENTRY} gives {name}, which this file does not have, and it is not used"
        if name in written:
            message = f"{ENTRY} gives another {name} than this file, whose own is used"
        hint = f"remove {name} from define_driver, or write the same in both"
        # AIP-define-4
        yield driver.places.problem(f"/{name}", "entry_conflict", message, hint, severity="warning")
    bound = set(contracts)
    named = {each.tool for each in driver.implements}
    if entry.execute is not None and set(entry.execute) not in (bound, named):  # AIP-define-1
        in_entry, in_file = (", ".join(map(quoted, sorted(each)[:10])) or "nothing" for each in (entry.execute, bound))
        message = f"execute of {ENTRY} names {in_entry}, and this file binds {in_file}"
        hint = "name the same contracts in both"
        yield driver.places.problem("/implements", "execute_binding_mismatch", message, hint)


def read_driver_result(driver: Driver, returned: Mapping[str, Any]) -> Any:
    """Read the object that a result hook returned. Return the value in it, or a DriverRefusal if the hook reports an
    error (AIP-define-3).

    Raise HookInvalid if `returned` has any other form.
    """
    if returned.get("ok") is True:  # AIP-define-3
        if "value" not in returned:
            raise HookInvalid("returns ok without a value")
        return returned["value"]
    error = returned.get("error")
    if returned.get("ok") is not False or not isinstance(error, Mapping):  # AIP-define-3
        raise HookInvalid('returns neither {"ok": true, "value"} nor {"ok": false, "error"}')
    code, message, retryable = error.get("code"), error.get("message"), error.get("retryable", False)
    if not isinstance(code, str) or _CODE.fullmatch(code) is None:
        raise HookInvalid("returns an error without a code of letters, digits and _.:-")
    if not isinstance(message, str) or not isinstance(retryable, bool):
        raise HookInvalid("returns an error whose message is no text or whose retryable is neither true nor false")
    if ":" not in code and code not in STANDARD:  # AIP-define-3
        code = f"{driver.id}:{code}"
    return DriverRefusal(code, message[:MESSAGE_CHARS_MAX], retryable=retryable)
