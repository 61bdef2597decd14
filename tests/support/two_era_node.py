"""One node in front of servers of both eras that ask, and a client on each kind of front; started once for all tests.

Each module of tests makes a fixture of `planted`. Tests leave the servers as they found them: labels are their own.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from tests.servers.start import everything, raw, serving
from tests.support.asking_server import command
from tests.support.fleet import CAPABLE, LINKS, SHOP, era, for_all, stdio_front, stdio_table, tool, with_roots
from tests.support.node_process import RunningNode, running_node
from tests.support.peers import LEGACY, MODERN, HttpPeer, Peer, Reply, SsePeer, StdioPeer

# A tool that is given half a second, to see what stops its clock.
EXTRA = """
[[tool]]
match = "*.impatient"
latency_class = "realtime"

[[tool]]
match = "*.progress"
latency_class = "realtime"
"""
FORM = {
    "mode": "form",
    "message": "Which é?",
    "requestedSchema": {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]},
}
SAMPLING = {"messages": [{"role": "user", "content": {"type": "text", "text": "why é?"}}], "maxTokens": 100}
QUESTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "elicitation/create": (FORM, {"action": "accept", "content": {"colour": "grün"}}),
    "sampling/createMessage": (
        SAMPLING,
        {"role": "assistant", "content": {"type": "text", "text": "because"}, "model": "m", "x-cost": {"z": 1}},
    ),
    "roots/list": ({}, {"roots": [{"uri": "file:///srv/shop", "name": "shop"}]}),
}
ELICIT, SAMPLE, ROOTS = QUESTIONS
FILLED = QUESTIONS[ELICIT][1]
_labels = itertools.count(1)
_PLANTED = pytest.StashKey["Tree"]()


class Tree:
    def __init__(self, node: RunningNode) -> None:
        self.node = node

    @contextlib.asynccontextmanager
    async def peer(
        self,
        front: str,
        capabilities: Mapping[str, Any] | None = None,
        *,
        token: str | None = None,
        version: str = LEGACY,
        path: str = "",
    ) -> AsyncIterator[Any]:
        said = CAPABLE if capabilities is None else capabilities
        url = self.node.url
        if front.startswith("stdio"):
            command = stdio_front(self.node.config, self.node.data)
            opened: Peer = await StdioPeer.start(command, MODERN if front == "stdio-modern" else LEGACY, said)
        elif front == "sse-legacy":
            opened = await SsePeer.legacy(f"{url}/sse{path}", said)
        elif front == "http-modern":
            opened = await HttpPeer.modern_(f"{url}/mcp{path}", said, token=token)
        else:
            opened = await HttpPeer.legacy(f"{url}/mcp{path}", said, token=token, version=version)
        async with opened as peer:
            if front == "http-legacy":
                await peer.listen()
            yield peer

    def calls_in_flight(self) -> int:
        return self.node.admin("/admin/status")["calls"]["in_flight"]

    def calls_parked(self, link: str) -> int:
        """Whose server waits for the client's answer."""
        return self.node.link(link)["parked"]

    def token(self, name: str) -> str:
        return self.node.admin("/admin/tokens", "POST", {"name": name, "for": "client"})["token"]


def start_tree(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Tree:
    stash = request.config.stash
    if _PLANTED not in stash:
        with contextlib.ExitStack() as stack:
            urls = {
                link: stack.enter_context(serving(command(era(link), "--name", link)))
                for link in LINKS
                if not link.endswith("stdio")
            }
            tables: dict[str, dict[str, Any]] = {link: {"url": url} for link, url in urls.items()}
            tables["old_sse"] = {"url": urls["old_sse"].removesuffix("/mcp") + "/sse", "transport": "sse"}
            for link in LINKS:
                if link.endswith("stdio"):
                    tables[link] = stdio_table(command(era(link), "--name", link))
            tables["mortal"] = stdio_table(command("legacy", "--name", "mortal"))
            tables["plain_old"] = stdio_table(raw("echo", "--era", "legacy"))
            tables["plain_new"] = stdio_table(raw("echo", "--era", "modern"))
            tables["sdk_old"] = stdio_table(everything("--stdio", "--era", "legacy"))
            tables["sdk_new"] = stdio_table(everything("--stdio", "--era", "modern"))
            shared = {link: for_all(table) for link, table in tables.items()}
            node = stack.enter_context(running_node(folders.mktemp("across"), with_roots(shared, SHOP), EXTRA))
            for segment in tables:
                node.wait_link(segment, {"state": "ready"})
            request.config.add_cleanup(stack.pop_all().close)
        stash[_PLANTED] = Tree(node)
    return stash[_PLANTED]


def label() -> str:
    return f"label-{next(_labels)}"


def question(method: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "params": {**QUESTIONS[method][0], **more}}


def asks(*questions: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """A step that asks all these at once, under the keys q1, q2, ..."""
    return {"ask": {f"q{number}": one for number, one in enumerate(questions, 1)}, **options}


def interview(*steps: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    return {"label": name or label(), "steps": list(steps)}


def answer_every_question(peer: Peer) -> Peer:
    """A client that answers every question."""
    for method, (_, answer) in QUESTIONS.items():
        peer.answers[method] = lambda params, answer=answer: answer
    return peer


def answers(reply: Reply) -> Any:
    return reply.result["structuredContent"]["answers"]


def filled_answers(asked: Reply) -> dict[str, Any]:
    """An answer to each question of an input_required."""
    assert asked.result["resultType"] == "input_required", asked.text
    return {key: QUESTIONS[one["method"]][1] for key, one in asked.result["inputRequests"].items()}


async def call_again(
    peer: Peer, name: str, arguments: Mapping[str, Any], asked: Reply, responses: Any = None, **options: Any
) -> Reply:
    """The call again, with answers to what was asked."""
    given = {} if responses is None else {"inputResponses": responses}
    params = {"name": name, "arguments": arguments, "requestState": asked.result["requestState"], **given}
    return await peer.request("tools/call", params, **options)


async def read_tally(peer: Peer, link: str) -> Any:
    return (await peer.call(tool(link, "tally"))).result["structuredContent"]


async def open_gate(peer: Peer, link: str, gate: str) -> None:
    await peer.call(tool(link, "open"), {"gate": gate})


async def until(peer: Peer, link: str, which: str, name: str, count: int) -> None:
    """Until the server has begun, finished or cancelled what is named so often."""
    async with asyncio.timeout(10):
        while (await read_tally(peer, link))[which].get(name, 0) < count:
            pass
    assert (await read_tally(peer, link))[which][name] == count
