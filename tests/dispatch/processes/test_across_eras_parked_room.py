"""What does a call take while it waits for its client, and who gives way when there is no more room?

Also: is everything that waited let go in steps that its servers can follow?
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.support.node_with_clock import (
    ELICIT,
    FILLED,
    ClockedNode,
    clocked_node,
    filled_answers,
    limit_calls,
    park,
    since,
    steps,
)

from interlock.dispatch import availability
from interlock.dispatch import calls_under_way as parking
from interlock.links.pipes import Trouble, Undelivered

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClockedNode]:
    async with clocked_node(tmp_path_factory.mktemp("room")) as started:
        yield started
        assert started.held() == dict.fromkeys(started.held(), 0)


async def declined(here: ClockedNode, label: str, **options: Any) -> str:
    """Why the server's question was not passed on."""
    result = await here.call("web__interview", steps(label), **options).result()
    return result["structuredContent"]["answers"][0]["q"]["message"]


async def end(here: ClockedNode, arguments: Any, said: Any, **options: Any) -> Any:
    result = await here.again("web__interview", arguments, said, filled_answers(said), **options).result()
    return result["structuredContent"]["answers"]


# What it takes


@pytest.mark.parametrize("link", ["old", "web"])
async def test_a_parked_call_is_not_in_flight_until_its_client_is_back(here: ClockedNode, link: str) -> None:
    name = f"{link}__interview"
    before = here.held()
    arguments, said = await park(here, "aside", {"ask": {"q": ELICIT}}, {"gate": f"aside {link}"}, name=name)
    status = here.node.operations.node.status()
    assert (status.calls.in_flight, status.calls.parked) == (0, 1)
    (shown,) = [one for one in status.links if one.segment == link]
    assert (shown.in_flight, shown.parked) == (0, 1)
    assert since(before, here.held()).keys() == {
        "spaces", "spaces of calls", "suspended", "suspended by principal", "questions", "principals", "bytes",
    }  # fmt: skip
    retry = here.again(name, arguments, said, filled_answers(said))
    status = here.node.operations.node.status()
    assert (status.calls.in_flight, status.calls.parked) == (1, 0)
    assert here.node.calls.keepers[link].link.booked == 1
    here.call(f"{link}__open", {"gate": f"aside {link}"})
    assert (await retry.result())["structuredContent"]["answers"] == [{"q": FILLED}]
    assert since(before, here.held()) == {}


