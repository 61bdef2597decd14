"""Is every server's tool listed under a name that is its own, whatever the server calls it, and reached by it?

One node in front of servers with names of every kind; hostile ones beside their victims.
"""

import contextlib
import hashlib
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.support.fleet import CAPABLE, bridge, stdio_table
from tests.support.node_process import RunningNode, running_node
from tests.support.odd_server import command
from tests.support.peers import LEGACY, MODERN, HttpPeer, Peer, SsePeer, StdioPeer

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = "n" * 127 + "m"
SHORTENED = f"{'n' * 54}_{hashlib.sha256(LONG.encode()).hexdigest()[:8]}"


def hashed(head: str, original: str) -> str:
    return f"{head}_{hashlib.sha256(original.encode()).hexdigest()[:8]}"


NORMALISED = {
    "createIssue": "create_issue",
    "HTTPGet": "http_get",
    "get/user": "get_user",
    "größe": "gr__e",
    "admin.tools.list": "admin_tools_list",
    LONG: SHORTENED,
    "plain": "plain",
    "kebab-case": "kebab-case",
    "日本語": hashed("name", "日本語"),
    "with space": "with_space",
    "9lives": "9lives",
    "*": hashed("name", "*"),
}
HOSTILE = ["infra.admin.reset", "jira.create", "jira__create", "../jira/create", "jira_D_create", "mcpax://jira/x"]
_RANDOM = random.Random(20261115)
FUZZ = sorted({"".join(_RANDOM.choices('jira.create_D-/\\ \t"A{}é\x00', k=_RANDOM.randint(0, 90))) for _ in range(400)})
# Both shorten to the same client-safe alias: the ten digits of their hashes agree.
COLLIDING = [f"{'a' * 13}{middle}{'z' * 35}" for middle in ("mmmmmmmmmmag3go", "mmmmmmmmmmbir5z")]
DEEP = "s" * 63
SERVERS = {
    "odd": list(NORMALISED),
    "beside": ["createIssue", "create_issue", "other"],
    "beside_reversed": ["other", "create_issue", "createIssue"],
    "twins": ["getUser", "GetUser", "other"],
    "twins_reversed": ["other", "GetUser", "getUser"],
    "scripts": ["Upper", "UPPER", "日本", "中国", "ｕｐｐｅｒ"],
    "jira": ["create"],
    "hostile": HOSTILE,
    "fuzz": FUZZ,
    "c": [*COLLIDING, "other"],
    DEEP: ["t" * 63, "x"],
    "_edges_": ["_a_", "b__c"],
}
SEGMENT = re.compile(r"[a-z0-9_-]{1,63}")
ALIAS = re.compile(r"[A-Za-z0-9_-]{1,64}")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningNode]:
    tables = {
        segment: stdio_table(command("names", "--names", json.dumps(names))) for segment, names in SERVERS.items()
    }
    with running_node(tmp_path_factory.mktemp("names"), tables) as running:
        yield running


@contextlib.asynccontextmanager
async def client(node: RunningNode, era: str = "legacy", path: str = "", **options: Any) -> AsyncIterator[Peer]:
    version = LEGACY if era == "legacy" else MODERN
    async with await HttpPeer(f"{node.url}/mcp{path}", version, **options).greet(CAPABLE) as peer:
        yield peer


async def listed(peer: Peer, method: str = "tools/list") -> list[dict[str, Any]]:
    return (await peer.request(method)).result["prompts" if method == "prompts/list" else "tools"]


async def qualified(node: RunningNode, segment: str) -> dict[str, str]:
    """Qualified name -> what the server calls it, of the tools listed under this segment."""
    routes = node.admin("/admin/tools/routes")
    return {name: route["downstream_name"] for name, route in routes.items() if name.startswith(f"{segment}.")}


def text(reply: Any) -> str:
    result = reply.result
    return (result.get("content") or [result["messages"][0]["content"]])[0]["text"]


@pytest.mark.req("AX-4.1-3")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_odd_names_are_normalised_and_called_by_their_own(node: RunningNode, era: str) -> None:
    async with client(node, era, "?names=qualified") as peer:
        names = {tool["name"] for tool in await listed(peer) if tool["name"].startswith("odd.")}
        assert names == {f"odd.{local}" for local in NORMALISED.values()}
        prompts = {one["name"] for one in await listed(peer, "prompts/list") if one["name"].startswith("odd.")}
        assert prompts == names
        for original, local in NORMALISED.items():
            assert text(await peer.call(f"odd.{local}")) == original
            assert text(await peer.request("prompts/get", {"name": f"odd.{local}"})) == original


