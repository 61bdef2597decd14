"""What the AQL layer costs a call over the flat list: the same call through the same dispatcher, both in one process.

    python -m bench.aql_layer [--quick]

As in `guards`, the ways take turns and no event loop turns: what a way costs more is the difference within a turn. One
request is written compactly, one with blanks as Python's json writes it, one with blanks and letters beyond ASCII.
"""

import argparse
import asyncio
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from bench.guards import CALLS, GUARDED, META, Nobody, make_way
from bench.measure import spread
from interlock.config.plan import Plan
from interlock.runtime.aql.adapter import AqlAdapter
from interlock.runtime.aql.native_operations import NativeOperations
from interlock.runtime.aql.surface import AqlSurface
from interlock.runtime.base.clock import SystemClock
from interlock.runtime.base.current_plan import CurrentPlan

ADDED_MAX_US = 30.0
PARAMS = {"path": "docs/notes/today.md", "text": "three words here", "limit": 20, "options": {"deep": True, "of": [1]}}
FLAT = "flat"
_TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {"path": _TEXT, "text": _TEXT, "limit": {"type": "integer"}, "options": {"type": "object"}},
    "required": ["path"],
    "additionalProperties": False,
}


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
            target.call_tool(caller, b"1", {"name": name, "arguments": arguments, "_meta": META}, meta, sink)
        return (time.process_time_ns() - began) / CALLS / 1000


async def _measure(turns: int) -> dict[str, list[float]]:
    way = await make_way(GUARDED, msgspec.json.encode(SCHEMA))
    dispatch, caller, sink = way.dispatch, way.caller, way.sink
    plan = Plan(workspace=Path(), data=Path())
    loop: Any = _LoopOff()
    nobody: Any = Nobody()
    adapter = AqlAdapter(CurrentPlan(plan), dispatch._catalog, NativeOperations(), nobody, SystemClock(), loop, None)
    surface = AqlSurface(dispatch, adapter, "single")
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


def main() -> None:
    parser = argparse.ArgumentParser(description="what the AQL layer costs a call")
    parser.add_argument("--quick", action="store_true")
    found = asyncio.run(_measure(20 if parser.parse_args().quick else 200))
    for kind, times in found.items():
        added = sorted(ours - theirs for ours, theirs in zip(times, found[FLAT], strict=True))
        quarter = len(added) // 4
        more = spread(added[quarter : len(added) - quarter])
        says = "" if kind == FLAT else f"   {more.median:+.2f} us ({more.low:+.2f} to {more.high:+.2f})"
        print(f"{kind:30} {statistics.median(times):6.2f} us CPU{says}")


if __name__ == "__main__":
    main()
