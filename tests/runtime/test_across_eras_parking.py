"""Does a call parked for its client go on for exactly the right one, once, in time, and is nothing kept of it after?

The clock is a test's own; the servers are real.
"""

import asyncio
import base64
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.runtime.parked import Place, place, since

from interlock.runtime import parking
from interlock.runtime.calls import Call

pytestmark = pytest.mark.asyncio(loop_scope="module")

RULES = '[[tool]]\nmatch = "*.impatient"\nlatency_class = "realtime"\n'  # half a second
FORM = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {"c": {"type": "string"}}}}
ELICIT = {"method": "elicitation/create", "params": FORM}
FILLED = {"action": "accept", "content": {"c": "blue"}}
MANY = 1000
AT_ONCE = 500


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with place(tmp_path_factory.mktemp("parking"), RULES) as started:
        yield started
        assert started.held() == dict.fromkeys(started.held(), 0)


def steps(label: str, *rest: dict[str, Any]) -> dict[str, Any]:
    return {"label": label, "steps": list(rest or [{"ask": {"q": ELICIT}}])}


async def park(here: Place, label: str, *rest: dict[str, Any], name: str = "old__interview", **options: Any) -> Any:
    """A call that waits for its client: its arguments, and what the client was told."""
    arguments = steps(label, *rest)
    said = await here.call(name, arguments, **options).result()
    assert said["resultType"] == "input_required"
    return arguments, said


def filled(said: Any, answer: Any = FILLED) -> dict[str, Any]:
    return dict.fromkeys(said["inputRequests"], answer)


async def finish(here: Place, arguments: Any, said: Any, **options: Any) -> Any:
    result = await here.again("old__interview", arguments, said, filled(said), **options).result()
    assert result["resultType"] == "complete"
    return result["structuredContent"]["answers"]


# Whose it is


async def test_the_retry_takes_up_the_very_call_and_the_server_runs_it_once(here: Place) -> None:
    arguments, said = await park(here, "once", {"ask": {"a": ELICIT}}, {"ask": {"b": {"method": "roots/list"}}})
    assert [one["method"] for one in said["inputRequests"].values()] == ["elicitation/create"]
    second = await here.again("old__interview", arguments, said, filled(said)).result()
    assert list(second["inputRequests"].values()) == [{"method": "roots/list"}]
    roots = {"roots": [{"uri": "file:///x"}]}
    done = await here.again("old__interview", arguments, second, filled(second, roots)).result()
    assert done["structuredContent"]["answers"] == [{"a": FILLED}, {"b": roots}]
    tally = await here.tally("old")
    assert (tally["begun"]["once"], tally["finished"]["once"]) == (1, 1)


async def test_a_retry_may_write_its_request_anew(here: Place) -> None:
    arguments, said = await park(here, "anew")
    turned = dict(reversed(arguments.items()))
    params = {"requestState": said["requestState"], "arguments": turned, "name": "old__interview"}
    retry = here.ask("tools/call", {**params, "inputResponses": filled(said)}, meta={"com.example/k": 1})
    assert (await retry.result())["structuredContent"]["answers"] == [{"q": FILLED}]


async def test_another_principal_is_refused(here: Place) -> None:
    arguments, said = await park(here, "mine", who="client:a")
    for who in ("client:b", "local"):
        theirs = here.again("old__interview", arguments, said, filled(said), who=who)
        assert await theirs.reason() == "state_foreign"
        assert theirs.statuses == [400]
    assert await finish(here, arguments, said, who="client:a") == [{"q": FILLED}]


async def test_another_request_is_refused(here: Place) -> None:
    arguments, said = await park(here, "this request")
    others = [
        here.again("old__interview", {**arguments, "label": "that"}, said, filled(said)),
        here.again("old__interview", {**arguments, "more": None}, said, filled(said)),
        here.again("mortal__interview", arguments, said, filled(said)),
        here.again("old__echo", arguments, said, filled(said)),
        here.ask("prompts/get", {"name": "old__interview", "arguments": {}, "requestState": said["requestState"]}),
        here.ask("resources/read", {"uri": "mcpax://old/raw://text", "requestState": said["requestState"]}),
    ]
    assert [await other.reason() for other in others] == ["state_foreign"] * len(others)
    assert await finish(here, arguments, said) == [{"q": FILLED}]


