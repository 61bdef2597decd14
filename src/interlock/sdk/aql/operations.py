"""Operations of an adapter: a handler, its declaration, and how its calls are scheduled and performed.

A call goes through these steps: arguments are converted to the annotated types, the schedule gives it a turn, a stored
resource is loaded and compared with `if_match`, changes are merged into it, the handler runs, and the fields of its
result are selected. A long-running operation is started instead, and returns its execution at once (8.4).

The turn covers loading and running. Otherwise two updates could both load the same version, and the second one would
overwrite the first.
"""

import asyncio
import inspect
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import msgspec

from interlock.aql.protocol.errors import AqlFailure, Code, OperationFailed, failure, invalid_type, invalid_value
from interlock.aql.protocol.field_selection import Selection, read_selection, select
from interlock.aql.protocol.model import AqlOperation, AqlParameter, Category, Lifecycle
from interlock.aql.protocol.validation import Validator, merged
from interlock.sdk.aql import values as json_values
from interlock.sdk.aql.executions import AdapterExecutions, Execution
from interlock.sdk.aql.removal import find_kept, keep_nulls
from interlock.sdk.aql.signature import HandlerArgument, Signature
from interlock.sdk.aql.values import Binary, Context, Listing
from interlock.sdk.subserver.tools import call_function

Concurrency = Literal["serialized", "read-concurrent", "fully-concurrent", "resource-locked"]
CONCURRENCIES: Final[tuple[Concurrency, ...]] = get_args(Concurrency)