async def test_calls_that_wait_for_clients_keep_no_call_from_their_server(
    here: ClockedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_calls(here.node, 2, monkeypatch)
    waiting = [await park(here, f"room {number}", name="web__interview") for number in range(5)]
    assert (await here.call("web__echo").result())["resultType"] == "complete"
    busy = [here.call("web__interview", steps("busy", {"gate": "room"})) for _ in range(2)]
    monkeypatch.setattr(availability, "WAIT_S", 0.01)
    assert await here.call("web__echo").reason() == "link_busy"
    for arguments, said in waiting:  # they were admitted before: they go on, however many are at work
        assert await end(here, arguments, said) == [{"q": FILLED}]
    for call in busy:
        call.running.cancel("enough")
    await here.call("web__open", {"gate": "room"}).result()


async def test_of_the_request_only_the_digest_for_the_record_is_kept(here: ClockedNode) -> None:
    arguments, said = await park(here, "x" * 100_000, name="web__interview")
    (call,) = [space.call for space in here.parking.spaces.values()]
    assert call.params.keys() == {"arguments"}
    assert len(call.params["arguments"]) == 64
    assert (call.ticket, call.wished) == (None, None)
    assert await end(here, arguments, said) == [{"q": FILLED}]
    await here.node.stores.recorder.flush()
    last = json.loads((await here.node.stores.audit.read(0, 10_000))[-1].data)
    written = json.dumps(arguments).encode()
    assert (last["tool"], last["args_sha256"]) == ("web.interview", hashlib.sha256(written).hexdigest())


async def test_a_retry_may_say_again_what_is_overlooked(here: ClockedNode) -> None:
    """A wish for a task is one of 2025-11-25, which 2026-07-28 does not have and no legacy server is told."""
    params = {"name": "web__interview", "arguments": steps("task"), "task": {"ttl": 1000}}
    said = await here.ask("tools/call", params).result()
    more = {"requestState": said["requestState"], "inputResponses": filled_answers(said)}
    result = await here.ask("tools/call", {**params, **more}).result()
    assert result["structuredContent"]["answers"] == [{"q": FILLED}]


async def test_a_call_that_its_server_had_begun_is_not_sent_to_it_again(here: ClockedNode) -> None:
    arguments, said = await park(here, "begun once", name="web__interview")
    (call,) = [space.call for space in here.parking.spaces.values()]
    call.link.on_undelivered(call, Undelivered(Trouble.SESSION_LOST, "it forgot our session", 404))
    error = await here.again("web__interview", arguments, said, filled_answers(said)).error()
    assert (error["message"], error["data"]["outcome"]) == ("tool_degraded", "unknown")
    call.link.cancel(call, "lost")
    assert (await here.tally("web"))["begun"]["begun once"] == 1


async def test_a_server_that_takes_its_question_back_is_at_work_again_and_its_time_runs(here: ClockedNode) -> None:
    taken = [{"send": {"q": ELICIT}}, {"gate": "taken time"}, {"take_back": True}, {"gate": "never"}]
    arguments, said = await park(here, "taken time", *taken, name="old__impatient")
    link = here.node.calls.keepers["old"].link
    here.call("old__open", {"gate": "taken time"})
    await here.until(lambda: not link.waiting.suspended)
    assert link.booked >= 1
    here.clock.ahead += 1
    error = await here.again("old__impatient", arguments, said).error()
    assert error["message"] == "call_timeout"


# Who gives way


async def test_the_largest_user_yields_when_all_capacity_is_taken(here: ClockedNode) -> None:
    many = [await park(here, f"many {number}", name="web__interview", who="client:many") for number in range(3)]
    here.parking.room = 3
    try:
        assert "too many calls" in await declined(here, "one more", who="client:many")
        one = await park(here, "few", name="web__interview", who="client:few")
        assert "too many calls" in await declined(here, "as many", who="client:few")
        assert await end(here, *one, who="client:few") == [{"q": FILLED}]
        first, *rest = many
        answers = filled_answers(first[1])
        oldest = here.again("web__interview", first[0], first[1], answers, who="client:many")
        assert await oldest.reason() == "state_used"
        assert (await here.tally("web"))["cancelled"]["many 0"] == 1
    finally:
        here.parking.room = parking.PARKED_MAX
    for arguments, said in rest:
        assert await end(here, arguments, said, who="client:many") == [{"q": FILLED}]


async def test_questions_larger_than_what_is_left_are_declined(
    here: ClockedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, said = await park(here, "small", name="web__interview")
    monkeypatch.setattr(parking, "PARKED_BYTES_MAX", here.parking._bytes + 10)
    assert "too many calls" in await declined(here, "large")
    assert await end(here, arguments, said) == [{"q": FILLED}]
    arguments, said = await park(here, "now it fits", name="web__interview")
    assert await end(here, arguments, said) == [{"q": FILLED}]


# Letting go


async def test_calls_that_expire_together_are_cancelled_in_steps(
    here: ClockedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "EXPIRED_AT_ONCE", 2)
    for _ in range(5):
        await park(here, "steps", name="web__interview")
    left = []
    here.clock.ahead += parking.PARKED_S + 1
    now = here.clock.now()
    for _ in range(3):
        here.parking.sweep(now)
        left.append(len(here.parking.spaces))
    assert left == [3, 1, 0]
    async with asyncio.timeout(15):
        while (await here.tally("web"))["cancelled"].get("steps", 0) < 5:
            pass