@pytest.mark.parametrize("change", ["first", "last", "cut", "grown", "prefix", "empty", "another's", "swapped"])
async def test_a_changed_state_is_refused_and_nothing_runs(here: Place, change: str) -> None:
    arguments, said = await park(here, f"changed {change}")
    _, other = await park(here, f"changed {change}")
    state = said["requestState"]
    body = base64.urlsafe_b64decode(state[4:] + "=" * (-len(state[4:]) % 4))
    foreign = base64.urlsafe_b64decode(other["requestState"][4:] + "=" * (-len(other["requestState"][4:]) % 4))
    changed = {
        "first": state[:4] + ("B" if state[4] == "A" else "A") + state[5:],
        "last": state[:-3] + ("A" if state[-3] != "A" else "B") + state[-2:],
        "cut": state[:-8],
        "grown": state + "AAAA",
        "prefix": "il2." + state[4:],
        "empty": "",
        "another's": "another server's own state",
        "swapped": "il1." + base64.urlsafe_b64encode(body[:32] + foreign[32:]).decode().rstrip("="),
    }[change]
    forged = {**said, "requestState": changed}
    assert await here.again("old__interview", arguments, forged, filled(said)).reason() == "state_invalid"
    assert (await here.tally("old"))["begun"][f"changed {change}"] == 2
    for one in (said, other):
        assert await finish(here, arguments, one) == [{"q": FILLED}]


@pytest.mark.parametrize("state", [7, None, ["x"], {}])
async def test_a_state_that_is_no_text_is_refused(here: Place, state: Any) -> None:
    forged = here.again("old__interview", steps("no text"), {"requestState": state})
    assert await forged.reason() == "state_invalid"
    assert "no text" not in (await here.tally("old"))["begun"]


async def test_a_modern_server_judges_its_own_states_even_if_they_look_like_ours(here: Place) -> None:
    """A node further down the tree makes states of the same form."""
    state = "il1." + "A" * 64
    retry = here.again("new__own_params", {"a": 1}, {"requestState": state}, {"k": {"z": 1}})
    params = (await retry.result())["structuredContent"]["params"]
    assert params["requestState"] == state
    assert params["inputResponses"] == {"k": {"z": 1}}


async def test_answers_without_a_state_never_reach_a_legacy_server(here: Place) -> None:
    call = here.ask("tools/call", {"name": "old__own_params", "arguments": {}, "inputResponses": {"1": FILLED}})
    assert set((await call.result())["structuredContent"]["params"]) <= {"name", "arguments", "_meta"}


# Once


async def test_a_state_is_good_for_one_use(here: Place) -> None:
    arguments, said = await park(here, "twice")
    assert await finish(here, arguments, said) == [{"q": FILLED}]
    assert await here.again("old__interview", arguments, said, filled(said)).reason() == "state_used"
    assert (await here.tally("old"))["begun"]["twice"] == 1


async def test_of_two_retries_at_once_one_goes_on(here: Place) -> None:
    arguments, said = await park(here, "race", {"ask": {"q": ELICIT}}, {"gate": "race"})
    first = here.again("old__interview", arguments, said, filled(said))
    second = here.again("old__interview", arguments, said, filled(said, {"action": "decline"}))
    assert await second.reason() == "state_used"
    here.call("old__open", {"gate": "race"})
    assert (await first.result())["structuredContent"]["answers"] == [{"q": FILLED}]


async def test_an_older_state_of_the_same_call_is_refused(here: Place) -> None:
    arguments, said = await park(here, "rounds", {"ask": {"a": ELICIT}}, {"ask": {"b": ELICIT}})
    later = await here.again("old__interview", arguments, said, filled(said)).result()
    assert await here.again("old__interview", arguments, said, filled(said)).reason() == "state_used"
    assert await finish(here, arguments, later) == [{"a": FILLED}, {"b": FILLED}]


# What was not answered


@pytest.mark.parametrize("given", [None, {}, [], "x", {"nobody": FILLED}, {"1": "text"}, {"1": None}, {"1": [FILLED]}])
async def test_a_question_that_is_not_answered_is_asked_again(here: Place, given: Any) -> None:
    arguments, said = await park(here, "again")
    assert list(said["inputRequests"]) == ["1"]
    again = await here.again("old__interview", arguments, said, given).result()
    assert again["resultType"] == "input_required"
    assert again["inputRequests"] == said["inputRequests"]
    assert again["requestState"] != said["requestState"]
    assert await finish(here, arguments, again) == [{"q": FILLED}]


