"""Is what the older of two subscriptions still brings over HTTP heard, once? A link over a pipe in memory."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Raw

from interlock.config.plan import Dial, ServerPlan
from interlock.core.clock import Clock
from interlock.links import subscriptions
from interlock.links.connected_link import ServerLink
from interlock.links.link import LinkEvents, ServerFacts
from interlock.mcp.methods import Era

TAG = "io.modelcontextprotocol/subscriptionId"
CAPABILITIES = {"resources": Raw(b'{"subscribe":true,"listChanged":true}'), "tools": Raw(b'{"listChanged":true}')}


class Pipe:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: bytes, head: bytes, origin: Any) -> object:
        self.sent.append(json.loads(message))
        return None

    def abort(self, handle: object) -> bool:
        return True

    @property
    def listens(self) -> list[int]:
        return [one["id"] for one in self.sent if one["method"] == "subscriptions/listen"]


class Heard(LinkEvents):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_changed(self, link: ServerLink, kind: str) -> None:
        self.heard.append(kind)

    def on_resource_updated(self, link: ServerLink, params: Raw) -> None:
        self.heard.append(json.loads(bytes(params))["uri"])


class Stage:
    def __init__(self) -> None:
        self.events, self.pipe = Heard(), Pipe()
        plan = ServerPlan(segment="s", reach=Dial(url="http://127.0.0.1:1/mcp"))
        self.link = ServerLink(plan, self.events, Clock(), vendor_meta=True)
        self.link.pipe = self.pipe  # type: ignore[assignment]
        self.link.greeted(ServerFacts(era=Era.MODERN, version="2026-07-28", capabilities=CAPABILITIES))
        self.subscriptions = subscriptions.Subscriptions(self.link, lambda: None)

    def says(self, listener: int, method: str, **params: Any) -> None:
        said = {"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": {TAG: listener}}}
        self.link.on_message(json.dumps(said).encode(), self.link.in_flight.get(listener))

    async def replaced(self) -> tuple[int, int]:
        """The ids of a subscription and of the one that took its place."""
        self.subscriptions.say_again()
        [old] = self.pipe.listens
        self.says(old, "notifications/subscriptions/acknowledged", notifications={})
        asking = asyncio.create_task(self.subscriptions.subscribe("a:1"))
        async with asyncio.timeout(5):
            while len(self.pipe.listens) < 2:  # noqa: ASYNC110  (what is waited for is in memory)
                await asyncio.sleep(0)
        new = self.pipe.listens[1]
        self.says(new, "notifications/subscriptions/acknowledged", notifications={"resourceSubscriptions": ["a:1"]})
        assert await asking is None
        return old, new


async def test_news_that_was_under_way_on_the_older_stream_is_received() -> None:
    stage = Stage()
    old, _ = await stage.replaced()
    stage.says(old, "notifications/tools/list_changed")
    stage.says(old, "notifications/resources/updated", uri="b:1")
    assert stage.events.heard == ["tools", "b:1"]


@pytest.mark.parametrize("first", [0, 1])
async def test_an_update_that_two_subscriptions_report_is_delivered_once(first: int) -> None:
    stage = Stage()
    both = await stage.replaced()
    for told in range(1, 4):
        stage.says(both[first], "notifications/resources/updated", uri="a:1")
        stage.says(both[1 - first], "notifications/resources/updated", uri="a:1")
        assert stage.events.heard == ["a:1"] * told
    stage.says(both[1], "notifications/resources/updated", uri="a:2")
    assert stage.events.heard[-1] == "a:2"


async def test_the_older_stream_ends_after_a_while_and_only_the_newer_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "LINGER_S", 0.01)
    stage = Stage()
    old, new = await stage.replaced()
    stage.says(old, "notifications/resources/updated", uri="a:1")
    async with asyncio.timeout(5):
        while old in stage.link.in_flight:  # noqa: ASYNC110  (what is waited for is the link's own state)
            await asyncio.sleep(0.01)
    stage.says(old, "notifications/resources/updated", uri="a:1")
    assert stage.events.heard == ["a:1"], "told on one that has ended"
    stage.says(new, "notifications/resources/updated", uri="a:1")
    assert stage.events.heard == ["a:1", "a:1"]


async def test_a_subscription_that_ended_does_not_silence_the_others() -> None:
    stage = Stage()
    old, new = await stage.replaced()
    stage.subscriptions._lingering += 1  # another one is being heard out as well
    stage.says(old, "notifications/resources/updated", uri="a:1")
    stage.subscriptions._let_go(stage.link.in_flight[old])  # type: ignore[arg-type]
    stage.says(new, "notifications/resources/updated", uri="a:1")
    assert stage.events.heard == ["a:1", "a:1"]
