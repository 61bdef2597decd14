"""The match of a binding with its contract and the tool that its server lists (AIP-tools-2, -4 to -8, -11).

The result is a `Bound`, which makes arguments and reads results, or every difference as a problem. What two JSON
Schemas cannot decide in advance is a warning, contract_unverified, and is checked at each call: arguments against the
server's inputSchema before anything is sent, values against the contract's outputs before they are returned.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.binding.arguments import (
    ArgumentRules,
    ArgumentSource,
    argument_feeds,
    check_mapping,
    declared_names,
)
from interlock.drivers.protocol.binding.hook_entry import HookEntry
from interlock.drivers.protocol.binding.outputs import UNLISTED, settle
from interlock.drivers.protocol.binding.results import Mode, ResultReader
from interlock.drivers.protocol.files.driver import check_reading
from interlock.drivers.protocol.files.versions import satisfies
from interlock.drivers.protocol.model import Contract, Driver, JsonObject, ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem, Severity
from interlock.drivers.protocol.result_path import RecordPattern, ResultPath, read_path, read_pattern
from interlock.wire.jsontext.canonical import pointer_step, quoted
from interlock.wire.schemas.inclusion import InclusionOutcome, InclusionVerdict, differs, includes, together
from interlock.wire.schemas.shapes import Shape, Side
from interlock.wire.schemas.validators import Compiled, compile_schema

# What the two files say about each other, before any server is asked: the contract has a version in the range of the
# binding, narrowing drops only optional fields, and a timeout is never lengthened (AIP-30.implements-3 to -5).

UNAVAILABLE = "tool_unavailable"
NARROWING = "narrowing_invalid"  # AIP-30.implements-4
WIDENED = "timeout_widened"  # AIP-30.implements-5


def unfit(driver: Driver, binding: ToolBinding, contract: Contract) -> tuple[FileProblem, ...]:
    return (
        *_version(driver, binding, contract),
        *_narrowing_problems(driver, binding, contract),
        *_timeout(driver, binding, contract),
    )


def _version(driver: Driver, binding: ToolBinding, contract: Contract) -> Iterator[FileProblem]:
    if satisfies(contract.version, binding.version) is False:  # AIP-30.implements-3
        yield driver.places.problem(
            f"{binding.pointer}/version",
            UNAVAILABLE,
            f"the contract {contract.id} is {contract.version}, which is not in {quoted(binding.version)}",
            "name a range that holds it, once the driver serves that version",
        )


def _narrowing_problems(driver: Driver, binding: ToolBinding, contract: Contract) -> Iterator[FileProblem]:
    narrowing = binding.schema_narrowing
    for key, dropped, schema in (
        ("drop_inputs", narrowing.drop_inputs, contract.inputs),
        ("drop_outputs", narrowing.drop_outputs, contract.outputs),
    ):
        for index, name in enumerate(dropped):
            fault = _not_droppable(name, schema)
            if fault is not None:
                yield driver.places.problem(
                    f"{binding.pointer}/schema_narrowing/{key}/{index}",
                    NARROWING,
                    f"{quoted(name)} of {contract.id} {fault}",
                    "drop only what the contract has and does not require",
                )


def _not_droppable(name: str, schema: JsonObject) -> str | None:
    side = Side(schema)
    shape = side.shape(schema)
    if name not in declared_names(side, shape):  # AIP-30.implements-4
        return "does not exist"
    return "is required" if name in shape.required() else None  # AIP-30.implements-4


def _timeout(driver: Driver, binding: ToolBinding, contract: Contract) -> Iterator[FileProblem]:
    """Yield a problem if the timeout override is longer than the contract's time.

    The override of the binding takes precedence over the driver's.
    """
    own = binding.timeout_ms is not None
    wanted = binding.timeout_ms if own else driver.timeout_ms
    if wanted is not None and wanted > contract.timeout_ms:  # AIP-30.implements-5
        yield driver.places.problem(
            f"{binding.pointer}/timeout_override_ms" if own else "/timeout_override_ms",
            WIDENED,
            f"this is longer than the {contract.timeout_ms} ms that the contract {contract.id} allows",
            "shorten it; a driver never lengthens a contract's time",
        )


# Faults in the `metadata` of a binding: its mapping against the contract, and result_extract and result_parse in
# themselves (AIP-map-3 and -4, AIP-extract-3 and -8).


def check_binding(
    driver: Driver, binding: ToolBinding, contract: Contract, *, transforms: Collection[str] | None = None
) -> tuple[FileProblem, ...]:
    """Return the problems of a binding. `transforms` are those of driver.py, or None if there is no driver.py."""
    return (*check_reading(driver.places, binding), *check_mapping(driver, binding, contract, transforms))


def maybe_pattern(binding: ToolBinding) -> RecordPattern | None:
    parse = binding.result_parse
    if parse is None or parse.pattern is None:
        return None
    read = read_pattern(parse.pattern)
    return read if isinstance(read, RecordPattern) else None


MISMATCH: Final = "contract_mismatch"  # AIP-tools-2
UNVERIFIED: Final = "contract_unverified"
ANY_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object"}  # of a tool that says nothing

_NO_ENTRY: Final = HookEntry()
_ALTERNATIVES: Final = ("anyOf", "oneOf", "if", "not")
_ROOT_DOUBTS: Final = (
    *_ALTERNATIVES,
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "unevaluatedProperties",
)
_HINTS: Final = {
    "input": "map the input with argument_mapping, add argument_defaults, or bind another tool",
    "output": "fix result_extract, or bind another tool",
    "effect": "say in the contract what it mutates, or bind a tool that only reads",
}


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A checked binding. `arguments` and `value` are what a call needs of it."""

    contract: Contract
    binding: ToolBinding
    tool_name: str
    tool_digest: str  # of the listed definition: another one is another tool
    mode: Mode
    warnings: tuple[FileProblem, ...] = ()
    feeding: ArgumentRules
    reader: ResultReader
    accepted: Compiled  # the server's inputSchema

    def arguments(
        self, inputs: Mapping[str, Any], context: Mapping[str, Any], transformed: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | DriverRefusal:
        """Return the arguments for the server, for an input that satisfies the contract, or a refusal.

        `transformed` holds the values that driver.py returned for inputs with a transform, by the contract's input.
        """
        arguments = self.feeding.arguments(inputs, context, transformed or {})
        return arguments if isinstance(arguments, DriverRefusal) else self.check_arguments(arguments)

    def check_arguments(self, arguments: dict[str, Any]) -> dict[str, Any] | DriverRefusal:
        """Return the arguments unchanged if the server's inputSchema accepts them, else a refusal (AIP-tools-8)."""
        fault = self.accepted.maybe_fault(arguments)
        if fault is None:  # AIP-tools-8
            return arguments
        message = f"the server's {self.tool_name} does not take these arguments: {fault}"
        return DriverRefusal(code=MISMATCH, message=message, cause={"pointer": fault.pointer})

    def value(self, result: Mapping[str, Any]) -> Any:
        """Return the contract's value from a decoded CallToolResult, or a DriverRefusal."""
        return self.reader.value(result)

    def satisfying(self, value: Any) -> Any:
        """Return the value unchanged if it satisfies the contract's outputs, else a DriverRefusal."""
        return self.reader.satisfying(value)


def match(
    driver: Driver,
    binding: ToolBinding,
    contract: Contract,
    tool: Mapping[str, Any],
    *,
    entry: HookEntry | None = None,
    strict: bool = False,
) -> Bound | tuple[FileProblem, ...]:
    """Match a binding with its contract and the server's tool, or return the problems that prevent it.

    `tool` is the decoded item of tools/list. `entry` is the driver's driver.py; values that a hook returns are not
    compared in advance. `strict` refuses results that would be read as text because the named member is missing.
    """
    transforms = None if entry is None else entry.transforms
    problems = (*check_binding(driver, binding, contract, transforms=transforms), *unfit(driver, binding, contract))
    if any(each.severity == "error" for each in problems):
        return problems
    return _Matching(driver, binding, contract, tool, strict, entry or _NO_ENTRY).outcome(problems)


def digest_of(tool: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(tool, order="deterministic")).hexdigest()


class _Matching:
    def __init__(
        self,
        driver: Driver,
        binding: ToolBinding,
        contract: Contract,
        tool: Mapping[str, Any],
        strict: bool,
        entry: HookEntry,
    ) -> None:
        self._entry = entry
        self._driver, self._binding, self._contract, self._tool, self._strict = driver, binding, contract, tool, strict
        self._found: list[FileProblem] = []

    def outcome(self, before: tuple[FileProblem, ...]) -> Bound | tuple[FileProblem, ...]:
        schema = self._tool.get("inputSchema", ANY_ARGUMENTS)
        accepted = self._compile(schema, "input")
        offered = self._tool.get("outputSchema")
        if offered is not None:
            self._compile(offered, "output")
        outputs = compile_schema(self._contract.outputs)
        if outputs is None:
            self._mismatch("output", "", "a schema that does not compile", "whatever it has")
        if accepted is None or outputs is None or self._is_refused():
            return (*before, *self._found)
        fed = self._input(schema)
        self._effect()
        reader = self._output(offered, outputs)
        if reader is None or self._is_refused():
            return (*before, *self._found)
        return Bound(
            contract=self._contract,
            binding=self._binding,
            tool_name=self._binding.tool_name,
            tool_digest=digest_of(self._tool),
            mode=reader.mode,
            warnings=(*before, *self._found),
            feeding=fed,
            reader=reader,
            accepted=accepted,
        )

    def _is_refused(self) -> bool:
        return any(each.severity == "error" for each in self._found)

    def _input(self, schema: Any) -> ArgumentRules:
        """Compare the contract's inputs with the server's inputSchema (AIP-tools-4 and -5)."""
        ours, theirs = Side(self._contract.inputs), Side(schema)
        inputs, accepted = ours.shape(self._contract.inputs), theirs.shape(schema)
        required = accepted.required()
        fed = argument_feeds(self._binding, self._contract, required)
        mine, always = inputs.names(), set(inputs.required())
        outcomes = [self._check_supply(name, fed, always) for name in required]
        for each in fed.inputs.values():
            if each.argument not in fed.context:
                outcomes.append(_goes(each, mine.get(each.input, ()), ours, theirs, accepted))
        for name, value in fed.defaults.items():
            outcomes.append(_constant(name, value, theirs, accepted))
        outcomes += [_place(name, "a context argument", accepted) for name in fed.context]
        if "object" not in accepted.types:
            outcomes.append(differs(InclusionVerdict.REJECTS, "", "an object", "no object"))
        for key in _ROOT_DOUBTS:
            if accepted.all_of(key) or (inputs.all_of(key) and key in _ALTERNATIVES):
                outcomes.append(differs(InclusionVerdict.UNDECIDED, "", "the input as a whole", key))
        if not (inputs.is_followed and accepted.is_followed):
            outcomes.append(
                differs(InclusionVerdict.UNDECIDED, "", "the input as a whole", "a reference that is not followed")
            )
        self._tell("input", together(outcomes))
        return fed

    @staticmethod
    def _check_supply(name: str, fed: ArgumentRules, always: set[str]) -> InclusionOutcome:
        """Check that a required argument always receives a value."""
        if name in fed.defaults or name in fed.context:  # AIP-tools-4: filled by argument_defaults
            return InclusionOutcome()
        place = f"/{pointer_step(name)}"
        feeds = next((each for each in fed.inputs.values() if each.argument == name), None)
        if feeds is None:  # AIP-tools-4: fed by no input
            return differs(InclusionVerdict.REJECTS, place, "no input for it", "required")
        if feeds.input in always or feeds.default is not msgspec.UNSET:  # AIP-tools-4
            return InclusionOutcome()
        return differs(
            InclusionVerdict.REJECTS, place, f"the optional input {quoted(feeds.input)} without default", "required"
        )

    def _effect(self) -> None:
        """Compare the effects with the tool's hints, which count only if they are written and restrict
        (AIP-tools-7).
        """
        hints = self._tool.get("annotations")
        if not isinstance(hints, Mapping) or self._contract.mutates:
            return
        if hints.get("readOnlyHint") is False:  # AIP-tools-7
            self._mismatch("effect", "", "mutates nothing", "readOnlyHint false")
        elif hints.get("destructiveHint") is True and hints.get("readOnlyHint") is not True:
            self._mismatch("effect", "", "mutates nothing", "destructiveHint true")

    def _output(self, offered: Any, outputs: Compiled) -> ResultReader | None:
        """Compare the server's outputSchema with the contract's outputs (AIP-tools-6)."""
        binding = self._binding
        path = read_path(binding.result_extract)
        pattern = maybe_pattern(binding)
        if not isinstance(path, ResultPath):
            return None
        settled = settle(binding, path, self._contract, offered, pattern, strict=self._strict)
        for each in settled.refusals:
            if self._entry.parses:
                self._note_unverified("output", each.path, each.wide, each.narrow)
            else:
                self._mismatch("output", each.path, each.wide, each.narrow, settled.hint)
        for each in settled.doubts:
            self._note_unverified("output", each.path, each.wide, each.narrow)
        if settled.falls_back and not self._entry.parses:  # AIP-extract-7
            self._say(
                "extract_text_fallback",
                f"{self._describe('output')}: the server has no {quoted(path.only_name or '')}, so its text is taken",
                "write $.content, or set text_fallback: false to have this refused",
                "warning",
                "/metadata/mcp/result_extract",
            )
        return ResultReader(
            mode=settled.mode,
            path=path,
            parse=binding.result_parse,
            pattern=pattern,
            falls_back=settled.falls_back,
            wrap=binding.result_wrap,
            dropped=binding.schema_narrowing.drop_outputs,
            outputs=outputs,
        )

    def _compile(self, schema: Any, side: str) -> Compiled | None:
        compiled = compile_schema(schema)
        if compiled is None:
            contract = "a schema" if side == "input" else "outputs"
            self._mismatch(side, "", contract, "a schema that does not compile")
        elif not compiled.is_whole:  # AIP-tools-11
            self._note_unverified(side, "", "its schema", "a reference to another place, which is not fetched")
        return compiled

    def _tell(self, side: str, outcome: InclusionOutcome) -> None:
        for each in outcome.differences:
            # AIP-tools-2, AIP-tools-5, AIP-tools-8
            if outcome.verdict is InclusionVerdict.REJECTS and not self._entry.builds:
                self._mismatch(side, each.path, each.narrow, each.wide)  # AIP-tools-2
            else:
                self._note_unverified(side, each.path, each.narrow, each.wide)  # AIP-tools-8

    def _describe(self, side: str, path: str = "") -> str:
        binding = self._binding
        place = f", {path}" if path else ""
        return f"binding {binding.index} ({self._contract.id} to {quoted(binding.tool_name)}), {side}{place}"

    def _mismatch(self, side: str, path: str, contract: str, server: str, hint: str = "") -> None:
        message = f"{self._describe(side, path)}: the contract has {contract}, the server has {server}"
        self._say(MISMATCH, message, hint or _HINTS[side])  # AIP-tools-2

    def _note_unverified(self, side: str, path: str, contract: str, server: str) -> None:
        message = f"{self._describe(side, path)}: the contract has {contract}, the server has {server}"
        # A server that says nothing of its results makes no mistake: it is recorded (AIP-tools-6), no more.
        severity: Severity = "note" if server == UNLISTED else "warning"  # AIP-tools-6
        self._say(UNVERIFIED, message, "nothing to do: it is checked at every call", severity)

    def _say(self, code: str, message: str, hint: str, severity: Severity = "error", field: str = "") -> None:
        pointer = f"{self._binding.pointer}{field}"
        self._found.append(self._driver.places.problem(pointer, code, message, hint, severity=severity))


def _goes(
    each: ArgumentSource, schemas: tuple[Any, ...], ours: Side, theirs: Side, accepted: Shape
) -> InclusionOutcome:
    """Check that the server has an argument for an input and accepts the input's values there."""
    wide = accepted.names().get(each.argument)
    place = _place(each.argument, f"the input {quoted(each.input)}", accepted)
    if place.verdict is not InclusionVerdict.ACCEPTS:
        return place
    if wide is None:
        wide = tuple(schema for schema in accepted.all_of("additionalProperties") if isinstance(schema, Mapping))
    path = f"/{pointer_step(each.argument)}"
    if each.transform is not None or not schemas:
        return (
            differs(InclusionVerdict.UNDECIDED, path, "a value made at the call", "its own schema")
            if wide
            else InclusionOutcome()
        )
    return includes(theirs, {"allOf": list(wide)}, ours, *schemas, path=path)


def _constant(name: str, value: Any, theirs: Side, accepted: Shape) -> InclusionOutcome:
    place = _place(name, "a constant", accepted)
    schemas = accepted.names().get(name, ())
    if place.verdict is InclusionVerdict.ACCEPTS and theirs.accepts(value, *schemas) is False:
        return differs(InclusionVerdict.REJECTS, f"/{pointer_step(name)}", "a constant", "another kind of value")
    return place


def _place(name: str, source: str, accepted: Shape) -> InclusionOutcome:
    """Check that the server has an argument called `name`. `source` describes what would fill it.

    A missing additionalProperties counts as closed: most servers omit it and ignore unknown arguments, so that an input
    would be lost without notice (AIP-tools-4).
    """
    if name in accepted.names():
        return InclusionOutcome()
    path = f"/{pointer_step(name)}"
    if accepted.all_of("patternProperties"):
        return differs(InclusionVerdict.UNDECIDED, path, source, "patternProperties")
    more = accepted.all_of("additionalProperties")
    if more and all(each is True or isinstance(each, Mapping) for each in more):  # AIP-tools-4
        return InclusionOutcome()
    return differs(InclusionVerdict.REJECTS, path, source, "no argument of this name")
