"""Does a parked call live as long as it should, what becomes of it meanwhile, and is nothing kept of it after?

The clock is a test's own; the servers are real.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.support.node_with_clock import (
    ELICIT,
    FILLED,
    FORM,
    ClockedNode,
    clocked_node,
    filled_answers,
    finish,
    park,
    since,
    steps,
)
from tests.support.scale import many

from interlock.core.calls.call import Call
from interlock.dispatch import calls_under_way as parking

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = many(200, 1000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClockedNode]:
    async with clocked_node(tmp_path_factory.mktemp("parking")) as started:
        yield started
        assert started.held() == dict.fromkeys(started.held(), 0)


# In time


async def test_an_abandoned_call_is_cancelled_at_the_server(here: ClockedNode) -> None:
    before = here.held()
    arguments, said = await park(here, "abandoned")
    here.clock.ahead += parking.PARKED_S - 1
    await here.call("old__echo").result()
    assert here.parking.spaces
    here.clock.ahead += 2
    await here.until(lambda: not here.parking.spaces)
    tally = await here.tally("old")
    assert tally["cancelled"]["abandoned"] == 1
    assert "abandoned" not in tally["finished"]
    assert since(before, here.held()) == {}
    assert await here.again("old__interview", arguments, said, filled_answers(said)).reason() == "state_expired"


async def test_each_round_has_its_own_time(here: ClockedNode) -> None:
    arguments, said = await park(here, "patience", {"ask": {"a": ELICIT}}, {"ask": {"b": ELICIT}})
    for _ in range(3):
        here.clock.ahead += parking.PARKED_S * 0.9
        said = await here.again("old__interview", arguments, said).result()
    said = await here.again("old__interview", arguments, said, filled_answers(said)).result()
    here.clock.ahead += parking.PARKED_S * 0.9
    assert await finish(here, arguments, said) == [{"a": FILLED}, {"b": FILLED}]


async def test_an_answer_for_which_no_client_came_back_is_dropped(here: ClockedNode) -> None:
    await park(here, "answered", {"send": {"q": ELICIT}}, {"gate": "answered"})
    here.call("old__open", {"gate": "answered"})
    await here.until(lambda: all(space.away.message is not None for space in here.parking.spaces.values()))
    assert len(here.parking.spaces) == 1
    here.clock.ahead += parking.PARKED_S + 1
    await here.until(lambda: not here.parking.spaces)
    assert "answered" not in (await here.tally("old"))["cancelled"]


async def test_the_time_a_person_takes_is_not_the_servers(here: ClockedNode) -> None:
    """Parked for most of the tool's half second: after the answer it has all of it again."""
    clock = here.call("mortal__impatient", steps("clock", {"gate": "never"}))
    arguments, said = await park(here, "slow", {"ask": {"q": ELICIT}}, {"gate": "slow"}, name="old__impatient")
    here.clock.ahead += 0.3
    retry = here.again("old__impatient", arguments, said, filled_answers(said))
    here.clock.ahead += 0.3
    assert (await clock.error())["message"] == "call_timeout"  # the node has looked at all deadlines
    here.call("old__open", {"gate": "slow"})
    assert (await retry.result())["structuredContent"]["answers"] == [{"q": FILLED}]


async def test_after_the_answer_the_servers_time_runs_again(here: ClockedNode) -> None:
    clock = here.call("mortal__impatient", steps("clock", {"gate": "never"}))
    arguments, said = await park(here, "late", {"ask": {"q": ELICIT}}, {"gate": "late"}, name="old__impatient")
    here.clock.ahead += 60
    await clock.error()
    assert len(here.parking.spaces) == 1
    retry = here.again("old__impatient", arguments, said, filled_answers(said))
    clock = here.call("mortal__impatient", steps("clock", {"gate": "never"}))
    here.clock.ahead += 60
    await clock.error()
    here.clock.ahead += 60
    assert (await retry.error())["message"] == "call_timeout"
    assert (await here.tally("old"))["cancelled"]["late"] == 1


