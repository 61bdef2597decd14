"""Does a call parked for its client go on for exactly the right one, and once? The servers are real."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.support.node_with_clock import ELICIT, FILLED, ClockedNode, clocked_node, filled_answers, finish, park, steps

from interlock.dispatch import calls_under_way as parking

SAMPLE = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "so"}, "model": "m"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClockedNode]:
    async with clocked_node(tmp_path_factory.mktemp("parking")) as started:
        yield started
        assert started.held() == dict.fromkeys(started.held(), 0)


# Whose it is


async def test_the_retry_takes_up_the_very_call_and_the_server_runs_it_once(here: ClockedNode) -> None:
    arguments, said = await park(here, "once", {"ask": {"a": ELICIT}}, {"ask": {"b": SAMPLE}})
    assert [one["method"] for one in said["inputRequests"].values()] == ["elicitation/create"]
    second = await here.again("old__interview", arguments, said, filled_answers(said)).result()
    assert list(second["inputRequests"].values()) == [SAMPLE]
    done = await here.again("old__interview", arguments, second, filled_answers(second, SAMPLED)).result()
    assert done["structuredContent"]["answers"] == [{"a": FILLED}, {"b": SAMPLED}]
    tally = await here.tally("old")
    assert (tally["begun"]["once"], tally["finished"]["once"]) == (1, 1)


async def test_a_retry_may_write_its_request_in_another_way(here: ClockedNode) -> None:
    arguments, said = await park(here, "anew")
    turned = dict(reversed(arguments.items()))
    params = {"requestState": said["requestState"], "arguments": turned, "name": "old__interview"}
    retry = here.ask("tools/call", {**params, "inputResponses": filled_answers(said)}, meta={"com.example/k": 1})
    assert (await retry.result())["structuredContent"]["answers"] == [{"q": FILLED}]


async def test_capabilities_declared_in_a_retry_decide_the_next_questions(here: ClockedNode) -> None:
    arguments, said = await park(here, "less", {"ask": {"a": ELICIT}}, {"ask": {"b": ELICIT}})
    retry = here.again("old__interview", arguments, said, filled_answers(said), capabilities={"sampling": {}})
    first, second = (await retry.result())["structuredContent"]["answers"]
    assert first == {"a": FILLED}
    assert "does not support elicitation/create" in second["b"]["message"]


async def test_another_principal_is_refused(here: ClockedNode) -> None:
    arguments, said = await park(here, "mine", who="client:a")
    for who in ("client:b", "local"):
        theirs = here.again("old__interview", arguments, said, filled_answers(said), who=who)
        assert await theirs.reason() == "state_foreign"
        assert theirs.statuses == [400]
    assert await finish(here, arguments, said, who="client:a") == [{"q": FILLED}]


async def test_another_request_is_refused(here: ClockedNode) -> None:
    arguments, said = await park(here, "this request")
    others = [
        here.again("old__interview", {**arguments, "label": "that"}, said, filled_answers(said)),
        here.again("old__interview", {**arguments, "more": None}, said, filled_answers(said)),
        here.again("mortal__interview", arguments, said, filled_answers(said)),
        here.again("old__echo", arguments, said, filled_answers(said)),
        here.ask("prompts/get", {"name": "old__interview", "arguments": {}, "requestState": said["requestState"]}),
        here.ask("resources/read", {"uri": "mcpax://old/raw://text", "requestState": said["requestState"]}),
    ]
    assert [await other.reason() for other in others] == ["state_foreign"] * len(others)
    assert await finish(here, arguments, said) == [{"q": FILLED}]


@pytest.mark.parametrize("change", ["first", "last", "cut", "grown", "prefix", "empty", "another's", "swapped"])
async def test_a_changed_state_is_refused_and_nothing_runs(here: ClockedNode, change: str) -> None:
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
    assert await here.again("old__interview", arguments, forged, filled_answers(said)).reason() == "state_invalid"
    assert (await here.tally("old"))["begun"][f"changed {change}"] == 2
    for one in (said, other):
        assert await finish(here, arguments, one) == [{"q": FILLED}]


@pytest.mark.parametrize("state", [7, None, ["x"], {}])
async def test_a_state_that_is_no_text_is_refused(here: ClockedNode, state: Any) -> None:
    forged = here.again("old__interview", steps("no text"), {"requestState": state})
    assert await forged.reason() == "state_invalid"
    assert "no text" not in (await here.tally("old"))["begun"]


async def test_a_modern_server_judges_its_own_states_even_if_they_look_like_ours(here: ClockedNode) -> None:
    """A node further down the tree makes states of the same form."""
    state = "il1." + "A" * 64
    retry = here.again("new__own_params", {"a": 1}, {"requestState": state}, {"k": {"z": 1}})
    params = (await retry.result())["structuredContent"]["params"]
    assert params["requestState"] == state
    assert params["inputResponses"] == {"k": {"z": 1}}


async def test_answers_without_a_state_never_reach_a_legacy_server(here: ClockedNode) -> None:
    call = here.ask("tools/call", {"name": "old__own_params", "arguments": {}, "inputResponses": {"1": FILLED}})
    assert set((await call.result())["structuredContent"]["params"]) <= {"name", "arguments", "_meta"}


# Once


async def test_a_state_is_good_for_one_use(here: ClockedNode) -> None:
    arguments, said = await park(here, "twice")
    assert await finish(here, arguments, said) == [{"q": FILLED}]
    assert await here.again("old__interview", arguments, said, filled_answers(said)).reason() == "state_used"
    assert (await here.tally("old"))["begun"]["twice"] == 1


async def test_one_of_two_simultaneous_retries_resumes_the_call(here: ClockedNode) -> None:
    arguments, said = await park(here, "race", {"ask": {"q": ELICIT}}, {"gate": "race"})
    first = here.again("old__interview", arguments, said, filled_answers(said))
    second = here.again("old__interview", arguments, said, filled_answers(said, {"action": "decline"}))
    assert await second.reason() == "state_used"
    here.call("old__open", {"gate": "race"})
    assert (await first.result())["structuredContent"]["answers"] == [{"q": FILLED}]


async def test_an_older_state_of_the_same_call_is_refused(here: ClockedNode) -> None:
    arguments, said = await park(here, "rounds", {"ask": {"a": ELICIT}}, {"ask": {"b": ELICIT}})
    later = await here.again("old__interview", arguments, said, filled_answers(said)).result()
    assert await here.again("old__interview", arguments, said, filled_answers(said)).reason() == "state_used"
    assert await finish(here, arguments, later) == [{"a": FILLED}, {"b": FILLED}]


# What was not answered


@pytest.mark.parametrize("given", [None, {}, [], "x", {"nobody": FILLED}, {"1": "text"}, {"1": None}, {"1": [FILLED]}])
async def test_a_question_that_is_not_answered_is_asked_again(here: ClockedNode, given: Any) -> None:
    arguments, said = await park(here, "again")
    assert list(said["inputRequests"]) == ["1"]
    again = await here.again("old__interview", arguments, said, given).result()
    assert again["resultType"] == "input_required"
    assert again["inputRequests"] == said["inputRequests"]
    assert again["requestState"] != said["requestState"]
    assert await finish(here, arguments, again) == [{"q": FILLED}]


@pytest.mark.parametrize("link", ["old", "web"])
async def test_questions_asked_at_once_are_one_round_and_only_open_questions_are_asked_again(
    here: ClockedNode, link: str
) -> None:
    three = {"ask": {"a": ELICIT, "b": SAMPLE, "c": ELICIT}}
    arguments, said = await park(here, "three", three, name=f"{link}__interview")
    asked = [one["method"] for one in said["inputRequests"].values()]
    assert asked == ["elicitation/create", "sampling/createMessage", "elicitation/create"]
    for open_questions in (3, 2, 1):
        assert len(said["inputRequests"]) == open_questions
        key, question = next(iter(said["inputRequests"].items()))
        answer = SAMPLED if question == SAMPLE else {"action": "accept", "content": {"c": key}}
        said = await here.again(f"{link}__interview", arguments, said, {key: answer}).result()
    (answers,) = said["structuredContent"]["answers"]
    assert answers == {
        "a": {"action": "accept", "content": {"c": "1"}},
        "b": SAMPLED,
        "c": {"action": "accept", "content": {"c": "3"}},
    }


async def test_a_server_that_asks_too_much_at_once_is_refused(here: ClockedNode) -> None:
    asked = {f"q{number:02}": ELICIT for number in range(parking.QUESTIONS_MAX + 2)}
    arguments, said = await park(here, "too much", {"ask": asked})
    assert len(said["inputRequests"]) == parking.QUESTIONS_MAX
    (answers,) = await finish(here, arguments, said)
    refused = [answer for answer in answers.values() if "code" in answer]
    assert len(refused) == 2
    assert all("at once" in one["message"] for one in refused)


async def test_a_full_car_park_takes_no_more(here: ClockedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, said = await park(here, "parked")
    monkeypatch.setattr(parking, "PARKED_MAX", len(here.parking.spaces))
    (answer,) = (await here.call("old__interview", steps("no room")).result())["structuredContent"]["answers"]
    assert "too many calls" in answer["q"]["message"]
    assert await finish(here, arguments, said) == [{"q": FILLED}]
