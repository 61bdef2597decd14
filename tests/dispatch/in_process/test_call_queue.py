"""Does a call beyond what a link takes at once wait for its turn, fairly and within bounds?"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from tests.support.budget_node import BudgetNode, Client, budget_node, until
from tests.support.node_with_clock import limit_calls

from interlock.core.calls.caller import Principal
from interlock.dispatch import availability

pytestmark = pytest.mark.asyncio(loop_scope="module")
MOST = 3


class Slow:
    """A server that answers when it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, asyncio.Future[Any]]] = []
        self.began = 0

    def call(self, params: Mapping[str, Any]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((params["arguments"].get("who", ""), answer))
        self.began += 1
        return answer

    def answer_all(self) -> list[str]:
        """Of whom the calls were."""
        calls, self.calls = self.calls, []
        for _, answer in calls:
            answer.set_result({"content": []})
        return [who for who, _ in calls]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BudgetNode]:
    async with budget_node(tmp_path_factory.mktemp("queue")) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def slow(here: BudgetNode, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Slow]:
    server = Slow()
    leaf = await here.leaf("slow", call=server.call)
    limit_calls(here.node, MOST, monkeypatch)
    yield server
    assert here.node.calls.dispatch._queue.calls.held == 0
    assert here.node.calls.keepers["slow"].link.booked == 0
    assert here.node.calls.keepers["slow"].link.on_room is None
    leaf.hang_up()
    await until(lambda: "slow" not in here.node.calls.keepers or not here.node.calls.keepers["slow"].link.is_connected)


def calls(client: Client, count: int, who: str = "") -> list[Any]:
    return [client.call("slow.read", {"who": who, "much": "x" * 1000}) for _ in range(count)]


async def assert_answered(asked: list[Any]) -> None:
    assert all("result" in message for message in await asyncio.gather(*(one.message() for one in asked)))


async def test_five_thousand_calls_at_once_are_all_answered(
    here: BudgetNode, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_calls(here.node, 512, monkeypatch)
    asked = calls(here.client(), 5000)
    again: list[Any] = []
    answered = 0
    while answered < 6000:
        if answered >= 512 and not again:  # before those that were let in have been sent
            again = calls(here.client(), 1000)
        await until(lambda: slow.calls)
        assert len(slow.calls) <= 512
        answered += len(slow.answer_all())
    await assert_answered(asked + again)


async def test_principals_take_turns(here: BudgetNode, slow: Slow) -> None:
    asked = calls(here.client(who="client:ada"), MOST + 4, "ada") + calls(here.client(who="client:bob"), 2, "bob")
    served = []
    while len(served) < len(asked):
        await until(lambda: slow.calls)
        served += slow.answer_all()
    assert served[MOST : MOST + 4] == ["ada", "bob", "ada", "bob"]
    await assert_answered(asked)


async def test_a_later_call_does_not_overtake_a_waiting_call(here: BudgetNode, slow: Slow) -> None:
    first = calls(here.client(who="client:ada"), MOST + 1, "first")
    await until(lambda: len(slow.calls) == MOST)
    slow.calls.pop()[1].set_result({"content": []})
    later = calls(here.client(who="client:bob"), 1, "later")
    await until(lambda: len(slow.calls) == MOST)
    assert slow.answer_all() == ["first"] * MOST
    await until(lambda: slow.calls)
    assert slow.answer_all() == ["later"]
    await assert_answered(first + later)


async def test_a_call_waits_for_no_longer_than_the_limit(
    here: BudgetNode, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "WAIT_S", 0.01)
    *first, last = calls(here.client(), MOST + 1)
    route = here.node.calls.dispatch.view(here.client().caller.key).find_tool("slow.read")
    told = here.node.calls.dispatch.guard.explain(route, Principal("local"))
    assert [one.verdict for one in told if one.name == "availability"] == ["later"]
    error = await last.error()
    assert (error["message"], error["data"]["reason"]) == ("tool_degraded", "link_busy")
    assert route is not None and route.link.on_room is None  # nothing of it is kept while the link stays busy
    slow.answer_all()
    await assert_answered(first)
    assert slow.began == MOST


@pytest.mark.parametrize(("limit", "most"), [("calls", 2), ("bytes", 2 * 1500)])
async def test_a_principal_fills_no_more_than_its_share_of_the_queue(
    here: BudgetNode, slow: Slow, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    shared = getattr(here.node.calls.dispatch._queue, limit)
    assert shared.of_each == shared.of_all // availability.SHARES
    monkeypatch.setattr(shared, "of_all", most)
    monkeypatch.setattr(shared, "of_each", most // availability.SHARES)
    greedy = calls(here.client(who="client:ada"), MOST + 2, "ada")
    assert (await greedy[-1].error())["data"]["reason"] == "link_busy"
    other = calls(here.client(who="client:bob"), 1, "bob")
    await until(lambda: len(slow.calls) == MOST)
    served = slow.answer_all()
    await until(lambda: len(slow.calls) == 2)
    served += slow.answer_all()
    assert served == ["ada"] * (MOST + 1) + ["bob"]
    await assert_answered(greedy[:-1] + other)


async def test_a_call_that_is_cancelled_while_it_waits_is_never_sent(here: BudgetNode, slow: Slow) -> None:
    *first, last = calls(here.client(), MOST + 1)
    last.running.cancel("enough")
    await until(lambda: len(slow.calls) == MOST)
    slow.answer_all()
    await assert_answered(first)
    await until(lambda: here.node.calls.dispatch._queue.calls.held == 0)
    assert slow.began == MOST
