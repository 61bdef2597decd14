"""Through three aggregators a call is what it is directly, but for the name and `_meta` (MCP-AX 1.1, 7.2).

One corpus is sent to a server directly and to the same kind of server behind root - edge - gate, by the same clients.
"""

from collections.abc import Iterator

import pytest
import pytest_asyncio
from tests.ax.tree import chain
from tests.dispatch.processes.test_fidelity import Outcomes, outcomes, translated, with_object_alone
from tests.servers.rawserver.text import members, reading_deeply
from tests.support.corpus import Place
from tests.support.fleet import link_command
from tests.support.node_process import RunningNode, wait_for
from tests.support.peers import LEGACY, MODERN, HttpPeer, StdioPeer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.req("AX-1.1-2", "AX-7.2-7")]
LINKS = ["old_stdio", "new_stdio"]
FRONTS = ["http-legacy", "http-modern"]
ERAS = {"old_stdio": LEGACY, "new_stdio": MODERN, "http-legacy": LEGACY, "http-modern": MODERN}
CELLS = [(front, link) for front in FRONTS for link in LINKS]


class Below(Place):
    """At the end of the chain."""

    def __init__(self, link: str) -> None:
        self._link = link

    def name(self, own: str) -> str:
        return f"edge.gate.{self._link}.{own}"

    def uri(self, own: str) -> str:
        return f"mcpax://edge.gate.{self._link}/{own}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    servers = {link: {"command": link_command(link)} for link in LINKS}
    with chain(tmp_path_factory.mktemp("transparent"), ["edge", "gate"], servers) as nodes:
        for link in LINKS:
            wait_for(lambda link=link: nodes[0].link("edge")["tools"] and Below(link).name("echo") in _names(nodes[0]))
        yield nodes[0]


def _names(node: RunningNode) -> set[str]:
    return {one["name"] for one in node.admin("/admin/tools")["tools"]}


@pytest.fixture(scope="module", autouse=True)
def reads_deeply() -> Iterator[None]:
    with reading_deeply():
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def direct() -> dict[str, Outcomes]:
    """What each server answers when nobody stands between."""
    found = {}
    for link in LINKS:
        async with await StdioPeer.start(link_command(link), ERAS[link], judged=False) as peer:
            found[link] = await outcomes(peer, Place())
    return found


async def connected(root: RunningNode, front: str) -> HttpPeer:
    # Some of these results keep to no schema, directly as little as here.
    return await HttpPeer(f"{root.url}/mcp?names=qualified", ERAS[front], judged=False).greet()


@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_every_member_of_a_result_is_byte_equal_but_for_meta(
    root: RunningNode, direct: dict[str, Outcomes], front: str, link: str
) -> None:
    async with await connected(root, front) as peer:
        through = await outcomes(peer, Below(link))
    different = {}
    for label, text in direct[link].items():
        expected = members(text) if ERAS[front] == ERAS[link] else translated(text, label, link, front)
        if ERAS[front] == LEGACY:  # between the nodes it was said as 2026-07-28 says it
            expected = with_object_alone(expected)
        found = members(through[label])
        expected.pop("_meta", None)
        found.pop("_meta", None)
        if list(expected.items()) != list(found.items()):
            different[label] = (expected, found)
    assert different == {}


@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_progress_is_the_same_but_for_its_token(root: RunningNode, front: str, link: str) -> None:
    told = []
    async with (
        await StdioPeer.start(link_command(link), ERAS[link], judged=False) as alone,
        await connected(root, front) as peer,
    ):
        for client, name in ((alone, "progress"), (peer, Below(link).name("progress"))):
            reply = await client.call(name, {"steps": 4}, meta={"progressToken": "mine"})
            told.append([one["params"] for one in client.before(reply, "notifications/progress")])
    assert told[0] == told[1]
    assert [one["progress"] for one in told[0]] == [1, 2, 3, 4]


RETIRED = {-32002: -32602, -32042: -32603}  # by 2026-07-28


@pytest.mark.parametrize(("front", "link"), CELLS)
async def test_an_error_keeps_its_number_unless_the_clients_revision_has_retired_it(
    root: RunningNode, front: str, link: str
) -> None:
    async with await connected(root, front) as peer:
        for code in (-32002, -32042, -32601, -32600, -32700, -32001, -32003, 1, 32117):
            given = {"code": code, "message": "no", "data": {"a": [1, None]}}
            shown = given if ERAS[front] == LEGACY else {**given, "code": RETIRED.get(code, code)}
            assert (await peer.call(Below(link).name("refuse"), given)).error == shown


@pytest.mark.req("AX-3.1-7")
@pytest.mark.parametrize("front", FRONTS)
async def test_resources_prompts_and_completions_pass_and_what_is_ambiguous_or_unknown_is_refused(
    root: RunningNode, front: str
) -> None:
    async with await connected(root, front) as peer:
        listed = {one["uri"] for one in (await peer.request("resources/list")).result["resources"]}
        templates = (await peer.request("resources/templates/list")).result["resourceTemplates"]
        prompts = {one["name"] for one in (await peer.request("prompts/list")).result["prompts"]}
        for link in LINKS:
            below = Below(link)
            assert {below.uri("raw://text"), below.uri("raw://blob")} <= listed
            assert below.uri("raw://item/{id}") in {one["uriTemplate"] for one in templates}
            assert below.name("greet") in prompts
            text = await peer.request("resources/read", {"uri": below.uri("raw://text")})
            assert text.result["contents"][0]["text"] == "text of raw://text"
            blob = await peer.request("resources/read", {"uri": below.uri("raw://blob")})
            assert '"blob":"AAEC","x-crc":18446744073709551616' in blob.result_text
            got = await peer.request("prompts/get", {"name": below.name("greet"), "arguments": {"who": link}})
            assert got.result["x-arguments"] == {"who": link}
            ref = {"type": "ref/prompt", "name": below.name("greet")}
            completed = await peer.request(
                "completion/complete", {"ref": ref, "argument": {"name": "who", "value": "a"}}
            )
            assert completed.result["completion"]["values"] == ["a-one", "a-two"]
            uri = below.uri("raw://text")
            if front == "http-modern":
                peer.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}})
                await peer.hear("notifications/subscriptions/acknowledged")
            else:
                assert (await peer.request("resources/subscribe", {"uri": uri})).result == {}
            await peer.call(below.name("touch"), {"uri": "raw://text"})
            if front == "http-modern":
                assert (await peer.hear("notifications/resources/updated"))["params"]["uri"] == uri
        for bare in ("raw://text", "raw://item/7"):
            error = (await peer.request("resources/read", {"uri": bare})).error
            assert error["code"] == -32602
            assert set(error["data"]["candidates"]) == {Below(link).uri(bare) for link in LINKS}
        for name in ("edge.gate.none.greet", "none.greet", "edge.none.old_stdio.greet"):
            assert (await peer.request("prompts/get", {"name": name})).error["code"] == -32602
