"""The gateway of the draft's walk-through: gateway_leaf.py URL STATE-FOLDER. Its tool tells the route it was given."""

import sys
from typing import Any

from interlock.sdk.subserver import Context, Subserver

leaf = Subserver("stm32h7", parents=[sys.argv[1]], state=sys.argv[2])


@leaf.tool(mutable=False)
async def dma2d_status(context: Context) -> dict[str, Any]:
    "The route and the cursor, as they stand when the tool is run."
    return {"route": context.meta["x-mcpax-route"], "cursor": context.meta["x-mcpax-cursor"]}


leaf.run()