# What happens meanwhile


async def test_a_server_that_answers_meanwhile_is_read_when_the_client_comes_back(here: ClockedNode) -> None:
    arguments, said = await park(here, "meanwhile", {"send": {"q": ELICIT}}, {"gate": "meanwhile"})
    here.call("old__open", {"gate": "meanwhile"})
    await here.until(lambda: all(space.away.message is not None for space in here.parking.spaces.values()))
    result = await here.again("old__interview", arguments, said, filled_answers(said)).result()
    assert (result["resultType"], result["structuredContent"]) == ("complete", {"answers": []})
    late = (await here.tally("old"))["late"]
    assert late[-1]["message"] == "the call of this question has ended"


async def test_a_server_that_does_not_wait_for_its_question_is_answered_for(here: ClockedNode) -> None:
    result = await here.call("old__interview", steps("hasty", {"send": {"q": ELICIT}})).result()
    assert (result["resultType"], result["structuredContent"]) == ("complete", {"answers": []})
    assert (await here.tally("old"))["late"][-1]["message"] == "the call of this question has ended"


async def test_a_question_taken_back_is_not_waited_for(here: ClockedNode) -> None:
    taken = [{"send": {"q": ELICIT}}, {"gate": "taken"}, {"take_back": True}, {"gate": "left"}]
    arguments, said = await park(here, "taken", *taken)
    here.call("old__open", {"gate": "taken"})
    await here.until(lambda: not any(space.questions for space in here.parking.spaces.values()))
    retry = here.again("old__interview", arguments, said, filled_answers(said))
    here.call("old__open", {"gate": "left"})
    assert (await retry.result())["structuredContent"] == {"answers": []}
    assert await here.again("old__interview", arguments, said).reason() == "state_used"


async def test_a_question_taken_back_in_the_same_breath_is_never_asked(here: ClockedNode) -> None:
    result = here.call(
        "old__interview", steps("breath", {"send": {"q": ELICIT}}, {"take_back": True}, {"gate": "breath"})
    )
    here.call("old__open", {"gate": "breath"})
    assert (await result.result())["structuredContent"] == {"answers": []}


async def test_a_client_learns_that_its_server_died_meanwhile(here: ClockedNode) -> None:
    before = here.held()
    arguments, said = await park(here, "dying", name="mortal__interview")
    gone = here.call("mortal__die")
    assert (await gone.error())["data"]["outcome"] == "unknown"
    error = await here.again("mortal__interview", arguments, said, filled_answers(said)).error()
    assert (error["message"], error["data"]["outcome"]) == ("tool_degraded", "unknown")
    assert since(before, here.held()) == {}
    await here.call("mortal__echo").result()


async def test_a_client_that_gives_up_its_retry_cancels_the_call(here: ClockedNode) -> None:
    before = here.held()
    arguments, said = await park(here, "given up", {"ask": {"q": ELICIT}}, {"gate": "never"})
    retry = here.again("old__interview", arguments, said, filled_answers(said))
    retry.running.cancel("the client disconnected")
    assert (await here.tally("old"))["cancelled"]["given up"] == 1
    assert since(before, here.held()) == {}


# Whose question it is, where a pipe is shared


def named(label: str) -> dict[str, Any]:
    """A question that says whose call it belongs to."""
    return {"method": "elicitation/create", "params": {**FORM, "message": label}}


def messages(said: Any) -> list[str]:
    return [one["params"]["message"] for one in said["inputRequests"].values()]


