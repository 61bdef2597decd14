"""Which names does a client see, and which are unknown to it? By its URL, its declaration, its principal, its scope."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.servers.start import raw
from tests.support.fleet import bridge, stdio_table
from tests.support.node_process import RunningNode, running_node
from tests.support.odd_server import command
from tests.support.peers import LEGACY, MODERN, HttpPeer, Peer, SsePeer, StdioPeer

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONFIG = """
[[access]]
who = ["client:dots"]
names = "qualified"

[[access]]
who = ["client:reader"]
scope = "read"

[[access]]
who = ["client:narrow"]
tools = ["files.echo", "files.se*"]

[[tool]]
match = "files.fail"
hide = true

[[tool]]
match = "files.refuse"
auth_scope = "admin"
"""
VERSIONS = {"legacy": LEGACY, "modern": MODERN}
PUBLIC = ("--era", "modern", "--cache-scope", "public", "--ttl-ms", "60000")
OPEN = ("exact", "fail", "refuse", "touch")
EXTENSION = {"dev.interlock/ax": {}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningNode]:
    servers = {
        "files": stdio_table(raw("all", "--era", "legacy")) | {"definitions": "follow"},
        "open": stdio_table(raw("echo,resources", *PUBLIC)) | {"tools": dict.fromkeys(OPEN, "read_only")},
        "mixed": stdio_table(raw("echo", *PUBLIC)),
        "twins": stdio_table(command("names", "--names", '["getUser","GetUser","other"]')),
    }
    with running_node(tmp_path_factory.mktemp("forms"), servers, CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(node: RunningNode) -> dict[str, str]:
    made = {}
    for name in ("dots", "reader", "narrow", "plain"):
        done = node.cli("access", "token", "--for", "client", "--name", name, "--scope", "write", "--json")
        assert done.returncode == 0, done.stderr
        made[name] = json.loads(done.stdout)["token"]
    return made


@contextlib.asynccontextmanager
async def client(
    node: RunningNode, era: str, path: str = "", *, token: str | None = None, declares: bool = False
) -> AsyncIterator[Peer]:
    member = "experimental" if era == "legacy" else "extensions"
    peer = HttpPeer(f"{node.url}/mcp{path}", VERSIONS[era], token=token)
    async with await peer.greet({member: EXTENSION} if declares else {}) as opened:
        yield opened


async def names(peer: Peer) -> list[str]:
    return [tool["name"] for tool in (await peer.request("tools/list")).result["tools"]]


def is_dotted(found: list[str]) -> bool:
    dotted = {"." in name for name in found}
    assert len(dotted) == 1, found
    return dotted.pop()


@pytest.mark.parametrize("era", VERSIONS)
async def test_the_form_of_names_follows_url_then_principal_then_declaration(
    node: RunningNode, tokens: dict[str, str], era: str
) -> None:
    for path, token, declares, dotted in (
        ("", None, False, False),
        ("", None, True, True),
        ("?names=qualified", None, False, True),
        ("?names=safe", None, True, False),
        ("", "dots", False, True),
        ("?names=safe", "dots", False, False),
        ("?names=qualified", "plain", False, True),
        ("", "plain", False, False),
        ("?names=nonsense", None, False, False),
        ("/flat?names=qualified", None, False, True),
    ):
        said = tokens[token] if token is not None else None
        async with client(node, era, path, token=said, declares=declares) as peer:
            first = await names(peer)
            assert is_dotted(first) is dotted, (path, token, declares)
            for name in ("files.echo", "files__echo"):
                assert (await peer.call(name, {"a": 1})).result["structuredContent"] == {"a": 1}
            assert await names(peer) == first


async def test_a_session_keeps_its_form_whatever_later_requests_say(node: RunningNode) -> None:
    async with client(node, "legacy", "?names=qualified") as peer:
        before = await names(peer)
        peer.url = f"{node.url}/mcp?names=safe"  # type: ignore[attr-defined]
        assert await names(peer) == before


async def test_the_name_a_client_gives_itself_changes_no_list(node: RunningNode) -> None:
    async with client(node, "modern") as peer:
        before = (await peer.request("tools/list")).result["tools"]
        info = {"io.modelcontextprotocol/clientInfo": {"name": "claude-ai", "version": "9"}}
        assert (await peer.request("tools/list", meta=info)).result["tools"] == before


async def scope_of(node: RunningNode, path: str, **options: Any) -> str:
    async with client(node, "modern", path, **options) as peer:
        return (await peer.request("tools/list")).result["cacheScope"]


async def test_only_a_list_that_is_the_same_for_everybody_is_public(node: RunningNode, tokens: dict[str, str]) -> None:
    assert await scope_of(node, "/only/open") == "public"
    assert await scope_of(node, "/only/open", declares=True) == "private"
    assert await scope_of(node, "/only/open", token=tokens["dots"]) == "private"
    assert await scope_of(node, "/only/mixed", token=tokens["reader"]) == "private"  # it lacks what changes things
    assert await scope_of(node, "/only/mixed", token=tokens["narrow"]) == "private"
    assert await scope_of(node, "") == "private"  # a legacy server says nothing about it


@pytest.mark.parametrize("era", VERSIONS)
async def test_one_server_alone_speaks_in_its_own_names(node: RunningNode, era: str) -> None:
    front = bridge(node, "--only", "files")
    async with contextlib.AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(client(node, era, "/only/files")),
            await stack.enter_async_context(client(node, era, "/only/files?names=qualified")),
            await stack.enter_async_context(await StdioPeer.start(front, VERSIONS[era])),
        ]
        if era == "legacy":
            peers.append(await stack.enter_async_context(await SsePeer.legacy(f"{node.url}/sse/only/files")))
        for peer in peers:
            found = await names(peer)
            assert {"echo", "exact", "touch"} <= set(found)
            assert not any("__" in name or "." in name for name in found)
            assert (await peer.call("echo", {"a": 1})).result["structuredContent"] == {"a": 1}
            prompts = (await peer.request("prompts/list")).result["prompts"]
            assert [prompt["name"] for prompt in prompts] == ["greet", "plain"]
            assert (await peer.request("prompts/get", {"name": "plain"})).result["messages"]
            resources = (await peer.request("resources/list")).result["resources"]
            assert [resource["uri"] for resource in resources] == ["raw://text", "raw://blob"]
            read = await peer.request("resources/read", {"uri": "raw://item/7"})
            assert read.result["contents"][0]["text"] == "text of raw://item/7"
            ref = {"type": "ref/resource", "uri": "raw://item/{id}"}
            asked = {"ref": ref, "argument": {"name": "id", "value": "v"}}
            assert (await peer.request("completion/complete", asked)).result["completion"]["total"] == 2
            assert (await peer.call("open.echo")).error["code"] == -32601


async def test_only_of_an_unknown_segment_is_not_found(node: RunningNode) -> None:
    for path in ("/only/nobody", "/only/", "/only", "/only/files/more"):
        peer = HttpPeer(f"{node.url}/mcp{path}", MODERN, judged=False)
        async with peer:
            reply = await peer.begin("tools/list").reply()
            assert (reply.status, reply.message["error"]) == (404, "not_found")


async def test_a_bare_uri_is_read_where_it_is_unique_and_explained_where_not(node: RunningNode) -> None:
    async with client(node, "modern") as peer:
        shared = await peer.request("resources/read", {"uri": "raw://text"})
        assert shared.error["code"] == -32602
        assert shared.error["data"]["candidates"] == ["mcpax://files/raw://text", "mcpax://open/raw://text"]
        for candidate in shared.error["data"]["candidates"]:
            read = await peer.request("resources/read", {"uri": candidate})
            assert read.result["contents"][0]["text"] == "text of raw://text"
        assert (await peer.request("resources/read", {"uri": "raw://nowhere"})).error["code"] == -32602
    async with client(node, "legacy") as peer:
        assert (await peer.request("resources/read", {"uri": "raw://nowhere"})).error["code"] == -32002


@pytest.mark.req("AX-5.2-2")
@pytest.mark.parametrize("era", VERSIONS)
async def test_a_name_that_is_not_the_callers_to_use_is_unknown(
    node: RunningNode, tokens: dict[str, str], era: str
) -> None:
    async def unknown(peer: Peer, *wanted: str) -> None:
        for name in wanted:
            reply = await peer.call(name, {"trace": "of the unknown"})
            assert reply.error["code"] == -32601, name
            assert reply.error["data"]["reason"] == reply.error["message"].partition(":")[0] == "tool_not_found"
            near = set(reply.error["data"].get("did_you_mean", ()))
            assert near <= {tool["name"] for tool in (await peer.request("tools/list")).result["tools"]} - {name}
            assert reply.status == 200

    async with client(node, era) as peer:
        await peer.call("files__change", {"kind": "tools", "name": "brief"})
        async with asyncio.timeout(10):
            while "files__brief" not in await names(peer):
                pass
            assert "result" in (await peer.call("files__brief")).message
            await peer.call("files__change", {"kind": "tools", "name": "brief"})
            while "files__brief" in await names(peer):
                pass
        before = await trace(peer)
        await unknown(peer, "files__brief", "files.brief")  # deregistered
        await unknown(peer, "nobody.echo", "echo", "files", "files.echo.more", "Files.echo", "files__ECHO")  # never
        await unknown(peer, "twins.get_user", "twins__get_user", "twins.getUser", "files.fail")  # withheld, hidden
        await unknown(peer, "files.refuse")  # beyond the scope of an ordinary client
    async with client(node, era, token=tokens["reader"]) as peer:
        assert "files__exact" not in await names(peer)
        await unknown(peer, "files.exact", "files__exact", "mixed.exact")
        assert (await peer.call("files.echo", {"a": 1})).result["structuredContent"] == {"a": 1}
    async with client(node, era, token=tokens["narrow"]) as peer:
        assert await names(peer) == ["files__echo", "files__seen"]
        await unknown(peer, "files.exact", "open.echo")
    async with client(node, era) as peer:
        assert await trace(peer) == before  # nothing of it was sent to a server


async def trace(peer: Peer) -> int:
    seen = (await peer.call("files__seen")).result["structuredContent"]["messages"]
    return sum("of the unknown" in one["text"] for one in seen)


@pytest.mark.parametrize("bad", ["7", "null", "[]", '{"name":"files.echo"}'])
@pytest.mark.parametrize("era", VERSIONS)
async def test_a_name_that_is_no_text_is_refused(node: RunningNode, era: str, bad: str) -> None:
    async with client(node, era) as peer:
        for method in ("tools/call", "prompts/get"):
            reply = await peer.request(method, f'{{"name":{bad}}}', headers={"mcp-name": "x"})
            assert reply.error["code"] in ((-32602,) if era == "legacy" else (-32602, -32020))
