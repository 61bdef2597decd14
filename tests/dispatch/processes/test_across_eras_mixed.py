"""Servers of both eras behind one node, clients of both eras before it: does everybody get what they asked for, and
nobody anything else?
"""

import asyncio
import contextlib
from typing import Any

import pytest
from tests.support.fleet import FRONTS, LEGACY_LINKS, LINKS, MODERN_LINKS, era, tool, uri
from tests.support.peers import META, Ongoing, Peer
from tests.support.two_era_node import (
    ELICIT,
    FILLED,
    Tree,
    answers,
    asks,
    call_again,
    filled_answers,
    interview,
    label,
    question,
    start_tree,
    until,
)

CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
LOGGED = "notifications/message"
HTTP = ("http-legacy", "http-modern")
CROSS = [(front, link) for front in FRONTS for link in LINKS if era(front) != era(link)]
# One of each kind: (client, server).
FOUR_CELLS = [("http-legacy", "old_http"), ("http-legacy", "new_stdio"), ("http-modern", "old_stdio")]
FOUR_CELLS.append(("http-modern", "new_http"))


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return start_tree(request, tmp_path_factory)


async def listen(peer: Peer, **wanted: Any) -> Ongoing:
    ongoing = peer.begin("subscriptions/listen", {"notifications": wanted})
    acknowledged = await peer.hear("notifications/subscriptions/acknowledged")
    assert acknowledged["params"]["notifications"] == wanted
    return ongoing


async def touch(peer: Peer, link: str, own: str) -> None:
    await peer.call(tool(link, "touch"), {"uri": own})


# Notifications


async def test_a_changed_list_reaches_exactly_those_who_asked(tree: Tree) -> None:
    async with contextlib.AsyncExitStack() as stack:
        fronts = ("http-legacy", "sse-legacy", "http-modern", "http-modern", "http-modern")
        peers = [await stack.enter_async_context(tree.peer(front)) for front in fronts]
        legacy, older, tools, others, silent = peers
        marks = {peer: uri("old_http", f"raw://item/{label()}") for peer in (tools, others)}
        tools_listen = await listen(tools, resourceSubscriptions=[marks[tools]], toolsListChanged=True)
        await listen(others, promptsListChanged=True, resourceSubscriptions=[marks[others]], resourcesListChanged=True)
        for link in LINKS:
            name = label()
            for _ in range(2):  # it comes, it goes
                await silent.call(tool(link, "change"), {"kind": "tools", "name": name})
                for peer in (legacy, older):
                    assert "params" not in await peer.hear(CHANGED)
                tag = {META + "subscriptionId": int(tools_listen.id)}
                assert (await tools.hear(CHANGED))["params"] == {"_meta": tag}
        for peer, mark in marks.items():  # whatever came before would be heard before
            await touch(silent, "old_http", mark.removeprefix("mcpax://old_http/"))
            assert (await peer.hear(UPDATED))["params"]["uri"] == mark
        assert [peer.heard() for peer in peers] == [[]] * len(peers)


async def test_an_update_reaches_exactly_the_subscribers_in_both_eras(tree: Tree) -> None:
    async with contextlib.AsyncExitStack() as stack:
        fronts = ("http-legacy", "sse-legacy", "http-modern", "http-modern", "http-legacy")
        one, two, three, four, silent = [await stack.enter_async_context(tree.peer(front)) for front in fronts]
        item = {who: f"raw://item/{label()}" for who in "abc"}
        for link in LINKS:
            assert (await one.request("resources/subscribe", {"uri": uri(link, item["a"])})).result == {}
            assert (await two.request("resources/subscribe", {"uri": uri(link, item["b"])})).result == {}
        await listen(three, resourceSubscriptions=[uri(link, item["a"]) for link in LINKS])
        await listen(four, resourceSubscriptions=[uri(link, item["c"]) for link in LINKS])
        told = {one: "a", two: "b", three: "a", four: "c"}
        for link in LINKS:
            for who in "abc":
                await touch(silent, link, item[who])
            for peer, who in told.items():
                assert (await peer.hear(UPDATED))["params"]["uri"] == uri(link, item[who])
        for link in LINKS:
            await one.request("resources/unsubscribe", {"uri": uri(link, item["a"])})
            await touch(silent, link, item["a"])
            await touch(silent, link, item["b"])
            assert (await three.hear(UPDATED))["params"]["uri"] == uri(link, item["a"])
            assert (await two.hear(UPDATED))["params"]["uri"] == uri(link, item["b"])
        assert [peer.heard() for peer in (*told, silent)] == [[]] * 5


