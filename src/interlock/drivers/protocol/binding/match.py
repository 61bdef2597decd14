"""One binding against the tool its server lists: a `Bound` that makes arguments and reads results, or every difference
as a Problem (AIP-tools-2, -4 to -8, -11).

What a JSON Schema cannot be asked ahead is told as a warning, contract_unverified, and checked at the call: arguments
against the server's inputSchema before anything is sent, values against the contract's outputs before they go on.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.binding.arguments import Fed, Feeding, argument_feeds
from interlock.drivers.protocol.binding.checks import check_binding, maybe_pattern
from interlock.drivers.protocol.binding.contract_fit import unfit
from interlock.drivers.protocol.binding.hook_entry import Entry
from interlock.drivers.protocol.binding.outputs import UNLISTED, settle
from interlock.drivers.protocol.binding.results import Mode, Reader
from interlock.drivers.protocol.errors import DriverRefusal
from interlock.drivers.protocol.model import Binding, Contract, Driver
from interlock.drivers.protocol.problems import Problem, Severity
from interlock.drivers.protocol.result_path import Path, read_path
from interlock.wire.jsontext.pointer import pointer_step, quoted
from interlock.wire.schemas.inclusion import InclusionOutcome, InclusionVerdict, differs, includes, together
from interlock.wire.schemas.shapes import Shape, Side
from interlock.wire.schemas.validators import Compiled, compile_schema

MISMATCH: Final = "contract_mismatch"  # AIP-tools-2
UNVERIFIED: Final = "contract_unverified"
ANY_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object"}  # of a tool that says nothing

_NO_ENTRY: Final = Entry()
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
    binding: Binding
    tool_name: str
    tool_digest: str  # of the listed definition: another one is another tool
    mode: Mode
    warnings: tuple[Problem, ...] = ()
    feeding: Feeding
    reader: Reader
    accepted: Compiled  # the server's inputSchema

    def arguments(
        self, given: Mapping[str, Any], context: Mapping[str, Any], transformed: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | DriverRefusal:
        """What the server is sent for an input that satisfies the contract. `transformed`: by the contract's input,
        what driver.py made of those with a transform."""
        made = self.feeding.arguments(given, context, transformed or {})
        return made if isinstance(made, DriverRefusal) else self.check_arguments(made)

    def check_arguments(self, arguments: dict[str, Any]) -> dict[str, Any] | DriverRefusal:
        """The arguments themselves where the server's inputSchema takes them (AIP-tools-8)."""
        fault = self.accepted.maybe_fault(arguments)
        if fault is None:  # AIP-tools-8
            return arguments
        message = f"the server's {self.tool_name} does not take these arguments: {fault}"
        return DriverRefusal(code=MISMATCH, message=message, cause={"pointer": fault.pointer})

    def value(self, result: Mapping[str, Any]) -> Any:
        """The contract's value of a decoded CallToolResult, or a DriverRefusal."""
        return self.reader.value(result)

    def satisfying(self, value: Any) -> Any:
        """The value itself where it satisfies the contract's outputs, else a DriverRefusal."""
        return self.reader.satisfying(value)


def match(
    driver: Driver,
    binding: Binding,
    contract: Contract,
    tool: Mapping[str, Any],
    *,
    entry: Entry | None = None,
    strict: bool = False,
) -> Bound | tuple[Problem, ...]:
    """`tool`: the decoded item of tools/list. `entry`: its driver.py; what a hook makes is not compared ahead.
    `strict`: what would be read as text for want of the member named is refused."""
    transforms = None if entry is None else entry.transforms
    found = (*check_binding(driver, binding, contract, transforms=transforms), *unfit(driver, binding, contract))
    if any(each.severity == "error" for each in found):
        return found
    return _Matching(driver, binding, contract, tool, strict, entry or _NO_ENTRY).outcome(found)


def digest_of(tool: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(tool, order="deterministic")).hexdigest()