@pytest.mark.parametrize("link", ["old", "web"])
async def test_questions_asked_in_one_breath_are_one_round_and_only_the_open_ones_are_asked_again(
    here: Place, link: str
) -> None:
    three = {"ask": {"a": ELICIT, "b": {"method": "roots/list"}, "c": ELICIT}}
    arguments, said = await park(here, "three", three, name=f"{link}__interview")
    roots = {"roots": []}
    asked = [one["method"] for one in said["inputRequests"].values()]
    assert asked == ["elicitation/create", "roots/list", "elicitation/create"]
    for open_questions in (3, 2, 1):
        assert len(said["inputRequests"]) == open_questions
        key, question = next(iter(said["inputRequests"].items()))
        answer = roots if question["method"] == "roots/list" else {"action": "accept", "content": {"c": key}}
        said = await here.again(f"{link}__interview", arguments, said, {key: answer}).result()
    (answers,) = said["structuredContent"]["answers"]
    assert answers == {
        "a": {"action": "accept", "content": {"c": "1"}},
        "b": roots,
        "c": {"action": "accept", "content": {"c": "3"}},
    }


async def test_a_server_that_asks_too_much_at_once_hears_no(here: Place) -> None:
    asked = {f"q{number:02}": ELICIT for number in range(parking.QUESTIONS_MAX + 2)}
    arguments, said = await park(here, "too much", {"ask": asked})
    assert len(said["inputRequests"]) == parking.QUESTIONS_MAX
    (answers,) = await finish(here, arguments, said)
    refused = [answer for answer in answers.values() if "code" in answer]
    assert len(refused) == 2
    assert all("at once" in one["message"] for one in refused)


