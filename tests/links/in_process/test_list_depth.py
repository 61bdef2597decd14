"""Is a definition that is nested too deeply left out by itself, with the reason, and the rest listed?"""

import asyncio
from typing import Any

from msgspec import Raw

from interlock.ax.protocol.hop_metadata import ADOPTED
from interlock.links.link import ServerFacts
from interlock.links.listing import read_list
from interlock.mcp.methods import TOOLS_LIST, Era
from interlock.wire.jsonrpc.codec import ABSENT, Response


class Deep:
    """A link whose server lists one tool that is nested deeply and one that is not."""

    offer = ADOPTED
    facts = ServerFacts(era=Era.LEGACY, version="2025-11-25", capabilities={"tools": Raw(b"{}")})

    async def request(self, method: str, params: dict[str, Any], within_s: float) -> Response:
        deep = b'{"name":"deep","inputSchema":%b}' % (b'{"not":' * 3000 + b"{}" + b"}" * 3000)
        result = b'{"tools":[%b,{"name":"plain","inputSchema":{}}]}' % deep
        return Response(b"1", Raw(result), ABSENT)


def test_an_item_that_is_nested_too_deeply_is_left_out_and_the_rest_is_listed() -> None:
    async def read() -> Any:
        return await read_list(Deep(), TOOLS_LIST)  # type: ignore[arg-type]

    items = asyncio.run(read())
    assert [name for name, _ in items.items] == ["plain"]
    assert items.refused == (("deep", "its definition is nested too deeply"),)
