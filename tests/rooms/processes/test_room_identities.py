"""Identities that an authorization server or a CA vouches for are full where the room names them (X-5.1-2)."""

import asyncio
import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.processes.test_client_certificates import House, settings
from tests.rooms.participant import Bare, ask, token
from tests.support.authority import Authority, authority, issuer_toml, protected_node
from tests.support.client_certificates import Certificate
from tests.support.node_process import RunningNode, running_node
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidMessage, InvalidStatus

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
        current_participant = await Bare.join(node, "garden", secret, **query)
    except InvalidStatus as refused:
        return str(refused.response.status_code)
    participant: dict[str, Any] = (await current_participant.next())["payload"]["participant"]
    await current_participant.leave()
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
    message = {"sub": "bob", "name": "alice", "preferred_username": "alice", "email": "alice@corp", "privilege": "full"}
    assert await privilege(node, corp.token(client_id="desk", **message)) == "restricted"
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


LISTED = """
[node]
listen = "127.0.0.1:0"
operator_listen = "127.0.0.1:0"
origins = ["https://app.example"]

[[room]]
topic = "garden"
"""


@pytest.mark.req("X-5.2-4")
async def test_a_page_of_a_listed_origin_opens_a_room_and_no_other_does(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, LISTED) as node:
        url, right = f"ws://{node.host}:{node.port}/v0/ws?topic=garden", f"Bearer {token(node, 'page')}"
        for origin in ("https://app.example", f"http://{node.host}:{node.port}", None):
            headers = {"Authorization": right} | ({} if origin is None else {"Origin": origin})
            async with connect(url, additional_headers=headers) as page:
                assert json.loads(await page.recv())["payload"]["event"] == "welcome"
        for origin in ("https://app.example.evil", "http://app.example", "https://app.example:444", "null"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, additional_headers={"Authorization": right, "Origin": origin})
            assert (refused.value.response.status_code, b"bad_origin" in refused.value.response.body) == (403, True)


CERTIFIED = """
[[room]]
topic = "garden"
full = ["certificate:edge01.example.com"]
members = ["certificate:edge02.*", "*"]

[[room]]
topic = "shed"
members = ["*"]
"""


async def come(node: RunningNode, house: House, shown: Certificate | None, topic: str = "garden") -> Bare:
    context = ssl.create_default_context(cafile=str(house.ca.pem))
    if shown is not None:
        context.load_cert_chain(shown.pem, shown.key)
    url = f"wss://127.0.0.1:{node.port}/v0/ws?topic={topic}"
    return Bare(await connect(url, ssl=context, compression=None))


@pytest.mark.req("X-5.1-2", "X-5.1-6")
async def test_a_client_certificate_is_full_where_the_room_names_it(tmp_path: Path) -> None:
    house = House(tmp_path / "certificates")
    sooner = {"interlock.rooms.endpoint:SWEEP_S": 0.0}
    with running_node(
        tmp_path, {}, settings(house, '[auth]\nanonymous = "never"\n') + CERTIFIED, settings=sooner
    ) as node:

        async def welcomed(shown: Certificate | None, topic: str = "garden") -> Any:
            try:
                result = await come(node, house, shown, topic)
            except InvalidStatus as refused:
                return refused.response.status_code
            except (ssl.SSLError, ConnectionError, InvalidMessage):
                return "no connection"
            participant = (await result.next())["payload"]["participant"]
            await result.leave()
            return participant["id"], participant["privilege"]

        edge = "certificate:edge01.example.com"
        assert await welcomed(house.good) == (edge, "full")
        other = house.ca.issue("other", ["edge02.example.com"])
        assert await welcomed(other) == ("certificate:edge02.example.com", "restricted")
        assert await welcomed(house.good, "shed") == 403  # "*" does not mean certificates
        assert await welcomed(house.ca.issue("x", ["edge03.example.com"])) == 401
        assert await welcomed(house.ca.issue("edge01.example.com")) == 401  # a common name is no name
        assert await welcomed(house.revoked) == 401
        assert await welcomed(None) == 401
        for stranger in (house.strange.issue("x", ["edge01.example.com"]), house.refused_by_tls()["expired"]):
            assert await welcomed(stranger) == "no connection"
        there = await come(node, house, house.good)
        await there.next()
        again = house.ca.issue("again", ["edge01.example.com"])  # another certificate of the same name
        context = ssl.create_default_context(cafile=str(house.ca.pem))
        context.load_cert_chain(again.pem, again.key)
        polling = http.client.HTTPSConnection("127.0.0.1", node.port, timeout=10, context=context)
        polling.request("GET", "/v0/topics/garden/history")
        assert polling.getresponse().status == 200
        polling.close()
        await asyncio.to_thread(house.ca.revoke, house.crl, house.revoked, house.good)
        assert await there.closed() == 4401
        assert await welcomed(house.good) == 401
