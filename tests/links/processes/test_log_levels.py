"""Does a request log at the level it asks for, from the first line on? Legacy servers that take their time over
logging/setLevel; a level and a call are two requests to them.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.servers.start import serving
from tests.support.asking_server import command
from tests.support.local_node import LOGGED, LegacyClient, running
from tests.support.node_with_clock import ELICIT, META, SECONDS, ClockedNode, ModernRequest, filled_answers, park

from interlock.links import subscriptions

LINKS = ("web", "sse", "pipe")
LEVEL = META + "logLevel"


@pytest_asyncio.fixture
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClockedNode]:
    """Started for each test: a server remembers its level."""
    with serving(command("legacy")) as url:
        servers = f'[servers.web]\nurl = "{url}"\n'
        servers += f'[servers.sse]\nurl = "{url.removesuffix("/mcp")}/sse"\ntransport = "sse"\nshare = "node"\n'
        servers += f'[servers.pipe]\nshare = "node"\ncommand = {json.dumps(command("legacy"))}\n'
        async with running(tmp_path_factory.mktemp("levels"), servers) as (node, clock):
            yield ClockedNode(node, clock)


async def until_waiting(here: ClockedNode, link: str, level: str) -> None:
    """Until the server was told the level and holds its answer back."""
    async with asyncio.timeout(SECONDS):
        while level not in (await here.tally(link))["waiting"]:
            pass


async def hold(here: ClockedNode, link: str, level: str) -> None:
    await here.call(f"{link}__hold", {"level": level}).result()


def log_at(here: ClockedNode, link: str, level: str) -> ModernRequest:
    return here.call(f"{link}__log", {"level": level, "data": level}, meta={LEVEL: level})


def logged(asked: ModernRequest) -> list[Any]:
    return [one["params"]["data"] for one in asked.emitted if one["method"] == LOGGED]


async def open_gate(here: ClockedNode, link: str, name: str) -> None:
    await here.call(f"{link}__open", {"gate": name}).result()


@pytest.mark.parametrize("link", LINKS)
async def test_the_first_request_of_a_level_waits_until_its_server_has_taken_it(here: ClockedNode, link: str) -> None:
    await log_at(here, link, "error").result()
    await hold(here, link, "debug")
    asked = log_at(here, link, "debug")
    await until_waiting(here, link, "debug")
    assert asked.statuses == []
    await open_gate(here, link, "debug")
    await asked.result()
    assert logged(asked) == ["debug"]


async def test_every_request_of_a_level_that_is_being_set_waits(here: ClockedNode) -> None:
    """Over HTTP, where a log line says whose it is."""
    await log_at(here, "web", "error").result()
    await hold(here, "web", "debug")
    requests = [log_at(here, "web", "debug") for _ in range(5)]
    await until_waiting(here, "web", "debug")
    assert [asked.statuses for asked in requests] == [[]] * 5
    await open_gate(here, "web", "debug")
    for asked in requests:
        await asked.result()
    assert [logged(asked) for asked in requests] == [["debug"]] * 5


@pytest.mark.parametrize("link", LINKS)
async def test_a_server_that_does_not_take_a_level_holds_no_request_back_for_long(
    here: ClockedNode, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "TAKEN_S", 0.2)
    await hold(here, link, "debug")
    assert (await log_at(here, link, "debug").result())["content"][0]["text"] == "logged"


async def test_a_request_cancelled_while_it_waits_for_the_level_is_never_sent(here: ClockedNode) -> None:
    await hold(here, "web", "debug")
    arguments = {"label": "never", "steps": []}
    asked = here.call("web__interview", arguments, meta={LEVEL: "debug"})
    await until_waiting(here, "web", "debug")
    asked.running.cancel("gone")
    await open_gate(here, "web", "debug")
    await log_at(here, "web", "debug").result()
    assert "never" not in (await here.tally("web"))["begun"]
    assert here.node.calls.keepers["web"].link.booked == 0


async def test_a_server_lost_while_the_request_waits_gets_it_when_it_is_back(here: ClockedNode) -> None:
    await hold(here, "pipe", "debug")
    asked = log_at(here, "pipe", "debug")
    await until_waiting(here, "pipe", "debug")
    await here.node.calls.keepers["pipe"].restart()
    assert (await asked.result())["content"][0]["text"] == "logged"


@pytest.mark.parametrize("link", LINKS)
async def test_a_legacy_client_is_answered_when_the_servers_have_taken_its_level(here: ClockedNode, link: str) -> None:
    client = LegacyClient(here.node)
    await client.ask("logging/setLevel", {"level": "error"}).result()
    await hold(here, link, "debug")
    asked = client.ask("logging/setLevel", {"level": "debug"})
    await until_waiting(here, link, "debug")
    assert asked.statuses == []
    await open_gate(here, link, "debug")
    assert await asked.result() == {}
    told = client.call(f"{link}__log", {"level": "debug", "data": "now"})
    await told.result()
    await here.until(lambda: logged(told) + logged(client.stream) == ["now"])


async def test_an_unknown_log_level_is_refused_at_once(here: ClockedNode) -> None:
    client = LegacyClient(here.node)
    for level in ("loud", 7, None):
        assert (await client.ask("logging/setLevel", {"level": level}).error())["code"] == -32602, level


@pytest.mark.parametrize("link", LINKS)
async def test_a_retry_that_wants_more_receives_more_after_its_answers(here: ClockedNode, link: str) -> None:
    steps = ({"ask": {"a": ELICIT}}, {"log": "debug"})
    arguments, said = await park(here, "more", *steps, name=f"{link}__interview", meta={LEVEL: "error"})
    await hold(here, link, "debug")
    retry = here.again(f"{link}__interview", arguments, said, filled_answers(said), meta={LEVEL: "debug"})
    await until_waiting(here, link, "debug")
    assert retry.statuses == []
    await open_gate(here, link, "debug")
    assert (await retry.result())["resultType"] == "complete"
    assert logged(retry) == ["in mid-call"]


async def test_a_retry_cancelled_while_its_answers_wait_gives_none(here: ClockedNode) -> None:
    steps = ({"ask": {"a": ELICIT}}, {"log": "debug"})
    arguments, said = await park(here, "cut", *steps, name="web__interview", meta={LEVEL: "error"})
    await hold(here, "web", "debug")
    retry = here.again("web__interview", arguments, said, filled_answers(said), meta={LEVEL: "debug"})
    await until_waiting(here, "web", "debug")
    retry.running.cancel("gone")
    await open_gate(here, "web", "debug")
    async with asyncio.timeout(SECONDS):
        while not (await here.tally("web"))["cancelled"].get("cut"):
            pass
    assert "cut" not in (await here.tally("web"))["finished"]
    assert here.held() == dict.fromkeys(here.held(), 0)


async def test_a_level_goes_with_the_last_client_that_wanted_it(here: ClockedNode) -> None:
    """What a client asked for outlives it in no server, and what others ask for stays."""
    level = here.node.calls.keepers["pipe"].log_level
    loud, calm = LegacyClient(here.node), LegacyClient(here.node)
    await calm.ask("logging/setLevel", {"level": "warning"}).result()
    await loud.ask("logging/setLevel", {"level": "debug"}).result()
    assert level._level == "debug"
    here.node.fronts.legacy.sessions.close(loud.session, "gone")
    assert level._level == "warning"
    here.node.fronts.legacy.sessions.close(calm.session, "gone")
    assert level._level == subscriptions.QUIET


async def test_a_sessions_level_silences_no_request(here: ClockedNode) -> None:
    await log_at(here, "pipe", "debug").result()
    await LegacyClient(here.node).ask("logging/setLevel", {"level": "error"}).result()
    told = log_at(here, "pipe", "debug")
    await told.result()
    assert logged(told) == ["debug"]
