"""One node in front of servers of both eras that ask, and a client on each kind of front; started once for all tests.

Each module of tests makes a fixture of `planted`. Tests leave the servers as they found them: labels are their own.
"""

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest
from tests.interaction.asking import command
from tests.interaction.fleet import CAPABLE, LEGACY_LINKS, LINKS, era, stdio_front, stdio_table, tool
from tests.interaction.harness import RunningNode, running_node
from tests.interaction.peers import LEGACY, MODERN, HttpPeer, Peer, Reply, SsePeer, StdioPeer
from tests.servers.start import everything, serving

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
    "roots/list": ({}, {"roots": [{"uri": "file:///home/me/shop", "name": "shop"}]}),
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

    def token(self, name: str) -> str:
        return self.node.admin("/admin/tokens", "POST", {"name": name, "for": "client"})["token"]


def planted(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Tree:
    stash = request.config.stash
    if _PLANTED not in stash:
        with contextlib.ExitStack() as stack:
            urls = {
                link: stack.enter_context(serving(command(era(link)))) for link in LINKS if not link.endswith("stdio")
            }
            tables: dict[str, dict[str, Any]] = {link: {"url": url} for link, url in urls.items()}
            tables["old_sse"] = {"url": urls["old_sse"].removesuffix("/mcp") + "/sse", "transport": "sse"}
            tables |= {link: stdio_table(command(era(link))) for link in LINKS if link.endswith("stdio")}
            tables["mortal"] = stdio_table(command("legacy"))
            tables["sdk_old"] = stdio_table(everything("--stdio", "--era", "legacy"))
            tables["sdk_new"] = stdio_table(everything("--stdio", "--era", "modern"))
            node = stack.enter_context(running_node(folders.mktemp("across"), tables, EXTRA))
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


def interview(steps: Iterable[Mapping[str, Any]], name: str | None = None) -> dict[str, Any]:
    return {"label": name or label(), "steps": list(steps)}


def answers(reply: Reply) -> Any:
    return reply.result["structuredContent"]["answers"]


async def tally(peer: Peer, link: str) -> Any:
    return (await peer.call(tool(link, "tally"))).result["structuredContent"]


async def open_gate(peer: Peer, link: str, gate: str) -> None:
    await peer.call(tool(link, "open"), {"gate": gate})


def retry(
    arguments: Mapping[str, Any], asked: Reply, responses: Mapping[str, Any] | None, **changed: Any
) -> dict[str, Any]:
    """The params of the request again, with answers to what was asked."""
    params = {"name": "", "arguments": arguments, "requestState": asked.result["requestState"], **changed}
    return params if responses is None else {**params, "inputResponses": responses}


def legacy_cells(fronts: Iterable[str], links: Iterable[str] = LEGACY_LINKS) -> list[tuple[str, str]]:
    return [(front, link) for front in fronts for link in links]
