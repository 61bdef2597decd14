"""A leaf that counts and keeps a log of what it did: region_leaf.py PLACE URL STATE-FOLDER LOG-FILE

The log is written before the answer, so that what was done and what was said can be held against each other.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from interlock.sdk.subserver import Subserver

WORK_S = 0.01  # between deed and answer, so that kills meet calls under way

place, url, state, file = sys.argv[1:5]
log = Path(file)
leaf = Subserver(
    "till", parents=[url], authority="dns:all.example", auth_scope="write", state=state, heartbeat_interval_ms=500
)
done = set(log.read_text().split()) if log.exists() else set()


@leaf.tool(mutable=True, reversible=True, idempotent=True, latency_class="fast")
async def count(token: str) -> dict[str, Any]:
    "Counts a token that it has not seen."
    fresh = token not in done
    if fresh:
        done.add(token)
        with log.open("a") as file:  # noqa: ASYNC230  (nothing else is to happen meanwhile)
            file.write(f"{token}\n")
    await asyncio.sleep(WORK_S)
    return {"place": place, "token": token, "fresh": fresh, "count": len(done)}


@leaf.tool(name="a_name_so_long_that_no_alias_can_hold_all_of_it_and_its_region", mutable=False)
async def long_name() -> str:
    "Where it is."
    return place


leaf.run()
