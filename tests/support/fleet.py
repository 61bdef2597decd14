"""One node in front of five servers, one for each era and kind of link, and a client on each kind of front.

Everything is started once for all tests of a run: tests leave the servers as they found them.
"""

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.servers.start import raw, serving
from tests.support.node_process import RunningNode, running_node, write_config
from tests.support.peers import LEGACY, MODERN, HttpPeer, Peer, SsePeer, StdioPeer

LEGACY_LINKS = ("old_stdio", "old_http", "old_sse")
MODERN_LINKS = ("new_stdio", "new_http")
LINKS = (*LEGACY_LINKS, *MODERN_LINKS)
LEGACY_FRONTS = ("http-legacy", "sse-legacy", "stdio-legacy")
MODERN_FRONTS = ("http-modern", "stdio-modern")
FRONTS = (*LEGACY_FRONTS, *MODERN_FRONTS)

LEGACY_CELLS = [(front, link) for front in LEGACY_FRONTS for link in LEGACY_LINKS]
MODERN_CELLS = [(front, link) for front in MODERN_FRONTS for link in MODERN_LINKS]
SAME_ERA = [*LEGACY_CELLS, *MODERN_CELLS]
CROSS_ERA = [(front, link) for front in FRONTS for link in LINKS if (front, link) not in SAME_ERA]

SHOP = "/srv/shop"  # the folder that servers may hear of as a root
CAPABLE = {"sampling": {}, "elicitation": {"form": {}}, "roots": {"listChanged": True}}


def era(thing: str) -> str:
    """Of a front or a link."""
    return "legacy" if thing in LEGACY_LINKS or thing in LEGACY_FRONTS else "modern"


def instructions(link: str) -> str:
    return f"Use {link} with care: “é”."


def tool(link: str, name: str) -> str:
    return f"{link}__{name}"


def uri(link: str, own: str) -> str:
    return f"mcpax://{link}/{own}"


def stdio_table(command: list[str]) -> dict[str, Any]:
    return {"command": command[0], "args": command[1:]}


def for_all(table: dict[str, Any]) -> dict[str, Any]:
    """The same server, shared by all clients whatever it asks."""
    return {**table, "share": "node"}


def dynamic(table: dict[str, Any]) -> dict[str, Any]:
    """The same server, whose tools come and go without a person who accepts them."""
    return {**table, "definitions": "follow"}


def with_roots(tables: Mapping[str, dict[str, Any]], *folders: str) -> dict[str, dict[str, Any]]:
    """The same tables, with what the operator lets these servers hear of."""
    return {link: {**table, "roots": list(folders)} for link, table in tables.items()}


class Fleet:
    def __init__(self, node: RunningNode, urls: Mapping[str, str], stdio: Mapping[str, StdioPeer]) -> None:
        self.node, self.urls, self._stdio = node, urls, stdio

    @contextlib.asynccontextmanager
    async def peer(
        self, front: str, capabilities: Mapping[str, Any] | None = None, path: str = "", stream: bool = True
    ) -> AsyncIterator[Any]:
        """A client on this front. On stdio it is the one there is, which has every capability and sees all."""
        if front in self._stdio:
            peer: Peer = self._stdio[front]
            peer.forget()
            peer.answers.clear()
            peer.log_level = None
            yield peer
            peer.assert_clean()
            return
        async with await self._connect(front, capabilities, path) as peer:
            if stream and front == "http-legacy":
                await peer.listen()
            yield peer

    @contextlib.asynccontextmanager
    async def directly(self, link: str) -> AsyncIterator[Peer]:
        """A client at a server itself, on the pipe the node uses for it."""
        version = LEGACY if era(link) == "legacy" else MODERN
        if link.endswith("stdio"):
            opened: Peer = await StdioPeer.start(link_command(link), version, judged=False)
        elif link == "old_sse":
            opened = await SsePeer.legacy(self.urls[link].removesuffix("/mcp") + "/sse", judged=False)
        else:
            opened = await HttpPeer(self.urls[link], version, judged=False).greet()
        async with opened as peer:
            yield peer

    async def _connect(self, front: str, capabilities: Mapping[str, Any] | None, path: str) -> Peer:
        said = CAPABLE if capabilities is None else capabilities
        if front == "sse-legacy":
            return await SsePeer.legacy(f"{self.node.url}/sse{path}", said)
        if front == "http-modern":
            return await HttpPeer.modern_(f"{self.node.url}/mcp{path}", said)
        return await HttpPeer.legacy(f"{self.node.url}/mcp{path}", said)


def link_command(link: str) -> list[str]:
    return raw("all", "--era", era(link), "--name", link, "--instructions", instructions(link))


@contextlib.contextmanager
def five_servers(*http_options: str) -> Iterator[tuple[dict[str, str], dict[str, dict[str, Any]]]]:
    """The URLs of those on HTTP, and all as tables of a configuration."""
    with contextlib.ExitStack() as stack:
        dialled = [link for link in LINKS if not link.endswith("stdio")]
        urls = {link: stack.enter_context(serving([*link_command(link), *http_options])) for link in dialled}
        reach: dict[str, dict[str, Any]] = {link: {"url": url} for link, url in urls.items()}
        reach["old_sse"] = {"url": urls["old_sse"].removesuffix("/mcp") + "/sse", "transport": "sse"}
        tables = {link: for_all(reach.get(link) or stdio_table(link_command(link))) for link in LINKS}
        tables = {link: dynamic(table) for link, table in tables.items()}
        yield urls, with_roots(tables, SHOP)


@contextlib.asynccontextmanager
async def starting(folder: Path) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        urls, tables = stack.enter_context(five_servers())
        node = stack.enter_context(running_node(folder / "http", tables))
        stdio = {}
        for front, version in (("stdio-legacy", LEGACY), ("stdio-modern", MODERN)):
            _, tables = stack.enter_context(five_servers("--stream"))  # behind these, every answer is an event stream
            command = stdio_front(write_config(folder / front, tables), folder / front / "data")
            stdio[front] = await stack.enter_async_context(await StdioPeer.start(command, version, CAPABLE))
        yield Fleet(node, urls, stdio)


def stdio_front(config: Path, data: Path, *options: str) -> list[str]:
    """The command of a node that serves its own stdin and stdout."""
    return [
        *(sys.executable, "-m", "interlock", "serve", "--stdio"),
        *("--config", str(config), "--data", str(data)),
        *options,
    ]


def bridge(node: RunningNode, *options: str) -> list[str]:
    """The same command where a node is running already: stdin and stdout reach that one."""
    return stdio_front(node.config, node.data, *options)
