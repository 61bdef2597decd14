"""A leaf of the product's own library: library_leaf.py SEGMENT URL STATE-FOLDER [RECORD-FILE]"""

import os
import sys
from pathlib import Path

from interlock.sdk.subserver import Subserver

segment, url, state = sys.argv[1:4]
record = Path(sys.argv[4]) if len(sys.argv) > 4 else None
leaf = Subserver(segment, parents=[url] if url else [], state=state, heartbeat_interval_ms=500)


@leaf.tool(mutable=False)
async def echo(number: int) -> int:
    "The number, noted down first."
    if record is not None:
        with record.open("a") as file:
            file.write(f"{number}\n")
    return number


@leaf.tool(mutable=False)
async def pid() -> int:
    "Which process this is."
    return os.getpid()


leaf.run()