async def test_a_full_car_park_takes_no_more(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, said = await park(here, "parked")
    monkeypatch.setattr(parking, "PARKED_MAX", len(here.parking.spaces))
    (answer,) = (await here.call("old__interview", steps("no room")).result())["structuredContent"]["answers"]
    assert "too many calls" in answer["q"]["message"]
    assert await finish(here, arguments, said) == [{"q": FILLED}]


# In time


async def test_an_abandoned_call_is_cancelled_at_the_server_and_its_question_answered_for(here: Place) -> None:
    before = here.held()
    arguments, said = await park(here, "abandoned")
    here.clock.ahead += parking.PARKED_S - 1
    await here.call("old__echo").result()
    assert here.parking.spaces
    here.clock.ahead += 2
    await here.until(lambda: not here.parking.spaces)
    tally = await here.tally("old")
    assert tally["cancelled"]["abandoned"] == 1
    assert tally["unanswered"] == 0
    assert "abandoned" not in tally["finished"]
    assert since(before, here.held()) == {}
    assert await here.again("old__interview", arguments, said, filled(said)).reason() == "state_expired"


async def test_each_round_has_its_own_time(here: Place) -> None:
    arguments, said = await park(here, "patience", {"ask": {"a": ELICIT}}, {"ask": {"b": ELICIT}})
    for _ in range(3):
        here.clock.ahead += parking.PARKED_S * 0.9
        said = await here.again("old__interview", arguments, said).result()
    said = await here.again("old__interview", arguments, said, filled(said)).result()
    here.clock.ahead += parking.PARKED_S * 0.9
    assert await finish(here, arguments, said) == [{"a": FILLED}, {"b": FILLED}]


async def test_an_answer_nobody_came_back_for_is_let_go(here: Place) -> None:
    await park(here, "answered", {"send": {"q": ELICIT}}, {"gate": "answered"})
    here.call("old__open", {"gate": "answered"})
    await here.until(lambda: all(space.answer is not None for space in here.parking.spaces.values()))
    assert len(here.parking.spaces) == 1
    here.clock.ahead += parking.PARKED_S + 1
    await here.until(lambda: not here.parking.spaces)
    assert "answered" not in (await here.tally("old"))["cancelled"]


async def test_the_time_a_person_takes_is_not_the_servers(here: Place) -> None:
    """Parked for most of the tool's half second: after the answer it has all of it again."""
    clock = here.call("mortal__impatient", steps("clock", {"gate": "never"}))
    arguments, said = await park(here, "slow", {"ask": {"q": ELICIT}}, {"gate": "slow"}, name="old__impatient")
    here.clock.ahead += 0.3
    retry = here.again("old__impatient", arguments, said, filled(said))
    here.clock.ahead += 0.3
    assert (await clock.error())["message"] == "call_timeout"  # the node has looked at all deadlines
    here.call("old__open", {"gate": "slow"})
    assert (await retry.result())["structuredContent"]["answers"] == [{"q": FILLED}]


async def test_after_the_answer_the_servers_time_runs_again(here: Place) -> None:
    clock = here.call("mortal__impatient", steps("clock", {"gate": "never"}))
    arguments, said = await park(here, "late", {"ask": {"q": ELICIT}}, {"gate": "late"}, name="old__impatient")
    here.clock.ahead += 60
    await clock.error()
    assert len(here.parking.spaces) == 1
    retry = here.again("old__impatient", arguments, said, filled(said))
    clock = here.call("mortal__impatient", steps("clock", {"gate": "never"}))
    here.clock.ahead += 60
    await clock.error()
    here.clock.ahead += 60
    assert (await retry.error())["message"] == "call_timeout"
    assert (await here.tally("old"))["cancelled"]["late"] == 1


# What happens meanwhile


async def test_a_server_that_answers_meanwhile_is_heard_when_the_client_comes_back(here: Place) -> None:
    arguments, said = await park(here, "meanwhile", {"send": {"q": ELICIT}}, {"gate": "meanwhile"})
    here.call("old__open", {"gate": "meanwhile"})
    await here.until(lambda: all(space.answer is not None for space in here.parking.spaces.values()))
    result = await here.again("old__interview", arguments, said, filled(said)).result()
    assert (result["resultType"], result["structuredContent"]) == ("complete", {"answers": []})
    late = (await here.tally("old"))["late"]
    assert late[-1]["message"] == "the call of this question has ended"


async def test_a_server_that_does_not_wait_for_its_question_is_answered_for(here: Place) -> None:
    result = await here.call("old__interview", steps("hasty", {"send": {"q": ELICIT}})).result()
    assert (result["resultType"], result["structuredContent"]) == ("complete", {"answers": []})
    assert (await here.tally("old"))["late"][-1]["message"] == "the call of this question has ended"


async def test_a_question_taken_back_is_not_waited_for(here: Place) -> None:
    taken = [{"send": {"q": ELICIT}}, {"gate": "taken"}, {"take_back": True}, {"gate": "left"}]
    arguments, said = await park(here, "taken", *taken)
    here.call("old__open", {"gate": "taken"})
    await here.until(lambda: not any(space.questions for space in here.parking.spaces.values()))
    retry = here.again("old__interview", arguments, said, filled(said))
    here.call("old__open", {"gate": "left"})
    assert (await retry.result())["structuredContent"] == {"answers": []}
    assert await here.again("old__interview", arguments, said).reason() == "state_used"


async def test_a_question_taken_back_in_the_same_breath_is_never_asked(here: Place) -> None:
    result = here.call(
        "old__interview", steps("breath", {"send": {"q": ELICIT}}, {"take_back": True}, {"gate": "breath"})
    )
    here.call("old__open", {"gate": "breath"})
    assert (await result.result())["structuredContent"] == {"answers": []}


async def test_a_server_that_dies_meanwhile_is_told_to_the_client(here: Place) -> None:
    before = here.held()
    arguments, said = await park(here, "dying", name="mortal__interview")
    gone = here.call("mortal__die")
    assert (await gone.error())["data"]["outcome"] == "unknown"
    error = await here.again("mortal__interview", arguments, said, filled(said)).error()
    assert (error["message"], error["data"]["outcome"]) == ("tool_degraded", "unknown")
    assert since(before, here.held()) == {}
    await here.call("mortal__echo").result()


async def test_a_client_that_gives_up_its_retry_cancels_the_call(here: Place) -> None:
    before = here.held()
    arguments, said = await park(here, "given up", {"ask": {"q": ELICIT}}, {"gate": "never"})
    retry = here.again("old__interview", arguments, said, filled(said))
    retry.running.cancel("the client disconnected")
    assert (await here.tally("old"))["cancelled"]["given up"] == 1
    assert since(before, here.held()) == {}


# Whose question it is, where a pipe is shared


def named(label: str) -> dict[str, Any]:
    """A question that says whose call it belongs to."""
    return {"method": "elicitation/create", "params": {**FORM, "message": label}}


def messages(said: Any) -> list[str]:
    return [one["params"]["message"] for one in said["inputRequests"].values()]


async def test_two_calls_of_one_principal_may_wait_at_once_and_each_is_asked_its_own(here: Place) -> None:
    """The server's one pipe does not say whose call asks; a call that waits for its client is not it."""
    waiting = {}
    for who in ("first", "second"):
        two = [{"ask": {"a": named(who), "b": named(who)}}, {"ask": {"c": named(who)}}]
        waiting[who] = await park(here, who, *two)
        assert messages(waiting[who][1]) == [who, who]
    for who, (arguments, said) in waiting.items():
        said = await here.again("old__interview", arguments, said, filled(said)).result()
        assert messages(said) == [who]
        assert await finish(here, arguments, said) == [{"a": FILLED, "b": FILLED}, {"c": FILLED}]


async def test_with_two_calls_that_may_be_asking_nobody_is_asked(here: Place) -> None:
    busy = here.call("old__interview", steps("busy", {"gate": "busy"}))
    (answer,) = (await here.call("old__interview", steps("asks")).result())["structuredContent"]["answers"]
    assert "cannot be told from others" in answer["q"]["message"]
    here.call("old__open", {"gate": "busy"})
    await busy.result()


async def test_a_call_that_is_just_asking_is_not_asked_for_another(here: Place) -> None:
    first = here.call("old__interview", steps("one breath", {"ask": {"q": named("one breath")}}))
    second = here.call("old__interview", steps("another", {"ask": {"q": named("another")}}))
    for call in (first, second):
        (answer,) = (await call.result())["structuredContent"]["answers"]
        assert "cannot be told from others" in answer["q"]["message"]


async def test_http_tells_whose_question_it_is_however_many_ask(here: Place) -> None:
    labels = [f"web {number}" for number in range(20)]
    calls = {one: here.call("web__interview", steps(one, {"ask": {"q": named(one)}})) for one in labels}
    for label, call in calls.items():
        said = await call.result()
        assert messages(said) == [label]
        answer = {"action": "accept", "content": {"c": label}}
        arguments = steps(label, {"ask": {"q": named(label)}})
        done = await here.again("web__interview", arguments, said, filled(said, answer)).result()
        assert done["structuredContent"]["answers"] == [{"q": answer}]


async def test_with_another_principals_call_under_way_nobody_is_asked(here: Place) -> None:
    arguments, said = await park(here, "theirs", who="client:a")
    (answer,) = (await here.call("old__interview", steps("ours"), who="client:b").result())["structuredContent"][
        "answers"
    ]
    assert "cannot be told from others" in answer["q"]["message"]
    assert await finish(here, arguments, said, who="client:a") == [{"q": FILLED}]


# Nothing is kept


async def settled(here: Place) -> dict[str, int]:
    gc.collect()
    calls = sum(isinstance(one, Call) for one in gc.get_objects())
    return {**here.held(), "calls": calls}


async def test_nothing_grows_after_a_thousand_parked_and_resumed(here: Place) -> None:
    async def whole() -> None:
        arguments, said = await park(here, "many", name="web__interview")
        done = await here.again("web__interview", arguments, said, filled(said)).result()
        assert done["structuredContent"]["answers"] == [{"q": FILLED}]

    before = await settled(here)
    for _ in range(0, MANY, AT_ONCE):
        await asyncio.gather(*(whole() for _ in range(AT_ONCE)))
    tally = await here.tally("web")
    assert (tally["begun"]["many"], tally["finished"]["many"]) == (MANY, MANY)
    assert since(before, await settled(here)) == {}


async def test_nothing_grows_after_a_thousand_parked_and_abandoned(here: Place) -> None:
    before = await settled(here)
    for _ in range(0, MANY, AT_ONCE):
        await abandon(here, AT_ONCE)
    async with asyncio.timeout(15):
        while (tally := await here.tally("web"))["unanswered"]:  # over HTTP each answer is a request of its own
            pass
    assert tally["cancelled"]["left"] == MANY
    assert since(before, await settled(here)) == {}


async def abandon(here: Place, count: int) -> None:
    for call in [here.call("web__interview", steps("left")) for _ in range(count)]:
        assert (await call.result())["resultType"] == "input_required"
    assert len(here.parking.spaces) == count
    here.clock.ahead += parking.PARKED_S + 1
    await here.until(lambda: not here.parking.spaces)
