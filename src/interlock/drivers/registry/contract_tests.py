"""Contract tests: call the examples of a driver's contracts through that driver (AIP-14.rules-3).

Each example is called in the same way as a client's call: it passes the guard and its gate, and leaves audit rows. Only
the tested driver may serve it. An example of a contract that changes something is skipped unless the operator allows
it.
"""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.catalog.catalog import EVERYTHING, Catalog
from interlock.core.calls.caller import AwaitedAnswer, ClientRequest, Principal
from interlock.dispatch.dispatch import Dispatch
from interlock.drivers.api import DriverExamples, ExampleOutcome
from interlock.drivers.contracts.service import Contracts
from interlock.drivers.protocol.binding.effects import qualified_name
from interlock.drivers.protocol.binding.results import ERROR_KEY, pin
from interlock.drivers.protocol.model import Contract, ContractExample
from interlock.drivers.protocol.server_name import server_name
from interlock.drivers.workspace.declaration import Declared
from interlock.fronts.modern import ModernFront
from interlock.mcp.meta import stamp_modern
from interlock.mcp.methods import TOOLS_CALL
from interlock.wire.jsonrpc.codec import decode_value, encode_value
from interlock.wire.jsontext.canonical import pointer_step

JsonObject = dict[str, Any]

START_S: Final = 60.0  # for a server that has to be started first, besides the contract's own time
DIFFERENCES_MAX: Final = 20  # reported for one example
SHOWN_CHARS_MAX: Final = 200  # of a value in a difference
_ids = itertools.count(1)


# Outcome of an example (passed, failed, held or skipped), with the differences or the reason.
Outcome = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class ExampleRunner:
    """Runner of the example calls in a driver's contracts."""

    modern: ModernFront
    dispatch: Dispatch
    catalog: Catalog
    contracts: Contracts

    async def run(self, declared: Declared, by: str, *, allow_mutation: bool) -> DriverExamples:
        """Run all examples of the contracts that a driver serves, through this driver, and return the outcomes.

        `by` is the operator who started the run. Examples that change something run only with `allow_mutation`.
        """
        outcomes: list[ExampleOutcome] = []
        for contract in declared.contracts.values():
            for example in contract.examples:
                result: Outcome = ("skipped", ("it changes something",))
                if not contract.mutates or allow_mutation:  # AIP-14.rules-3
                    result = await self._run_example(declared.key, contract, example, by)
                names = {"contract": contract.id, "example": example.name, "driver": declared.key}
                outcomes.append(ExampleOutcome(**names, outcome=result[0], difference=result[1]))
        is_ok = all(each.outcome in ("passed", "skipped") for each in outcomes)
        return DriverExamples(id=declared.id, key=declared.key, ok=is_ok, examples=tuple(outcomes))

    async def _run_example(self, key: str, contract: Contract, example: ContractExample, by: str) -> Outcome:
        name = None  # under which the contract is listed on this node
        named = qualified_name(contract)
        if isinstance(named, tuple):
            segment, local = named
            link = self.contracts.links.get(segment)
            routes = self.catalog.namespace.view(EVERYTHING).tool_routes
            name = next((each.qualified for each in routes if each.link is link and each.original == local), None)
        if name is None:
            return _failure(f"the contract is not offered: interlock drivers show {server_name(key)} says why")
        principal = Principal(by if by == "local" else f"operator:{by.removeprefix('operator:')}", "admin")
        caller = self.modern.caller(principal, "operator", None, "qualified")
        meta: dict[str, Raw] = {}
        stamp_modern(meta, capabilities=Raw(b"{}"), client=None, log_level=None)
        state = Raw(encode_value(pin(key)))  # only the tested driver may serve the call
        params = {"name": Raw(encode_value(name)), "arguments": Raw(encode_value(example.input)), "requestState": state}
        answer = AwaitedAnswer()
        client_id = str(next(_ids)).encode()
        self.dispatch.call_tool(ClientRequest(caller, client_id, TOOLS_CALL, params, meta, answer))
        try:
            async with asyncio.timeout(contract.timeout_ms / 1000 + START_S):
                message = await answer.message
        except (TimeoutError, asyncio.CancelledError):
            return _failure("no answer in time")
        return _failure("the call was ended") if message is None else _judge(decode_value(message), example)


def _judge(message: JsonObject, example: ContractExample) -> Outcome:
    error, result = message.get("error"), message.get("result")
    if isinstance(error, dict):
        data = error.get("data") or {}
        if data.get("reason") == "confirmation_required" or error.get("message") == "confirmation_required":
            return "held", ("it waits for a decision: interlock approvals",)
        return _failure(f"{error.get('message')}: {data.get('reason', '')}".rstrip(": "))
    if not isinstance(result, dict):
        return _failure("the answer cannot be read")
    if result.get("resultType") == "input_required":
        return "held", ("it asks something first",)
    if result.get("isError"):
        code = ((result.get("_meta") or {}).get(ERROR_KEY) or {}).get("code", "")
        texts = [block.get("text", "") for block in result.get("content", ()) if isinstance(block, dict)]
        return _failure(texts[0] if texts else code or "the tool reports an error")
    if example.output is msgspec.UNSET:  # AIP-14.rules-3: only whether it is valid
        return "passed", ()
    mismatches = tuple(itertools.islice(differences(example.output, result.get("structuredContent")), DIFFERENCES_MAX))
    return "failed" if mismatches else "passed", mismatches  # AIP-14.rules-3


def _failure(why: str) -> Outcome:
    return "failed", (why,)


def differences(wanted: Any, got: Any, pointer: str = "") -> Iterator[str]:
    """Yield a line for each place where two JSON values differ. `pointer` is the JSON pointer to both values.

    1 and 1.0 are equal; 1 and true are not.
    """
    if isinstance(wanted, dict) and isinstance(got, dict):
        for key in dict.fromkeys((*wanted, *got)):
            place = f"{pointer}/{pointer_step(key)}"
            if key not in got:
                yield f"{place}: wanted {_display(wanted[key])}, it is missing"
            elif key not in wanted:
                yield f"{place}: {_display(got[key])} was not wanted"
            else:
                yield from differences(wanted[key], got[key], place)
    elif isinstance(wanted, list) and isinstance(got, list):
        if len(wanted) != len(got):
            yield f"{pointer or '/'}: wanted {len(wanted)} entries, got {len(got)}"
        for index, (wanted_item, got_item) in enumerate(zip(wanted, got, strict=False)):
            yield from differences(wanted_item, got_item, f"{pointer}/{index}")
    elif isinstance(wanted, bool) != isinstance(got, bool) or wanted != got:  # AIP-14.rules-3: the difference
        yield f"{pointer or '/'}: wanted {_display(wanted)}, got {_display(got)}"


def _display(value: Any) -> str:
    text = encode_value(value).decode()
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"
