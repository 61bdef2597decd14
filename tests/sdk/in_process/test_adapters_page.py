"""Do the pieces of docs/aql-adapters.md, put together as the page says, make the adapter it describes?"""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from interlock.sdk.aql import Adapter
from interlock.sdk.aql.service import Service
from interlock.sdk.aql.values import Context

PAGE = Path(__file__).parents[3] / "docs" / "aql-adapters.md"


async def test_the_pieces_of_the_page_are_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Adapter, "run", lambda self: None)
    names: dict[str, Any] = {"__name__": "library"}
    pieces = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec("\n".join(pieces), names)
    service = Service(names["library"])

    async def send(tool: str, operation: str, **params: Any) -> dict[str, Any]:
        def context(of: str) -> Context:
            return Context(of, "local", lambda: False, lambda *said: None)

        reply = json.encode({"operation": operation, "params": params})
        return dict(json.decode((await service.answer(f"mcp_aql_{tool}", reply, context))[0]))

    assert (await send("read", "get_book", book_id="1"))["data"] == {"id": "1", "title": "Emma"}
    wrong = (await send("read", "get_book", bookId="1"))["error"]
    assert wrong["details"]["unknown_params"] == ["bookId"] and "Did you mean 'book_id'" in wrong["message"]
    data = (await send("create", "create_book", title="Emma"))["data"]
    changed = (await send("update", "update_book", book_id=data["id"], input={"title": "Persuasion"}))["data"]
    assert changed == {**data, "title": "Persuasion"}
    begun = (await send("execute", "execute_inventory"))["data"]
    for _ in range(100):
        state = (await send("read", "get_execution", execution_id=begun["execution_id"]))["data"]
        if state["status"] == "completed":
            break
        await asyncio.sleep(0)
    assert state["result"] == {"books": 1}
