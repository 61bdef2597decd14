"""Identities that an authorization server vouches for are full where the room names them, and no others (X-5.1-2)."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.interaction.authority import Authority, authority, issuer_toml, protected_node
from tests.interaction.harness import RunningNode
from tests.interaction.rooms.participant import Bare, ask
from websockets.exceptions import InvalidStatus

ROOMS = """
[[room]]
topic = "garden"
full = ["client:corp/alice@*"]
members = ["client:corp/*", "client:guests/*"]
"""


@pytest.fixture(scope="module")
def issuers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningNode, Authority, Authority]]:
    with contextlib.ExitStack() as stack:
        corp, guests = stack.enter_context(authority()), stack.enter_context(authority())
        second = issuer_toml(guests, name="guests")
        node = stack.enter_context(protected_node(tmp_path_factory.mktemp("identities"), corp, second + ROOMS))
        guests.resource = corp.resource
        yield node, corp, guests


async def privilege(node: RunningNode, secret: str, **query: str) -> str:
    """What the welcome says, or the status that there is none."""
    try:
        one = await Bare.join(node, "garden", secret, **query)
    except InvalidStatus as refused:
        return str(refused.response.status_code)
    participant: dict[str, Any] = (await one.next())["payload"]["participant"]
    await one.leave()
    return str(participant["privilege"])


@pytest.mark.req("X-5.1-2", "X-N-3")
async def test_issuer_and_subject_are_full_and_nobody_who_looks_like_them(
    issuers: tuple[RunningNode, Authority, Authority],
) -> None:
    node, corp, guests = issuers
    assert await privilege(node, corp.token(sub="alice", client_id="desk")) == "full"
    assert await privilege(node, corp.token(sub="bob", client_id="desk")) == "restricted"
    assert await privilege(node, guests.token(sub="alice", client_id="desk")) == "restricted"  # another issuer's
    assert await privilege(node, corp.token(sub="bob", client_id="desk"), name="alice") == "restricted"
    said = {"sub": "bob", "name": "alice", "preferred_username": "alice", "email": "alice@corp", "privilege": "full"}
    assert await privilege(node, corp.token(client_id="desk", **said)) == "restricted"
    claims = {"aud": corp.resource, "sub": "alice", "client_id": "desk", "scope": "read write"}
    for refused in (
        corp.do("unsigned", claims=claims),
        corp.token(sub="alice", client_id="desk", exp=int(time.time()) - 3600),
        corp.token(sub="alice", client_id="desk", iss="https://evil.example"),
        guests.token(sub="alice", client_id="desk", iss=corp.url),  # under the name of the first, with its own key
        corp.token(sub="alice", client_id="desk", aud="https://other.example/mcp"),
    ):
        assert await privilege(node, refused) == "401"
        assert ask(node, "/v0/topics/garden/history", refused)[0] == 401
    named = {"name": "corp/alice@desk", "for": "client"}
    assert "token" not in node.admin("/admin/tokens", "POST", named)  # nobody is given the name of an identity
