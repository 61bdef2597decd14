"""Is everything a client gets plain MCP of the revision it negotiated, and silent about what lies behind the node?"""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from tests.servers.rawserver.text import prepend
from tests.servers.start import raw, serving
from tests.support import mcp_judge as judge
from tests.support.fleet import CAPABLE, LINKS, Fleet, stdio_table, tool, uri
from tests.support.node_process import RunningNode, running_node
from tests.support.peers import LEGACY, HttpPeer, Peer, Reply, SsePeer, call_text

pytestmark = pytest.mark.asyncio(loop_scope="session")

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "sampling/createMessage": lambda params: {
        "role": "assistant",
        "content": {"type": "text", "text": "x"},
        "model": "m",
    },
    "elicitation/create": lambda params: {"action": "decline"},
    "roots/list": lambda params: {"roots": []},
}


@pytest.mark.req("AX-3.2-1")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_message_keeps_to_the_schema_of_the_negotiated_revision(fleet: Fleet, revision: str) -> None:
    """A walk through everything a client can do; the peer puts each message it gets before the judge."""
    able = dict(CAPABLE) if revision >= "2025-06-18" else {"sampling": {}, "roots": {}}
    async with await HttpPeer(f"{fleet.node.url}/mcp", revision).greet(able) as peer:
        peer.answers.update(ANSWERS)
        kinds = await walk(peer)
        if not peer.modern:
            await peer.listen()
            await legacy_walk(peer)
        else:
            peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            await peer.hear("notifications/subscriptions/acknowledged")
        for _ in range(2):
            await peer.call(tool("new_http", "change"), {"kind": "tools", "name": "seen_by_the_judge"})
            await peer.hear("notifications/tools/list_changed")
        kinds |= {message.get("method", "") for message in peer.log}
    assert kinds >= {"result", "error", "notifications/progress", "notifications/message"}
    assert peer.complaints == []


async def walk(peer: Peer) -> set[str]:
    if peer.modern:
        peer.log_level = "debug"
    else:
        await peer.request("logging/setLevel", {"level": "debug"})
    for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
        await peer.request(method)
    replies = []
    for link in LINKS:
        for name, arguments in {
            "echo": {"a": [{}], "x-deep": {"y": None}},
            "fail": {},
            "refuse": {"code": -32603, "message": "no", "data": {"why": []}},
            "log": {"level": "error", "data": {"x": 1}},
            "no_such_tool": {},
        }.items():
            replies.append(await peer.call(tool(link, name), arguments))
        replies.append(await peer.call(tool(link, "progress"), meta={"progressToken": "p"}))
        replies.append(await peer.request("prompts/get", {"name": tool(link, "greet"), "arguments": {"who": "x"}}))
        replies.append(await peer.request("prompts/get", {"name": tool(link, "none")}))
        for own in ("raw://text", "raw://blob", "raw://none"):
            replies.append(await peer.request("resources/read", {"uri": uri(link, own)}))
        ref = {"type": "ref/prompt", "name": tool(link, "greet")}
        replies.append(
            await peer.request("completion/complete", {"ref": ref, "argument": {"name": "who", "value": "x"}})
        )
        replies += await asked(peer, link)
    return {"error" if "error" in reply.message else "result" for reply in replies}


async def asked(peer: Peer, link: str) -> list[Reply]:
    """A call whose server asks the client, to its end."""
    params = call_text(
        tool(link, "ask"), {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    )
    replies = [await peer.request("tools/call", params)]
    if peer.modern:
        result = replies[0].result
        (key,) = result["inputRequests"]
        again = [
            ("inputResponses", json.dumps({key: ANSWERS["sampling/createMessage"](None)})),
            ("requestState", json.dumps(result["requestState"])),
        ]
        replies.append(await peer.request("tools/call", prepend(again, params)))
    return replies


async def legacy_walk(peer: Peer) -> None:
    await peer.request("ping")
    for method in ("resources/subscribe", "resources/unsubscribe", "resources/subscribe"):
        await peer.request(method, {"uri": uri("old_http", "raw://text")})
    await peer.call(tool("old_http", "touch"), {"uri": "raw://text"})
    await peer.hear("notifications/resources/updated")
    assert peer.asked  # the servers of this era did ask


async def test_the_judge_finds_what_breaks_the_schema() -> None:
    tool_ = {"name": "x", "inputSchema": {"type": "object"}}
    for revision, result, fault in (
        ("2025-11-25", {"tools": [{"name": "x"}]}, "inputSchema"),
        ("2026-07-28", {"tools": [tool_], "ttlMs": 0, "cacheScope": "private"}, "resultType"),
        ("2026-07-28", {"resultType": "complete", "tools": [tool_], "ttlMs": 0, "cacheScope": "x"}, "cacheScope"),
        ("2025-11-25", {"tools": [{**tool_, "x-mcpax-hops": 1}]}, "outside _meta"),
    ):
        said = judge.complaints(revision, {"jsonrpc": "2.0", "id": 1, "result": result}, "tools/list")
        assert any(fault in why for why in said), (said, fault)
    notice = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {"notifications": {}}}
    assert judge.complaints("2025-11-25", notice)
    asked = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {}}
    assert judge.complaints("2025-03-26", asked) and judge.complaints("2026-07-28", asked)