class _Matching:
    def __init__(
        self,
        driver: Driver,
        binding: Binding,
        contract: Contract,
        tool: Mapping[str, Any],
        strict: bool,
        entry: Entry,
    ) -> None:
        self._entry = entry
        self._driver, self._binding, self._contract, self._tool, self._strict = driver, binding, contract, tool, strict
        self._found: list[Problem] = []

    def outcome(self, before: tuple[Problem, ...]) -> Bound | tuple[Problem, ...]:
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

    def _input(self, schema: Any) -> Feeding:
        """AIP-tools-4 and -5."""
        ours, theirs = Side(self._contract.inputs), Side(schema)
        inputs, accepted = ours.shape(self._contract.inputs), theirs.shape(schema)
        required = accepted.required()
        fed = argument_feeds(self._binding, self._contract, required)
        mine, always = inputs.names(), set(inputs.required())
        found = [self._check_supply(name, fed, always) for name in required]
        for each in fed.inputs.values():
            if each.argument not in fed.context:
                found.append(_goes(each, mine.get(each.input, ()), ours, theirs, accepted))
        for name, value in fed.defaults.items():
            found.append(_constant(name, value, theirs, accepted))
        found += [_place(name, "a context argument", accepted) for name in fed.context]
        if "object" not in accepted.types:
            found.append(differs(InclusionVerdict.REJECTS, "", "an object", "no object"))
        for key in _ROOT_DOUBTS:
            if accepted.all_of(key) or (inputs.all_of(key) and key in _ALTERNATIVES):
                found.append(differs(InclusionVerdict.UNDECIDED, "", "the input as a whole", key))
        if not (inputs.is_followed and accepted.is_followed):
            found.append(
                differs(InclusionVerdict.UNDECIDED, "", "the input as a whole", "a reference that is not followed")
            )
        self._tell("input", together(found))
        return fed

    @staticmethod
    def _check_supply(name: str, fed: Feeding, always: set[str]) -> InclusionOutcome:
        """A required argument is fed by something that is always there."""
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
        """AIP-tools-7: hints count only where they restrict, and only where they are written."""
        hints = self._tool.get("annotations")
        if not isinstance(hints, Mapping) or self._contract.mutates:
            return
        if hints.get("readOnlyHint") is False:  # AIP-tools-7
            self._mismatch("effect", "", "mutates nothing", "readOnlyHint false")
        elif hints.get("destructiveHint") is True and hints.get("readOnlyHint") is not True:
            self._mismatch("effect", "", "mutates nothing", "destructiveHint true")

    def _output(self, offered: Any, outputs: Compiled) -> Reader | None:
        """AIP-tools-6."""
        binding = self._binding
        path = read_path(binding.result_extract)
        pattern = maybe_pattern(binding)
        if not isinstance(path, Path):
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
        return Reader(
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
        made = compile_schema(schema)
        if made is None:
            contract = "a schema" if side == "input" else "outputs"
            self._mismatch(side, "", contract, "a schema that does not compile")
        elif not made.is_whole:  # AIP-tools-11
            self._note_unverified(side, "", "its schema", "a reference to another place, which is not fetched")
        return made

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


def _goes(each: Fed, schemas: tuple[Any, ...], ours: Side, theirs: Side, accepted: Shape) -> InclusionOutcome:
    """An input has an argument to go to, and its values are taken there."""
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


def _place(name: str, told: str, accepted: Shape) -> InclusionOutcome:
    """There is an argument of this name. A missing additionalProperties counts as closed: most servers leave it out and
    ignore what they do not know, so that an input would be lost without notice (AIP-tools-4)."""
    if name in accepted.names():
        return InclusionOutcome()
    path = f"/{pointer_step(name)}"
    if accepted.all_of("patternProperties"):
        return differs(InclusionVerdict.UNDECIDED, path, told, "patternProperties")
    more = accepted.all_of("additionalProperties")
    if more and all(each is True or isinstance(each, Mapping) for each in more):  # AIP-tools-4
        return InclusionOutcome()
    return differs(InclusionVerdict.REJECTS, path, told, "no argument of this name")
