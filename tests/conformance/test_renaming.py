"""Does the renaming proxy change names, and nothing else?"""

import asyncio
import json
from typing import Any

import pytest
from tests.conformance import renaming, shim

ASKED = [
    ("tools/call", {"name": "a", "arguments": {"name": "a"}}, {"name": "fixture__a", "arguments": {"name": "a"}}),
    ("prompts/get", {"name": "p"}, {"name": "fixture__p"}),
    ("resources/read", {"uri": "test://r"}, {"uri": "mcpax://fixture/test://r"}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "p"}},
        {"ref": {"type": "ref/prompt", "name": "fixture__p"}},
    ),
    (
        "subscriptions/listen",
        {"notifications": {"resourceSubscriptions": ["test://r"]}},
        {"notifications": {"resourceSubscriptions": ["mcpax://fixture/test://r"]}},
    ),
    ("tools/list", {"name": "a"}, {"name": "a"}),
    ("tools/call", {"name": 7}, {"name": 7}),
]


@pytest.mark.parametrize(("method", "params", "wanted"), ASKED)
def test_what_the_suite_asks_for_gets_the_prefix(method: str, params: dict[str, Any], wanted: dict[str, Any]) -> None:
    message = {"method": method, "params": params}
    renaming.to_node(message)
    assert message == {"method": method, "params": wanted}


@pytest.mark.parametrize(
    ("method", "value", "wanted"),
    [
        ("tools/call", "a", "fixture__a"),
        ("tools/call", "a  ", "fixture__a  "),
        ("resources/read", "test://r", "mcpax://fixture/test://r"),
        ("tools/call", "=?base64?YQ==?=", "=?base64?Zml4dHVyZV9fYQ==?="),
        ("tools/call", "=?base64?not base64?=", "=?base64?not base64?="),
        ("tools/list", "a", "a"),
    ],
)
def test_the_name_in_the_header_gets_the_prefix(method: str, value: str, wanted: str) -> None:
    assert renaming.name_header(method, value) == wanted


def test_the_names_that_a_node_lists_lose_the_prefix_and_are_invalid_without_it() -> None:
    message = {"result": {"tools": [{"name": "fixture__a"}, {"name": "b"}], "resources": [{"uri": "test://r"}]}}
    renaming.to_suite(message)
    assert message["result"]["tools"] == [{"name": "a"}, {"name": "without-prefix:b"}]
    assert message["result"]["resources"] == [{"uri": "without-prefix:test://r"}]


async def test_all_else_passes_the_proxy_as_it_came() -> None:
    """Header lines with their blanks and order, a body that is no JSON, an event stream in pieces, and the end."""
    seen: list[bytes] = []
    body = json.dumps({"method": "notifications/resources/updated", "params": {"uri": "mcpax://fixture/test://r"}})

    async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"{no json"))
        event = f"id: 1\ndata: {body}\n\n".encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in (event[:20], event[20:]):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(node, "127.0.0.1", 0) as server:
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with shim.renamed(base) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
            request = b"POST /mcp HTTP/1.1\r\nX-B:  two blanks \r\nx-a: 1\r\nContent-Length: 8\r\n\r\n{no json"
            writer.write(request)
            answer = await reader.read()
            writer.close()
    assert seen == [request]
    assert b'"uri":"test://r"' in answer
    assert answer.endswith(b"0\r\n\r\n")