COLLIDED = {
    "beside": {"create_issue": "create_issue", "createIssue": hashed("create_issue", "createIssue")},
    "twins": {name: hashed("get_user", name) for name in ("getUser", "GetUser")},
    "scripts": {name: hashed("upper", name) for name in ("Upper", "UPPER")}
    | {name: hashed("name", name) for name in ("日本", "中国", "ｕｐｐｅｒ")},
}


@pytest.mark.req("AX-4.1-3")
@pytest.mark.parametrize("segment", ["beside", "beside_reversed", "twins", "twins_reversed", "scripts"])
async def test_colliding_names_carry_a_hash_in_any_order(node: RunningNode, segment: str) -> None:
    given = COLLIDED[segment.partition("_")[0]] | ({} if segment == "scripts" else {"other": "other"})
    assert await qualified(node, segment) == {f"{segment}.{local}": original for original, local in given.items()}
    assert node.link(segment)["withheld"] == []
    async with client(node) as peer:
        for original, local in given.items():
            assert text(await peer.call(f"{segment}.{local}")) == original
            assert text(await peer.call(f"{segment}__{local}")) == original
        for gone in ("get_user", "upper", "__") if segment not in ("beside", "beside_reversed") else ():
            assert (await peer.call(f"{segment}.{gone}")).error["code"] == -32601
    async with client(node, "modern", f"/only/{segment}") as peer:
        assert {tool["name"] for tool in await listed(peer)} == set(given)
        for original in given:
            assert text(await peer.call(original)) == original
    for original, local in given.items():
        for name in (original, local):
            assert f"{segment}.{local}" in node.cli("tools", "show", f"{segment}.{name}").stdout


async def test_the_command_line_calls_a_tool_by_the_name_at_its_server(node: RunningNode) -> None:
    for name in ("日本", "Upper"):
        assert node.cli("tools", "call", f"scripts.{name}").stdout.strip() == name
    unknown = node.cli("tools", "call", "scripts.無")
    assert (unknown.returncode, "there is no tool scripts.無" in unknown.stderr) == (1, True)


async def test_names_with_stray_dots_never_occur_and_lead_nowhere(node: RunningNode) -> None:
    async with client(node, path="?names=qualified") as peer:
        for tool in await listed(peer):
            assert all(SEGMENT.fullmatch(part) for part in tool["name"].split(".")), tool["name"]
            assert len(tool["name"]) <= 255
        for name in (".odd.plain", "odd.plain.", "odd..plain", ".", "", "odd", "odd.", "ODD.plain", "odd.plain\n"):
            assert (await peer.call(name)).error["code"] == -32601, name


@pytest.mark.req("AX-4.3-2")
async def test_a_hostile_server_gets_no_name_outside_its_own_segment(node: RunningNode) -> None:
    for segment, names in SERVERS.items():
        found = await qualified(node, segment)
        assert set(found.values()) <= set(names), segment
    assert await qualified(node, "jira") == {"jira.create": "create"}
    assert await qualified(node, "infra") == {}
    assert await qualified(node, "hostile") == {
        "hostile.infra_admin_reset": "infra.admin.reset",
        "hostile.jira_create": "jira.create",
        "hostile.jira__create": "jira__create",
        "hostile.___jira_create": "../jira/create",
        "hostile.jira_d_create": "jira_D_create",
        "hostile.mcpax___jira_x": "mcpax://jira/x",
    }
    everything = node.admin("/admin/tools/routes")
    assert {name.partition(".")[0] for name in everything} <= SERVERS.keys()
    assert len(await qualified(node, "fuzz")) > 100
    async with client(node) as peer:
        for name in ("jira.create", "jira__create"):
            assert text(await peer.call(name)) == "create"
        assert (await peer.call("infra.admin.reset")).error["code"] == -32601


