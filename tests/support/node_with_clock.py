"""A node in this process with a clock that a test sets, in front of real servers that ask; and requests of modern
clients put straight to its desk.
"""

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from tests.servers.start import serving
from tests.support.asking_server import command

from interlock.config.load import load
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Principal
from interlock.core.clock import Clock
from interlock.mcp.modern_requests import validate_request
from interlock.node.node import Node
from interlock.wire.jsonrpc.codec import Request
from interlock.wire.refusal import Refusal

META = "io.modelcontextprotocol/"
OPEN = '[gate]\nmode = "open"\n'
RULES = f'{OPEN}[[tool]]\nmatch = "*.impatient"\nlatency_class = "realtime"\n'  # half a second
FORM = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {"c": {"type": "string"}}}}
ELICIT = {"method": "elicitation/create", "params": FORM}
FILLED = {"action": "accept", "content": {"c": "blue"}}
CAPABLE = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
SECONDS = 15.0
_ids = itertools.count(1)


def limit_calls(node: Node, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many calls at once at each link."""
    guard = node.calls.dispatch.guard
    monkeypatch.setattr(guard, "_quick_max", most)
    (availability,) = [check for check in guard.checks if check.name == "availability"]
    monkeypatch.setattr(availability, "calls_max", most)


class AheadClock(Clock):
    """The time it is, and some more."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:  # type: ignore[override]
        return Clock.now() + self.ahead

    def wall(self) -> float:  # type: ignore[override]
        return Clock.wall() + self.ahead


class ModernRequest:
    """A request of a modern client, and the Sink it is answered in."""

    def __init__(self) -> None:
        self.id = next(_ids)
        self.emitted: list[Any] = []
        self.statuses: list[int] = []
        self.running: Any = None
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def emit(self, message: bytes) -> None:
        self.emitted.append(json.loads(message))

    def answer(self, message: bytes, status: int = 200) -> None:
        assert not self._answer.done(), "answered twice"
        self.statuses.append(status)
        self._answer.set_result(json.loads(message))

    def drop(self) -> None:
        pass

    async def message(self) -> Any:
        async with asyncio.timeout(SECONDS):
            message = await self._answer
        assert message["id"] == self.id
        return message

    async def result(self) -> Any:
        message = await self.message()
        assert "result" in message, message
        return message["result"]

    async def error(self) -> Any:
        message = await self.message()
        assert "error" in message, message
        return message["error"]

    async def reason(self) -> str:
        return (await self.error())["data"]["reason"]


class ClockedNode:
    def __init__(self, node: Node, clock: AheadClock) -> None:
        self.node, self.clock = node, clock
        self.parking = node.calls.dispatch.under_way.parking
        self.principals: dict[str, Principal] = {}  # those that are more than a name

    def ask(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        who: str = "local",
        client: str = "one",
        capabilities: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ModernRequest:
        asked = ModernRequest()
        stamp = {
            META + "protocolVersion": "2026-07-28",
            META + "clientInfo": {"name": client, "version": "1"},
            META + "clientCapabilities": CAPABLE if capabilities is None else capabilities,
            **(meta or {}),
        }
        body = json.dumps({**params, "_meta": stamp}).encode()
        request = Request(str(asked.id).encode(), method, Raw(body))
        climbed = validate_request(request, None)
        assert not isinstance(climbed, Refusal), climbed
        caller = self.node.fronts.modern.caller(self.principals.get(who) or Principal(who), "http", None, "auto")
        asked.running = self.node.fronts.modern.handle(caller, climbed, asked, None)
        return asked

    def call(self, name: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> ModernRequest:
        return self.ask("tools/call", {"name": name, "arguments": arguments or {}}, **options)

    def again(
        self, name: str, arguments: Mapping[str, Any], said: Any, answers: Any = None, **options: Any
    ) -> ModernRequest:
        """The retry that `said`, an input_required, asks for."""
        params = {"name": name, "arguments": arguments, "requestState": said["requestState"]}
        given = {} if answers is None else {"inputResponses": answers}
        return self.ask("tools/call", {**params, **given}, **options)

    async def tally(self, link: str) -> Any:
        return (await self.call(f"{link}__tally").result())["structuredContent"]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():  # noqa: ASYNC110  (what is waited for is the node's own state)
                await asyncio.sleep(0.01)

    def held(self) -> dict[str, int]:
        """Everything that is kept for calls under way."""
        links = [keeper.link for keeper in self.node.calls.keepers.values()]
        return {
            "spaces": len(self.parking.spaces),
            "spaces of calls": len(self.parking._of_call),
            "in flight": len(self.node.calls.dispatch.under_way.calls),
            "on links": sum(isinstance(p, Call) for link in links for p in link.in_flight.values()),
            "suspended": sum(len(link.waiting.suspended) for link in links),
            "suspended by principal": sum(len(link.waiting.suspended_by_principal) for link in links),
            "booked": sum(link.booked for link in links),
            "questions": sum(len(link.questions._open) for link in links),
            "principals": len(self.parking._of),
            "bytes": self.parking._bytes,
        }


@contextlib.asynccontextmanager
async def clocked_node(folder: Path) -> AsyncIterator[ClockedNode]:
    config = folder / "interlock.toml"
    servers = ""
    for segment, era in (("old", "legacy"), ("mortal", "legacy"), ("new", "modern")):
        servers += f'[servers.{segment}]\ncommand = {json.dumps(command(era))}\nshare = "node"\n'
    with serving(command("legacy")) as url:
        config.write_text(f'{RULES}\n{servers}\n[servers.web]\nurl = "{url}"\nshare = "node"\n')
        plan = load(config, os.environ, {"data": str(folder / "data")}).plan
        clock = AheadClock()
        node = Node(plan, lambda operations, authenticate: None, clock, listen=False)
        await node.open()
        try:
            await node.readiness.settle(SECONDS)
            yield ClockedNode(node, clock)
        finally:
            await node.close()


def since(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {what: after[what] - before[what] for what in after if after[what] != before[what]}


def steps(label: str, *rest: dict[str, Any]) -> dict[str, Any]:
    return {"label": label, "steps": list(rest or [{"ask": {"q": ELICIT}}])}


async def park(
    here: ClockedNode, label: str, *rest: dict[str, Any], name: str = "old__interview", **options: Any
) -> Any:
    """A call that waits for its client: its arguments, and what the client was told."""
    arguments = steps(label, *rest)
    said = await here.call(name, arguments, **options).result()
    assert said["resultType"] == "input_required"
    return arguments, said


def filled_answers(said: Any, answer: Any = FILLED) -> dict[str, Any]:
    return dict.fromkeys(said["inputRequests"], answer)


async def finish(here: ClockedNode, arguments: Any, said: Any, **options: Any) -> Any:
    result = await here.again("old__interview", arguments, said, filled_answers(said), **options).result()
    assert result["resultType"] == "complete"
    return result["structuredContent"]["answers"]