# What a client must not learn


class Behind:
    """A node in front of servers that fail in every way, and what of them must stay behind it."""

    def __init__(self, node: RunningNode, secrets: set[str]) -> None:
        self.node, self.secrets = node, secrets


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def behind(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Behind]:
    folder = tmp_path_factory.mktemp("behind")
    with contextlib.ExitStack() as stack:
        closed = stack.enter_context(contextlib.closing(socket.socket()))
        closed.bind(("127.0.0.1", 0))  # bound, never listening: refused
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
        urls = {
            e: stack.enter_context(serving(raw("all", "--era", e, "--name", "inner-name")))
            for e in ("legacy", "modern")
        }
        locked = stack.enter_context(serving(raw("echo", "--token", "right")))
        brief = contextlib.ExitStack()
        gone = brief.enter_context(serving(raw("echo", "--era", "legacy")))
        servers = {
            "old": {"url": urls["legacy"]},
            "new": {"url": urls["modern"]},
            "locked": {"url": locked, "headers": {"Authorization": "Bearer wrong-secret"}},
            "dead": {"url": f"http://{dead}/mcp"},
            "gone": {"url": gone},
            "crashing": stdio_table(raw("crash-on-call")) | {"env": {"API_KEY": "sk-secret-of-the-server"}},
            "garbled": stdio_table(raw("echo,invalid-utf8", "--era", "legacy")),
            "missing": {"command": ["/no/such/program"]},
        }
        node = stack.enter_context(running_node(folder, servers))
        brief.close()
        async with await HttpPeer(urls["legacy"], LEGACY, judged=False).greet() as peer:
            seen = (await peer.call("seen")).result["structuredContent"]["messages"]
        sessions = {one["headers"].get("mcp-session-id", "") for one in seen} - {""}
        addresses = {url.removeprefix("http://").removesuffix("/mcp") for url in (*urls.values(), locked, gone)}
        secrets = {*sessions, *addresses, dead, str(folder), sys.executable, "/no/such/program", "wrong-secret"}
        assert sessions
        yield Behind(node, secrets | {"sk-secret", "raw.py", "inner-name", "fatal: crashed", "Traceback"})


@pytest.mark.req("AX-3.2-4")
async def test_a_client_learns_nothing_about_what_is_behind(behind: Behind) -> None:
    """What a server itself answers is its own affair and passes; how it is reached, and how that fails, is not."""
    url = behind.node.url
    async with (
        await HttpPeer.legacy(f"{url}/mcp") as legacy,
        await HttpPeer.modern_(f"{url}/mcp") as modern,
        await SsePeer.legacy(f"{url}/sse") as sse,
    ):
        heard = await asyncio.gather(*(everything_heard(peer) for peer in (legacy, modern, sse)))
    texts = [text for one in heard for text in one]
    found = {(secret, text[:300]) for text in texts for secret in behind.secrets if secret in text}
    assert found == set()
    for word in ('"session_id"', '"subserver_id"', '"aggregator_id"', '"endpoint"', "Errno", "Exception"):
        assert not any(word in text for text in texts), word


async def everything_heard(peer: Peer) -> list[str]:
    for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
        await peer.request(method)
    failures = {name: (await peer.call(name)).error for name in ("gone.echo", "crashing.echo", "garbled.echo")}
    assert {name: error["message"] for name, error in failures.items()} == {
        "gone.echo": "tool_degraded",
        "crashing.echo": "tool_degraded",
        "garbled.echo": "the server's answer cannot be used",
    }
    for name in ("old.echo", "new.echo", "old.nothing", "dead.echo", "locked.echo", "missing.x", "new.fail"):
        await peer.call(name, {"a": 1})
    for own in ("raw://none", "mcpax://old/raw://none", "mcpax://dead/raw://text", "file:///etc/passwd"):
        await peer.request("resources/read", {"uri": own})
    return [json.dumps(peer.greeting), *(json.dumps(message) for message in peer.log)]
