"""What a reference server says during a call: does it reach whoever asked for it, through the contract?"""

from typing import Any

import pytest
from tests.support.node_process import RunningNode

from mcp import Client

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]


@pytest.mark.req("AIP-transport-14")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_progress_reaches_the_caller_who_asked_for_it_and_nobody_else(reference: RunningNode, mode: str) -> None:
    heard: list[tuple[float, float | None]] = []
    others: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total))

    async def on_message(message: Any) -> None:
        others.append(message)

    slow = {"duration": 1, "steps": 3}
    name = "everything__trigger-long-running-operation"
    async with (
        Client(f"{reference.url}/mcp", mode=mode) as client,
        Client(f"{reference.url}/mcp", mode=mode, message_handler=on_message) as other,
    ):
        await other.call_tool("everything__echo", {"message": "hi"})
        told = await client.call_tool(name, slow, progress_callback=on_progress)
        untold = await client.call_tool(name, slow)
    assert heard == [(1, 3), (2, 3), (3, 3)]
    assert told.content == untold.content
    assert [each for each in others if "progress" in str(each)] == []
