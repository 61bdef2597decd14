"""A credential that is refused while calls are under way: is each call sent again, or told truly that it was not?"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from tests.support.node_with_clock import SECONDS, ClockedNode, ModernRequest, clocked_node, filled_answers, park, steps

from interlock.credentials.token import Denied, TokenHolder
from interlock.links.connected_link import ServerLink
from interlock.links.keeper import Renewal
from interlock.links.pipes import Trouble, Undelivered

pytestmark = pytest.mark.asyncio(loop_scope="module")
REFUSED = Undelivered(Trouble.UNAUTHORISED, "it answered 401", status=401)
ALSO_REFUSED = Undelivered(Trouble.UNAUTHORISED, "it answered 403", status=403)


class Desk(TokenHolder):
    """Where another token is had, when the test says so."""

    principal = ""

    def __init__(self, *answers: Callable[[], Any]) -> None:
        self._answers = list(answers)

    async def refused(self, *_: Any, **__: Any) -> Denied | None:
        answer: Denied | None = await self._answers.pop(0)()
        return answer


async def granted() -> None:
    return None


async def never() -> None:
    await asyncio.Event().wait()


async def broken() -> None:
    raise RuntimeError("a defect")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClockedNode]:
    async with clocked_node(tmp_path_factory.mktemp("renewal")) as here:
        yield here


@pytest.fixture
def link(here: ClockedNode, monkeypatch: pytest.MonkeyPatch) -> ServerLink:
    link = here.node.calls.keepers["web"].link
    monkeypatch.setattr(link.failed, "can_renew_credential", True)
    return link


def renewed_by(
    here: ClockedNode, link: ServerLink, monkeypatch: pytest.MonkeyPatch, *answers: Callable[[], Any]
) -> Renewal:
    renewal = Renewal(link, Desk(*answers), here.clock, lambda: None)
    monkeypatch.setattr(here.node.calls.keepers["web"], "_renewal", renewal)
    return renewal


def gated(here: ClockedNode, gate: str) -> ModernRequest:
    return here.call("web__interview", steps(gate, {"gate": gate}))


async def opened(here: ClockedNode, gate: str, asked: ModernRequest) -> Any:
    await here.call("web__open", {"gate": gate}).result()
    return await asked.result()


async def settled(renewal: Renewal) -> None:
    assert renewal._task is not None
    async with asyncio.timeout(SECONDS):
        await asyncio.wait((renewal._task,))
    assert renewal._task.exception() is None


async def test_a_parked_call_that_is_refused_is_lost_and_the_others_are_sent_again(
    here: ClockedNode, link: ServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewal = renewed_by(here, link, monkeypatch, granted)
    arguments, said = await park(here, "parked", name="web__interview")
    parked = next(iter(link.waiting.suspended.values()))
    assert parked is not None
    other = gated(here, "beside a parked one")
    link.on_undelivered(parked, REFUSED)
    link.on_undelivered(other.running, REFUSED)
    await settled(renewal)
    assert (await opened(here, "beside a parked one", other))["resultType"] == "complete"
    error = await here.again("web__interview", arguments, said, filled_answers(said)).error()
    assert error["data"]["outcome"] == "unknown"


async def test_a_call_parked_during_a_renewal_is_lost_and_the_others_are_sent_again(
    here: ClockedNode, link: ServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewal = renewed_by(here, link, monkeypatch, granted)
    first, other = gated(here, "parked meanwhile"), gated(here, "beside it")
    link.on_undelivered(first.running, REFUSED)
    link.on_undelivered(other.running, REFUSED)
    first.running.ticket = None
    await settled(renewal)
    assert (await first.error())["data"]["outcome"] == "unknown"
    assert (await opened(here, "beside it", other))["resultType"] == "complete"


async def test_a_renewal_that_fails_leaves_no_call_waiting_and_is_logged(
    here: ClockedNode, link: ServerLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renewal = renewed_by(here, link, monkeypatch, broken)
    asked = gated(here, "broken")
    link.on_undelivered(asked.running, REFUSED)
    await settled(renewal)
    assert (await asked.error())["data"]["outcome"] == "not_sent"
    assert "link web: its credential could not be renewed" in caplog.text


async def test_a_call_that_was_sent_again_is_not_answered_as_unsent_when_the_link_drops(
    here: ClockedNode, link: ServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewal = renewed_by(here, link, monkeypatch, granted, never)
    sent, held = gated(here, "sent again"), gated(here, "still held")
    link.on_undelivered(sent.running, REFUSED)
    link.on_undelivered(held.running, ALSO_REFUSED)
    await here.until(lambda: sent.running.upstream_id in link.in_flight)
    renewal.cancel()
    assert (await held.error())["data"]["outcome"] == "not_sent"
    assert (await opened(here, "sent again", sent))["resultType"] == "complete"