@pytest.mark.parametrize("link", LINKS)
async def test_a_server_receives_one_subscription_and_its_end(tree: Tree, link: str) -> None:
    own = f"raw://item/{label()}"
    async with tree.peer("http-legacy") as legacy, tree.peer("http-modern") as modern, tree.peer("sse-legacy") as last:
        await legacy.request("resources/subscribe", {"uri": uri(link, own)})
        ongoing = await listen(modern, resourceSubscriptions=[uri(link, own)])
        await last.request("resources/subscribe", {"uri": uri(link, own)})
        assert await wanted(last, link, own) == (1 if era(link) == "legacy" else True)
        await legacy.request("resources/unsubscribe", {"uri": uri(link, own)})
        await modern.cancel(ongoing)
        await touch(last, link, own)
        assert (await last.hear(UPDATED))["params"] == {"uri": uri(link, own)}
        await last.request("resources/unsubscribe", {"uri": uri(link, own)})
        async with asyncio.timeout(10):
            while await wanted(last, link, own):
                pass


async def wanted(peer: Peer, link: str, own: str) -> Any:
    """Legacy: subscriptions less cancellations of them; modern: whether the last filter names it."""
    seen = (await peer.call(tool(link, "seen"))).result["structuredContent"]["messages"]
    if era(link) == "legacy":
        said = [one["method"] for one in seen if one["method"] != "tools/call" and own in one["text"]]
        return said.count("resources/subscribe") - said.count("resources/unsubscribe")
    return own in [one["text"] for one in seen if one["method"] == "subscriptions/listen"][-1]


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_modern_request_receives_the_logs_of_its_own_level_from_a_legacy_server(tree: Tree, link: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        fronts = ("http-modern", "http-modern", "http-modern", "http-legacy")
        talkative, terse, mute, legacy = [await stack.enter_async_context(tree.peer(front)) for front in fronts]
        talkative.log_level, terse.log_level = "debug", "error"
        for level in ("debug", "warning", "error"):
            for peer in (talkative, terse, mute, legacy):
                reply = await peer.call(tool(link, "log"), {"level": level, "data": f"{level} é"})
                hears = peer is talkative or (peer is terse and level == "error")
                logged = [one["params"] for one in peer.before(reply, LOGGED)][-1:] if hears else []
                assert logged == ([{"level": level, "logger": "raw", "data": f"{level} é"}] if hears else [])
        assert [len(peer.heard(LOGGED)) for peer in (talkative, terse, mute, legacy)] == [3, 1, 0, 0]


@pytest.mark.parametrize("link", MODERN_LINKS)
async def test_a_legacy_session_receives_the_logs_of_its_level_from_a_modern_server(tree: Tree, link: str) -> None:
    async with (
        tree.peer("http-legacy") as talkative,
        tree.peer("sse-legacy") as terse,
        tree.peer("http-legacy") as mute,
        tree.peer("http-modern") as modern,
    ):
        assert (await talkative.request("logging/setLevel", {"level": "debug"})).result == {}
        assert (await terse.request("logging/setLevel", {"level": "error"})).result == {}
        for level in ("debug", "warning", "error"):
            for peer in (talkative, terse, mute, modern):
                await peer.call(tool(link, "log"), {"level": level, "data": level})
        heard = [[one["params"]["data"] for one in peer.heard(LOGGED)] for peer in (talkative, terse, mute, modern)]
        assert heard == [["debug", "warning", "error"], ["error"], [], []]


# Time


async def test_progress_gives_a_call_more_time_in_every_cell(tree: Tree) -> None:
    """The tool has half a second and takes longer; only what reports progress lives."""

    async def run(front: str, link: str, **options: Any) -> Any:
        async with tree.peer(front) as peer:
            return (await peer.call(tool(link, "progress"), {"steps": 9, "ms": 90}, **options)).message

    told = [run(front, link, meta={"progressToken": 1}) for front, link in FOUR_CELLS]
    untold = [run(front, link) for front, link in FOUR_CELLS]
    outcomes = await asyncio.gather(*told, *untold)
    assert [one["result"]["content"][0]["text"] for one in outcomes[:4]] == ["9 steps"] * 4
    assert [one["error"]["message"] for one in outcomes[4:]] == ["call_timeout"] * 4


async def test_a_call_whose_client_is_asked_has_all_the_time_it_needs(tree: Tree) -> None:
    """Measured against calls that are asked nothing and have as long."""
    async with contextlib.AsyncExitStack() as stack:
        legacy = await stack.enter_async_context(tree.peer("http-legacy"))
        modern = await stack.enter_async_context(tree.peer("http-modern"))
        clock = await stack.enter_async_context(tree.peer("http-modern"))
        given = interview(asks(question(ELICIT)))
        asked = await modern.call(tool("old_http", "impatient"), given)
        calls = [legacy.begin_call(tool(link, "impatient"), given) for link in ("old_http", "new_http")]
        questions = [await legacy.hear(ELICIT) for _ in calls]
        for _ in range(2):
            timed_out = await clock.call(tool("old_sse", "impatient"), interview({"gate": "never"}))
            assert timed_out.error["message"] == "call_timeout"
        for one in questions:
            await legacy.respond(one["id"], FILLED)
        replies = [await call.reply() for call in calls]
        replies.append(await call_again(modern, tool("old_http", "impatient"), given, asked, filled_answers(asked)))
        assert [answers(reply) for reply in replies] == [[{"q1": FILLED}]] * 3


# Cancellation


@pytest.mark.parametrize(("front", "link"), CROSS)
async def test_a_cancelled_call_is_cancelled_at_a_server_of_the_other_era(tree: Tree, front: str, link: str) -> None:
    async with tree.peer("http-modern") as witness, tree.peer(front) as peer:
        given = interview({"gate": "never"})
        call = peer.begin_call(tool(link, "interview"), given)
        await until(witness, link, "begun", given["label"], 1)
        await peer.cancel(call)
        await until(witness, link, "cancelled", given["label"], 1)
        assert not any(message.get("id") == int(call.id) for message in peer.log if "method" not in message)


@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_a_question_of_a_cancelled_call_is_taken_back(tree: Tree, link: str) -> None:
    """Legacy on both sides: the client's dialogue closes."""
    async with tree.peer("http-legacy") as peer:
        given = interview(asks(question(ELICIT)))
        call = peer.begin_call(tool(link, "interview"), given)
        asked = await peer.hear(ELICIT)
        await peer.cancel(call)
        withdrawn = await peer.hear("notifications/cancelled")
        assert withdrawn["params"]["requestId"] == asked["id"]
        await until(peer, link, "cancelled", given["label"], 1)


# Names


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("front", HTTP)
async def test_completions_templates_and_links_work_through_aliases(tree: Tree, front: str, link: str) -> None:
    async with tree.peer(front) as peer:
        for ref, own in (
            ({"type": "ref/prompt", "name": tool(link, "greet")}, {"type": "ref/prompt", "name": "greet"}),
            (
                {"type": "ref/resource", "uri": uri(link, "raw://item/{id}")},
                {"type": "ref/resource", "uri": "raw://item/{id}"},
            ),
        ):
            given = {"argument": {"name": "who", "value": "é"}, "context": {"arguments": {"a": "b"}}}
            result = (await peer.request("completion/complete", {"ref": ref, **given})).result
            assert result["completion"]["values"] == ["é-one", "é-two"]
            assert result["x-asked"] == {"ref": own, **given}
        templates = (await peer.request("resources/templates/list")).result["resourceTemplates"]
        assert uri(link, "raw://item/{id}") in {one["uriTemplate"] for one in templates}
        read = (await peer.request("resources/read", {"uri": uri(link, "raw://item/7")})).result
        assert read["contents"][0]["text"] == "text of raw://item/7"
        (pointed,) = (await peer.call(tool(link, "point"))).result["content"]
        assert pointed["type"] == "resource_link"
        read = (await peer.request("resources/read", {"uri": pointed["uri"]})).result
        assert read["contents"][0]["text"] == link


# What a client is promised


@pytest.mark.parametrize("front", [*HTTP, "sse-legacy"])
@pytest.mark.parametrize(
    ("segment", "offers"),
    [
        ("plain_old", {"tools"}),
        ("plain_new", {"tools"}),
        ("old_http", {"tools", "prompts", "resources", "completions", "logging"}),
        ("new_stdio", {"tools", "prompts", "resources", "completions", "logging"}),
        (None, {"tools", "prompts", "resources", "completions", "logging"}),
    ],
)
async def test_the_capabilities_of_a_view_are_those_of_its_servers(
    tree: Tree, front: str, segment: str | None, offers: set[str]
) -> None:
    path = "" if segment is None else f"/only/{segment}"
    async with tree.peer(front, path=path) as peer:
        promised = peer.greeting["capabilities"]
        assert promised.keys() - {"extensions", "experimental"} == offers
        assert ("extensions" if peer.modern else "experimental") in promised
        assert promised["tools"] == {"listChanged": True}
        for capability, method in (("prompts", "prompts/list"), ("resources", "resources/list")):
            listed = (await peer.request(method)).result[capability]
            assert bool(listed) is (capability in offers)
        if "resources" in offers:
            assert promised["resources"] == {"listChanged": True, "subscribe": True}


# All at once


async def test_many_clients_of_both_eras_are_each_asked_their_own(tree: Tree) -> None:
    """Six of each era at once. A pipe to a legacy server cannot tell them apart and is left out."""

    async def legacy() -> None:
        async with tree.peer("http-legacy") as peer:
            await asyncio.gather(*(as_legacy(peer, link) for link in ("old_http", *MODERN_LINKS) for _ in range(2)))

    async def as_legacy(peer: Peer, link: str) -> None:
        who = label()
        peer.answers[ELICIT] = lambda params: {"action": "accept", "content": {"colour": params["message"]}}
        steps = [asks(question(ELICIT, message=f"{who} {number}")) for number in range(3)]
        reply = await peer.call(tool(link, "interview"), interview(*steps))
        assert [one["q1"]["content"]["colour"] for one in answers(reply)] == [f"{who} {n}" for n in range(3)]

    async def modern() -> None:
        async with tree.peer("http-modern") as peer:
            await asyncio.gather(*(as_modern(peer, "old_http") for _ in range(4)))

    async def as_modern(peer: Peer, link: str) -> None:
        who = label()
        given = interview(*(asks(question(ELICIT, message=f"{who} {number}")) for number in range(3)))
        reply = await peer.call(tool(link, "interview"), given)
        while reply.result["resultType"] == "input_required":
            ((key, asked),) = reply.result["inputRequests"].items()
            said = {"action": "accept", "content": {"colour": asked["params"]["message"]}}
            reply = await call_again(peer, tool(link, "interview"), given, reply, {key: said})
        assert [one[next(iter(one))]["content"]["colour"] for one in answers(reply)] == [f"{who} {n}" for n in range(3)]

    await asyncio.gather(*(legacy() for _ in range(6)), *(modern() for _ in range(6)))