@contextlib.asynccontextmanager
async def edges(node: RunningNode) -> AsyncIterator[Iterator[tuple[str, Peer]]]:
    """A client on every kind of front."""
    async with contextlib.AsyncExitStack() as stack:
        opened = {
            "http-legacy": await HttpPeer.legacy(f"{node.url}/mcp"),
            "http-modern": await HttpPeer.modern_(f"{node.url}/mcp"),
            "http-qualified": await HttpPeer.modern_(f"{node.url}/mcp?names=qualified"),
            "sse": await SsePeer.legacy(f"{node.url}/sse"),
            "stdio-legacy": await StdioPeer.start(bridge(node), LEGACY),
            "stdio-modern": await StdioPeer.start(bridge(node), MODERN),
        }
        for peer in opened.values():
            await stack.enter_async_context(peer)
        yield iter(opened.items())


@pytest.mark.req("AX-3.2-2", "AX-3.2-3")
async def test_both_spellings_reach_the_tool_on_every_edge(node: RunningNode) -> None:
    """On 2026-07-28 the client sends Mcp-Name equal to the name in the body; another is refused."""
    async with edges(node) as opened:
        for front, peer in opened:
            tools = [tool for tool in await listed(peer) if tool["name"].startswith(("odd", "jira", "beside"))]
            for tool in tools:
                meta = tool["_meta"]
                dotted = tool["name"] if front == "http-qualified" else meta["x-mcpax-name"]
                assert "." in dotted
                assert ALIAS.fullmatch(tool["name"]) or front == "http-qualified"
                original = text(await peer.call(dotted))
                assert text(await peer.call(tool["name"])) == original
                segment = dotted.partition(".")[0]
                locals_ = NORMALISED | COLLIDED["beside"] if segment.startswith("beside") else NORMALISED
                assert dotted == f"{segment}.{locals_.get(original, original)}"
            assert len(tools) >= len(NORMALISED)
    async with client(node, "modern") as peer:
        refused = await peer.call("jira.create", headers={"mcp-name": "jira__create"})
        assert (refused.status, refused.error["code"]) == (400, -32020)
        assert text(await peer.call("jira__create", headers={"mcp-name": "jira__create"})) == "create"


@pytest.mark.req("AX-3.2-5")
async def test_an_alias_is_safe_and_leads_to_one_tool_only(node: RunningNode, tmp_path: Path) -> None:
    async with client(node) as peer:
        aliases = {tool["_meta"]["x-mcpax-name"]: tool["name"] for tool in await listed(peer)}
        assert all(ALIAS.fullmatch(alias) for alias in aliases.values())
        assert len(set(aliases.values())) == len(aliases)
        assert aliases["_edges_._a_"] == "_edges__D__a_"
        assert aliases["_edges_.b__c"] == "_edges__D_b__c"
        dotted = f"{DEEP}.{'t' * 63}"
        digits = hashlib.sha256(dotted.encode()).hexdigest()[:10]
        assert aliases[dotted] == f"{'s' * 16}_H{digits}_{'t' * 35}"
        assert text(await peer.call(aliases[dotted])) == "t" * 63
        wrong = aliases[dotted].replace(digits, f"{int(digits, 16) ^ 1:010x}")
        assert (await peer.call(wrong)).error["code"] == -32601
    tables = {
        segment: stdio_table(command("names", "--names", json.dumps(names[::-1])))
        for segment, names in reversed(SERVERS.items())
    }
    with running_node(tmp_path, tables) as restarted:
        async with client(restarted) as peer:
            assert {tool["_meta"]["x-mcpax-name"]: tool["name"] for tool in await listed(peer)} == aliases


async def test_a_withheld_tool_is_shown_with_the_reason_and_not_as_unknown(node: RunningNode) -> None:
    withheld = node.link("c")["withheld"][0]
    shown = node.cli("tools", "show", withheld["name"])
    assert withheld["reason"][:30] in " ".join((shown.stdout + shown.stderr).split())
    unknown = node.cli("tools", "show", "beside.nothing_like_it")
    assert "withheld" not in unknown.stderr


async def test_two_names_with_one_alias_are_both_withheld_and_reported(node: RunningNode) -> None:
    async with client(node) as peer:
        assert [tool["name"] for tool in await listed(peer) if tool["name"].startswith("c__")] == ["c__other"]
        for name in COLLIDING:
            assert (await peer.call(f"c.{name}")).error["code"] == -32601
    reported = {one["name"]: one["reason"] for one in node.link("c")["withheld"]}
    assert reported.keys() == {f"c.{name}" for name in COLLIDING}
    assert all("alias" in reason for reason in reported.values())
    assert all(name in node.cli("status", "c").stdout for name in COLLIDING)