async def test_two_calls_of_one_principal_may_wait_at_once_and_each_is_asked_its_own(here: ClockedNode) -> None:
    """The server's one pipe does not say whose call asks; a call that waits for its client is not it."""
    waiting = {}
    for who in ("first", "second"):
        two = [{"ask": {"a": named(who), "b": named(who)}}, {"ask": {"c": named(who)}}]
        waiting[who] = await park(here, who, *two)
        assert messages(waiting[who][1]) == [who, who]
    for who, (arguments, said) in waiting.items():
        said = await here.again("old__interview", arguments, said, filled_answers(said)).result()
        assert messages(said) == [who]
        assert await finish(here, arguments, said) == [{"a": FILLED, "b": FILLED}, {"c": FILLED}]


async def test_no_client_is_asked_if_two_calls_may_be_asking(here: ClockedNode) -> None:
    busy = here.call("old__interview", steps("busy", {"gate": "busy"}))
    (answer,) = (await here.call("old__interview", steps("asks")).result())["structuredContent"]["answers"]
    assert "cannot be told from others" in answer["q"]["message"]
    here.call("old__open", {"gate": "busy"})
    await busy.result()


async def test_a_call_that_is_just_asking_is_not_asked_for_another(here: ClockedNode) -> None:
    first = here.call("old__interview", steps("one breath", {"ask": {"q": named("one breath")}}))
    second = here.call("old__interview", steps("another", {"ask": {"q": named("another")}}))
    for call in (first, second):
        (answer,) = (await call.result())["structuredContent"]["answers"]
        assert "cannot be told from others" in answer["q"]["message"]


async def test_http_tells_whose_question_it_is_however_many_ask(here: ClockedNode) -> None:
    labels = [f"web {number}" for number in range(20)]
    calls = {one: here.call("web__interview", steps(one, {"ask": {"q": named(one)}})) for one in labels}
    for label, call in calls.items():
        said = await call.result()
        assert messages(said) == [label]
        answer = {"action": "accept", "content": {"c": label}}
        arguments = steps(label, {"ask": {"q": named(label)}})
        done = await here.again("web__interview", arguments, said, filled_answers(said, answer)).result()
        assert done["structuredContent"]["answers"] == [{"q": answer}]


async def test_no_client_is_asked_while_a_call_of_another_principal_is_under_way(here: ClockedNode) -> None:
    arguments, said = await park(here, "theirs", who="client:a")
    (answer,) = (await here.call("old__interview", steps("ours"), who="client:b").result())["structuredContent"][
        "answers"
    ]
    assert "cannot be told from others" in answer["q"]["message"]
    assert await finish(here, arguments, said, who="client:a") == [{"q": FILLED}]


# Nothing is kept


async def settled(here: ClockedNode) -> dict[str, int]:
    gc.collect()
    calls = sum(isinstance(one, Call) for one in gc.get_objects())
    return {**here.held(), "calls": calls}


async def test_memory_does_not_grow_after_many_parked_and_resumed_calls(here: ClockedNode) -> None:
    async def whole() -> None:
        arguments, said = await park(here, "many", name="web__interview")
        done = await here.again("web__interview", arguments, said, filled_answers(said)).result()
        assert done["structuredContent"]["answers"] == [{"q": FILLED}]

    before = await settled(here)
    await asyncio.gather(*(whole() for _ in range(MANY)))
    tally = await here.tally("web")
    assert (tally["begun"]["many"], tally["finished"]["many"]) == (MANY, MANY)
    assert since(before, await settled(here)) == {}


async def test_memory_does_not_grow_after_many_parked_and_abandoned_calls(here: ClockedNode) -> None:
    before = await settled(here)
    await abandon(here, MANY)
    async with asyncio.timeout(15):
        while (await here.tally("web"))["cancelled"]["left"] < MANY:  # over HTTP each is a request of its own
            pass
    assert since(before, await settled(here)) == {}


async def abandon(here: ClockedNode, count: int) -> None:
    for call in [here.call("web__interview", steps("left")) for _ in range(count)]:
        assert (await call.result())["resultType"] == "input_required"
    assert len(here.parking.spaces) == count
    here.clock.ahead += parking.PARKED_S + 1
    await here.until(lambda: not here.parking.spaces)
