"""Tokens and secrets that are made and taken away are on record, and `audit tail` says which and for whom."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.participant import joined
from tests.support.node_process import RunningNode, running_node

ROOMS = '[[room]]\ntopic = "garden"\n'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("records"), {}, ROOMS) as started:
        yield started


def about(node: RunningNode, id: str) -> list[dict[str, Any]]:
    return [one for one in node.admin("/admin/audit?limit=1000")["records"] if one.get("token_id") == id]


@pytest.mark.parametrize("audience", ["client", "subserver", "operator"])
def test_a_token_is_on_record_when_it_is_made_and_when_it_is_revoked(node: RunningNode, audience: str) -> None:
    made = node.admin("/admin/tokens", "POST", {"name": f"of-{audience}", "for": audience, "scope": "read"})
    assert node.admin(f"/admin/tokens/{made['id']}", "DELETE") == {"revoked": [made["id"]]}
    records = about(node, made["id"])
    assert [(one["method"], one["verdict"], one["outcome"]) for one in records] == [
        ("tokens/issue", "made", "made"),
        ("tokens/revoke", "revoked", "revoked"),
    ]
    for one in records:
        assert (one["who"], one["via"], one["token_name"]) == ("local", "operator", f"of-{audience}")
        assert (one["token_for"], one["scope"], one["until"]) == (audience, "read", made["expires_at"])
    assert made["token"] not in json.dumps(records)


def test_the_record_names_who_made_it_and_the_room_it_is_for(node: RunningNode) -> None:
    boss = node.admin("/admin/tokens", "POST", {"name": "boss", "for": "operator"})["token"]
    done = node.cli(
        *("access", "token", "--for", "room", "--name", "ann", "--topic", "garden", "--participant", "ann"),
        *("--privilege", "full", "--json", "--url", node.operator_url),
        env={"INTERLOCK_TOKEN": boss},
    )
    made = json.loads(done.stdout)
    (record,) = about(node, made["id"])
    assert (record["who"], record["token_for"]) == ("operator:boss", "room")
    assert (record["room"], record["participant"], record["privilege"]) == ("garden", "ann", "full")
    assert "tokens/issue ann for room garden as ann, full" in node.cli("audit", "tail", env={"COLUMNS": "200"}).stdout


def test_all_tokens_of_a_name_are_on_record_each(node: RunningNode) -> None:
    ids = {node.admin("/admin/tokens", "POST", {"name": "twin", "for": "client"})["id"] for _ in range(2)}
    assert set(node.admin("/admin/tokens/twin", "DELETE")["revoked"]) == ids
    for id in ids:
        assert [one["method"] for one in about(node, id)] == ["tokens/issue", "tokens/revoke"]


async def test_the_tail_names_the_participant_that_was_acted_on(node: RunningNode) -> None:
    async with joined(node, ("bea", "restricted")):
        node.admin("/admin/participants/bea/promote?topic=garden", "POST", {})
        node.admin("/admin/participants/bea/disconnect?topic=garden", "POST", {})
    told = node.cli("audit", "tail", env={"COLUMNS": "200"}).stdout
    assert "rooms/promote rooms.garden bea" in told
    assert "rooms/disconnect rooms.garden bea" in told


def test_a_token_for_a_room_is_made_with_its_address_and_listed_with_what_it_is_good_for(node: RunningNode) -> None:
    words = ("access", "token", "--for", "room", "--name", "cyd", "--participant", "cyd", "--privilege", "full")
    made = node.cli(*words, "--topic", "garden")
    assert f"use: a WebSocket at ws://{node.host}:{node.port}/v0/ws?topic=garden with" in made.stderr
    assert "no room has" not in made.stderr
    (listed,) = [one for one in node.admin("/admin/tokens")["tokens"] if one["name"] == "cyd"]
    assert listed["room"] == {"topic": "garden", "participant": "cyd", "privilege": "full"}
    assert "room garden as cyd, full" in node.cli("access", "list", env={"COLUMNS": "200"}).stdout
    node.admin("/admin/tokens", "POST", {"name": "dan", "for": "client"})
    (listed,) = [one for one in node.admin("/admin/tokens")["tokens"] if one["name"] == "dan"]
    assert "room" not in listed


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_token_for_a_missing_room_is_made_and_the_room_is_reported(node: RunningNode, more: tuple[str, ...]) -> None:
    words = ("access", "token", "--for", "room", "--name", "eve", "--participant", "eve", "--topic", "gardn")
    made = node.cli(*words, *more)
    assert (made.returncode, "ilr_" in made.stdout) == (0, True)
    assert "no room has the topic gardn so far (there is garden); interlock rooms create gardn makes it" in made.stderr


def test_a_secret_is_on_record_when_it_is_kept_and_when_it_is_removed(node: RunningNode) -> None:
    def records() -> list[dict[str, Any]]:
        return [one for one in node.admin("/admin/audit?limit=1000")["records"] if one.get("secret_name") == "api-key"]

    for body in ({}, {"unless_kept": True}):  # the second is kept already, and no change
        node.admin("/admin/secrets", "POST", {"name": "api-key", "value": "hush-hush", **body})
    assert node.admin("/admin/secrets/secret/api-key", "DELETE")["removed"]["name"] == "api-key"
    assert [(one["method"], one["outcome"], one["who"], one["secret_kind"]) for one in records()] == [
        ("secrets/set", "kept", "local", "secret"),
        ("secrets/remove", "removed", "local", "secret"),
    ]
    assert "hush-hush" not in json.dumps(records())
    assert "secrets/remove api-key" in node.cli("audit", "tail", env={"COLUMNS": "200"}).stdout


def test_a_secret_that_is_kept_without_a_node_is_on_record_too(tmp_path: Path) -> None:
    with running_node(tmp_path, {}) as node:
        pass
    assert node.cli("secrets", "set", "api-key", input="hush\n").returncode == 0
    assert node.cli("secrets", "remove", "api-key").returncode == 0
    told = [json.loads(line) for line in node.cli("audit", "export").stdout.splitlines()]
    methods = [one["record"]["method"] if "record" in one else one["method"] for one in told]
    assert methods[-2:] == ["secrets/set", "secrets/remove"]
    assert node.cli("audit", "verify").returncode == 0
