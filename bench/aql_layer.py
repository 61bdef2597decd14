"""What the AQL layer costs a call over the flat list, and what a search of introspection takes.

    python -m bench.aql_layer [--quick]

The same call goes through the same dispatcher on both surfaces, in one process.

As in `guards`, the ways take turns and no event loop turns: what a way costs more is the difference within a turn. One
request is written compactly, one with blanks as Python's json writes it, one with blanks and letters beyond ASCII.
"""

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from bench.guards import CALLS, GUARDED, META, Nobody, make_way
from bench.measure import Spread, spread
from interlock.aql.adapter import AqlAdapter
from interlock.aql.operation_index import LiveOperationNames, NativeOperations
from interlock.aql.protocol.search import SearchIndex, term_weights
from interlock.aql.surface import AqlSurface
from interlock.config.plan import Plan
from interlock.core.calls.caller import ClientRequest
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan

ADDED_MAX_US = 30.0
OPERATIONS = 20_000
SEARCH_MAX_MS = 5.0
FOUND = 20  # operations that a search gives
QUERIES = ("create an issue", "read file", "list", "delete customer invoice permanently", "zzz", "get user by id 77")
PARAMS = {"path": "docs/notes/today.md", "text": "three words here", "limit": 20, "options": {"deep": True, "of": [1]}}
FLAT = "flat"
_TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {"path": _TEXT, "text": _TEXT, "limit": {"type": "integer"}, "options": {"type": "object"}},
    "required": ["path"],
    "additionalProperties": False,
}


class AqlCosts(msgspec.Struct, kw_only=True):
    """CPU time of a call by way, turn by turn, in microseconds; of a search by its words, in milliseconds."""

    turns: dict[str, list[float]] = {}
    searches: dict[str, list[float]] = {}

    def added_us(self, way: str) -> Spread:
        """What a way costs more than the flat list. Of many short turns the middle half is given."""
        added = sorted(ours - theirs for ours, theirs in zip(self.turns[way], self.turns[FLAT], strict=True))
        quarter = len(added) // 4
        return spread(added[quarter : len(added) - quarter])

    @property
    def ways(self) -> list[str]:
        return [way for way in self.turns if way != FLAT]

    def slowest_search_ms(self) -> Spread:
        return max((spread(times) for times in self.searches.values()), key=lambda one: one.median)


class _LoopOff:
    def mode(self) -> str:
        return "disabled"


def _requests() -> dict[str, bytes]:
    asked = {"operation": "server__echo", "params": PARAMS}
    beyond = {"operation": "server__echo", "params": {**PARAMS, "text": "drei W\u00f6rter hier"}}
    return {
        "AQL, compact": msgspec.json.encode(asked),
        "AQL, with blanks": json.dumps(asked).encode(),
        "AQL, with blanks and umlauts": json.dumps(beyond, ensure_ascii=False).encode(),
    }


class _Turn:
    def __init__(self, target: Any, caller: Any, sink: Any, name: bytes, arguments: bytes) -> None:
        self._target, self._caller, self.sink = target, caller, sink
        self._name, self._arguments = Raw(name), Raw(arguments)

    def take(self) -> float:
        target, caller, sink, name, arguments = self._target, self._caller, self.sink, self._name, self._arguments
        meta = msgspec.json.decode(META, type=dict[str, Raw])
        began = time.process_time_ns()
        for _ in range(CALLS):
            params = {"name": name, "arguments": arguments, "_meta": META}
            target.call_tool(ClientRequest(caller, b"1", "tools/call", params, meta, sink))
        return (time.process_time_ns() - began) / CALLS / 1000


async def _measure(turns: int) -> dict[str, list[float]]:
    way = await make_way(GUARDED, msgspec.json.encode(SCHEMA))
    dispatch, caller, sink = way.dispatch, way.caller, way.sink
    plan = Plan(workspace=Path(), data=Path())
    loop: Any = _LoopOff()
    nobody: Any = Nobody()
    current, native, catalog = CurrentPlan(plan), NativeOperations(), way.catalog
    names = LiveOperationNames(current, catalog.live, native)
    adapter = AqlAdapter(catalog, names, nobody, Clock(), loop)
    surface = AqlSurface(dispatch, adapter, "single", nobody)
    every = {FLAT: _Turn(dispatch, caller, sink, b'"server__echo"', msgspec.json.encode(PARAMS))}
    for kind, text in _requests().items():
        every[kind] = _Turn(surface, caller, sink, b'"mcp_aql"', text)
    for kind, turn in every.items():
        turn.take()
        if b"hello" not in sink.last:
            raise RuntimeError(f"{kind}: no call came through: {sink.last!r}")
    found: dict[str, list[float]] = {kind: [] for kind in every}
    gc.collect()
    gc.freeze()
    for _ in range(turns):
        for kind, turn in every.items():
            found[kind].append(turn.take())
    return found


def _search(turns: int) -> dict[str, list[float]]:
    """Names and descriptions of words that tools have, each in many places."""
    verbs = ("create", "read", "list", "delete", "update", "get", "search", "send")
    nouns = ("issue", "file", "customer", "invoice", "user", "page", "message", "branch", "report", "order")
    index = SearchIndex(
        [
            term_weights(
                f"s{at % 97}__{verbs[at % 8]}_{nouns[at // 8 % 10]}_{at}",
                f"Does {verbs[at % 8]} a {nouns[at // 8 % 10]} of {nouns[at % 10]} {at % 500} by its id.",
                ("id", nouns[at % 10], "limit"),
            )
            for at in range(OPERATIONS)
        ]
    )
    found: dict[str, list[float]] = {words: [] for words in QUERIES}
    for _ in range(turns):
        for words, times in found.items():
            began = time.process_time_ns()
            index.search(words, FOUND)
            times.append((time.process_time_ns() - began) / 1_000_000)
    return found


def measure(quick: bool, say: Callable[[str], None]) -> AqlCosts:
    costs = AqlCosts(turns=asyncio.run(_measure(20 if quick else 200)), searches=_search(5 if quick else 50))
    for way, times in costs.turns.items():
        more = "" if way == FLAT else f"   {shown_spread(costs.added_us(way), '+.2f')} us"
        say(f"  {way:30} {statistics.median(times):6.2f} us CPU{more}")
    for words, taken in costs.searches.items():
        say(f"  search {words!r}: {shown_spread(spread(taken), '.2f')} ms")
    return costs


def shown_spread(one: Spread, form: str) -> str:
    return f"{one.median:{form}} ({one.low:{form}} to {one.high:{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description="what the AQL layer costs a call")
    parser.add_argument("--quick", action="store_true")
    measure(parser.parse_args().quick, print)


if __name__ == "__main__":
    main()
