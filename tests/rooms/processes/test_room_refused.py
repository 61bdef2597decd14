"""Who is refused at a room is on record by name, room and participant; and is told what is wrong with its token."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.rooms.participant import Bare, ask, joined, names, token
from tests.support.node_process import RunningNode, running_node
from websockets.exceptions import InvalidStatus

ROOMS = '[[room]]\ntopic = "garden"\n\n[[room]]\ntopic = "shed"\n'


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("refused"), {}, ROOMS) as started:
        yield started


def refused(node: RunningNode) -> list[tuple[Any, ...]]:
    members = ("who", "method", "reason", "tool", "room", "participant")
    records = node.admin("/admin/audit?limit=1000")["records"]
    return [tuple(record.get(member) for member in members) for record in records if record["verdict"] == "refused"]


async def test_refusals_of_a_removed_participant_are_recorded_for_each_method(node: RunningNode) -> None:
    ((gone, _),) = who = names("full")
    async with joined(node, *who) as (one,):
        node.admin(f"/admin/participants/{gone}/disconnect?topic=garden", "POST", {})
        assert ask(node, "/v0/topics/garden/history", one.secret)[0] == 403
        envelope = {"id": "1", "kind": "chat", "payload": {"text": "again"}}
        assert ask(node, "/v0/topics/garden/messages", one.secret, "POST", envelope)[0] == 403
        assert ask(node, "/v0/ws-ticket", one.secret, "POST", {"topic": "garden"})[0] == 403
        with pytest.raises(InvalidStatus):
            await Bare.join(node, "garden", one.secret)
    place = ("rooms.garden", "garden", gone)
    assert refused(node) == [(f"room:{gone}", method, "removed", *place) for method in ("GET", "POST")]
    stdout = node.cli("audit", "tail", env={"COLUMNS": "200"}).stdout
    assert f"POST rooms.garden {gone}" in stdout


def test_a_token_for_another_room_is_on_record_with_the_room_that_was_tried(node: RunningNode) -> None:
    ((ann, _),) = names("restricted")
    secret = token(node, ann)
    assert ask(node, "/v0/topics/shed/history", secret)[1]["error"] == "wrong_topic"
    for number in range(20):  # of names that are none, none is written
        assert ask(node, f"/v0/topics/none-{number}/history", secret)[1]["error"] == "wrong_topic"
    assert refused(node) == [
        (f"room:{ann}", "GET", "wrong_topic", "rooms.shed", "shed", ann),
        (f"room:{ann}", "GET", "wrong_topic", "", None, None),
    ]


def test_a_token_that_is_no_longer_valid_is_refused_by_name(node: RunningNode) -> None:
    ((ann, _),) = names("restricted")
    secret = token(node, ann)
    node.admin(f"/admin/tokens/{ann}", "DELETE")
    for bearer in (secret, "ilr_" + "0" * 43):
        status, told = ask(node, "/v0/topics/garden/history", bearer)
        assert (status, told["error"]) == (401, "unauthorised")
        assert told["message"].startswith("this token is unknown, over or revoked; ")
    assert refused(node) == [("peer:127.0.0.1", "GET", "unauthorised", "", None, None)]


async def test_a_ticket_that_is_no_longer_valid_is_refused_by_name(node: RunningNode) -> None:
    with pytest.raises(InvalidStatus) as turned:
        await Bare.join(node, "garden", None, ticket="none")
    assert turned.value.response.status_code == 401
    assert b"this ticket is unknown, used, older than 30 s, for another room" in turned.value.response.body