class Schedule:
    """A schedule that decides which calls of an adapter may run at the same time (9.3.1).

    With `serialized`, calls run one at a time. With `read-concurrent`, a write runs alone. With `resource-locked`,
    writes to the same resource run one at a time. With `fully-concurrent`, no call waits for another. A limit on the
    number of calls applies to all four.
    """

    def __init__(self, kind: Concurrency, most: int | None) -> None:
        """Create a schedule. At most `most` calls run at the same time; None means no limit."""
        self.kind = kind
        self._slots = None if most is None else asyncio.Semaphore(most)
        self._changed = asyncio.Condition()
        self._readers = 0
        self._is_writing = False
        self._locks: defaultdict[Hashable, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._wanted: Counter[Hashable] = Counter()

    @asynccontextmanager
    async def turn(self, *, is_read: bool, resource: Hashable) -> AsyncIterator[None]:
        """Wait until a call may run, and keep its turn until the block of this context manager ends. `resource`
        identifies the resource that the call concerns.
        """
        async with self._slots or nullcontext():
            if self.kind == "serialized" or (self.kind == "resource-locked" and not is_read):  # AQL-9.3.1-1
                key = "" if self.kind == "serialized" else resource
                self._wanted[key] += 1
                try:
                    async with self._locks[key]:
                        yield
                finally:
                    self._wanted[key] -= 1
                    if not self._wanted[key]:
                        del self._wanted[key], self._locks[key]
            elif self.kind == "read-concurrent":  # AQL-9.3.1-1
                async with self._changed:
                    await self._changed.wait_for(lambda: not self._is_writing and (is_read or not self._readers))
                    self._readers += is_read
                    self._is_writing = not is_read
                try:
                    yield
                finally:
                    await asyncio.shield(self._leave(is_read))
            else:
                yield

    async def _leave(self, is_read: bool) -> None:
        """Note that a read or a write has finished, and wake the waiting calls."""
        async with self._changed:
            if is_read:
                self._readers -= 1
            else:
                self._is_writing = False
            self._changed.notify_all()


IF_MATCH: Final = AqlParameter(
    name="if_match", type="string", description="The _etag it must still have; otherwise nothing is done."
)
CONFIRMATION: Final = AqlParameter(
    name="confirmation_token",
    type="string",
    description="Of the answer CONFIRMATION_REQUIRED to the same call.",
    of_gateway=True,
)
FIELDS: Final = "fields"


@dataclass(frozen=True, kw_only=True)
class AdapterOperation:
    """An operation of an adapter: its declaration and its handler.

    `load` takes the identifiers and returns the stored resource of an UPDATE or DELETE. `presets` maps each preset to
    its fields. `states` maps each additional state of an execution to a core state.
    """

    declaration: AqlOperation
    validator: Validator
    signature: Signature
    load: Callable[..., Any] | None
    versioned: tuple[type, ...]
    presets: Mapping[str, Sequence[str]]
    default_preset: str
    states: Mapping[str, str]

    @property
    def is_read(self) -> bool:
        return self.declaration.category is Category.READ

    async def run(
        self,
        arguments: dict[str, Any],
        own: Mapping[str, Any],
        context: Context,
        schedule: Schedule,
        executions: AdapterExecutions,
    ) -> Any:
        """Run the handler and return its result as JSON values. Start a long-running operation instead, and return its
        execution. Raise OperationFailed if the arguments are invalid, and whatever the handler raises.
        """
        for name, value in arguments.items():
            json_values.check_integers(name, value)
        # The resource that a call concerns is named by its required parameters, except `input`.
        resource = tuple(str(arguments.get(name)) for name in self.declaration.required if name != "input")
        selection = self._read_selection(own)
        # The arguments are converted to the annotated types.
        signature, values = self.signature, dict[str, Any]()
        page = json_values.read_page(arguments, self.declaration.name) if signature.page is not None else None
        if signature.page is not None:
            values[signature.page] = page
        if signature.context is not None:
            values[signature.context] = context
        for argument in signature.arguments:
            if argument.is_binary:
                if (content := arguments.get(f"{argument.name}_content")) is not None:
                    binary = json_values.read_base64(f"{argument.name}_content", content)
                    mime_type = arguments.get(f"{argument.name}_mime_type", Binary(b"").mime_type)
                    values[argument.name] = Binary(binary, mime_type)
            elif argument.name in arguments:
                values[argument.name] = _convert(argument, arguments[argument.name])
        if_match = arguments.get(IF_MATCH.name)
        if (lifecycle := self.declaration.lifecycle) is not None:
            return self._start(lifecycle, values, context, executions)
        async with schedule.turn(is_read=self.is_read, resource=resource):
            if self.load is not None:
                await self._prepare(self.load, values, if_match)
            result = await call_function(signature.function, values)
        context.warnings += page.warnings() if page is not None else ()
        if isinstance(result, Listing):
            items = [select(self._describe(item), selection) for item in result.items]
            return json_values.listing_data(result, items, self.declaration.name)
        if isinstance(result, list | tuple):
            return [select(self._describe(item), selection) for item in result]
        return select(self._describe(result), selection)

    async def _prepare(self, load: Callable[..., Any], values: dict[str, Any], if_match: str | None) -> None:
        """Load the stored resource and compare its etag with `if_match`. For an UPDATE, also merge the changes in
        `input` into the resource.
        """
        taken = inspect.signature(load).parameters
        stored = await call_function(load, {name: value for name, value in values.items() if name in taken})
        if if_match is not None:
            current = json_values.etag_of(stored)
            if if_match != current:
                message = "The resource was changed by somebody else; read it again"
                details = {"expected": if_match, "current": current}
                raise OperationFailed(failure(Code.CONFLICT_VERSION_MISMATCH, message, details))
        if self.declaration.category is Category.UPDATE:
            changes = values["input"]
            changed = merged(msgspec.to_builtins(stored), changes)
            keep_nulls(type(stored), changes, changed)
            argument = HandlerArgument("input", dict if isinstance(stored, Mapping) else type(stored))
            resource = _convert(argument, changed)
            if (lasting := find_kept(changes, resource, "input")) is not None:  # AQL-4.5.2-2
                why = "this field always has a value, so that null cannot remove it"
                raise OperationFailed(invalid_type(lasting, "value", "null", hint=why))
            values["input"] = resource

    # What becomes of the answer

    def _read_selection(self, own: Mapping[str, Any]) -> Selection:
        """Return which fields of a result the client requested. Raise OperationFailed if the resource has no such
        field.
        """
        requested = own.get(FIELDS)
        read = self.default_preset if requested is None else read_selection(requested)
        if isinstance(read, AqlFailure):
            raise OperationFailed(read)
        if isinstance(read, str):  # a preset that the operation defines, or else the protocol
            fields = self.presets.get(read)
            return read if fields is None else tuple(tuple(path.split(".")) for path in fields)
        if self.signature.resource is None:
            return read
        valid = {*self.signature.resource.__struct_encode_fields__, "_etag", "_computed"}  # type: ignore[attr-defined]
        unknown = [".".join(path) for path in read if path[0] not in valid]
        if unknown:
            details = {"operation": self.declaration.name, "unknown_fields": unknown, "valid_fields": sorted(valid)}
            why = f"Unknown field(s): {', '.join(unknown)}"
            raise OperationFailed(failure(Code.VALIDATION_UNKNOWN_FIELD, why, details))
        return read

    def _describe(self, value: Any) -> Any:
        """Convert one result to JSON values. If its type is versioned, add its etag."""
        shown = json_values.plain(value)
        return {**shown, "_etag": json_values.etag_of(value)} if isinstance(value, self.versioned) else shown

    def _start(
        self, lifecycle: Lifecycle, values: dict[str, Any], context: Context, executions: AdapterExecutions
    ) -> Any:
        """Start a long-running operation and return its execution at once (8.4)."""
        signature = self.signature

        async def work(execution: Execution) -> Any:
            if signature.execution is not None:
                values[signature.execution] = execution
            return json_values.plain(await call_function(signature.function, values))

        execution = Execution(self.declaration.name, context.caller, lifecycle, self.states, work)
        return executions.start(execution).answer()


def _convert(argument: HandlerArgument, value: Any) -> Any:
    """Convert a JSON value to the annotated type of an argument. Raise OperationFailed, which names the place of the
    error, if the value does not fit.
    """
    if argument.type is dict or argument.type is Any:
        return value
    try:
        # The hook is called for types that msgspec does not know: a BigInt, which is sent as text.
        return msgspec.convert(value, argument.type, strict=True, dec_hook=lambda kind, text: kind(text))
    except (msgspec.ValidationError, ValueError) as error:
        place = str(error).partition("`$")[2].rstrip("`")
        raise OperationFailed(invalid_value(f"{argument.name}{place}", str(error).partition(" - at")[0])) from None
