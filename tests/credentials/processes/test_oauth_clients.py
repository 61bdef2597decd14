"""As whom the node goes to an authorization server, and what of it is kept and for how long."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from interlock.config.plan import OAuthPlan
from interlock.credentials.authorization_server import Clients, TokenGrant, TokenStore
from interlock.credentials.protocol.oauth_client import AuthorizationServer, Client
from interlock.credentials.secret_references import SecretResolver, TokenRefused, Unobtainable
from interlock.store.sqlite.secrets import SealedSecrets

ISSUER = "https://login.example.com"
CALLBACK = "http://127.0.0.1:7412/oauth/callback"


class SetClock:
    time = 1000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


class Registrar:
    """An authority that registers whoever comes."""

    def __init__(self) -> None:
        self.registered: list[str] = []
        self.expires_at: float | None = None

    async def register(self, server: AuthorizationServer, redirect_uri: str, name: str) -> Client:
        self.registered.append(redirect_uri)
        number = len(self.registered)
        return Client(
            issuer=server.issuer, client_id=f"c{number}", redirect_uri=redirect_uri, expires_at=self.expires_at
        )


class Room:
    def __init__(self, folder: Path) -> None:
        self.clock = SetClock()
        self.secrets = SealedSecrets(folder)
        self.records = TokenStore(self.secrets, self.clock)
        self.identity: Any = SimpleNamespace(name="Interlock x", callback=CALLBACK, document=None)
        self.clients = Clients(self.records, self.identity, SecretResolver(self.secrets, self.clock))
        self.registrar: Any = Registrar()

    async def find(self, plan: OAuthPlan | None = None, **server: Any) -> Client:
        metadata = AuthorizationServer(**({"issuer": ISSUER, "token_endpoint": f"{ISSUER}/token"} | server))
        return await self.clients.find("crm", plan or OAuthPlan(), metadata, self.registrar)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    room = Room(tmp_path)
    await room.secrets.open()
    yield room
    await room.secrets.close()


@pytest.mark.parametrize(
    ("callback", "words"),
    [(None, "no operator endpoint"), ("http://10.0.0.1:7412/oauth/callback", "plain http"), (CALLBACK, "")],
)
def test_where_people_come_back_to_has_to_be_there_and_safe(tmp_path: Path, callback: str | None, words: str) -> None:
    room = Room(tmp_path)
    room.identity.callback = callback
    if not words:
        assert room.clients.redirect_uri() == CALLBACK
        return
    with pytest.raises(Unobtainable, match=words):
        room.clients.redirect_uri()


async def test_a_registration_is_used_until_it_ends_or_the_endpoint_moves(room: Room) -> None:
    room.registrar.expires_at = 2000.0
    assert (await room.find()).client_id == (await room.find()).client_id == "c1"
    assert (await room.find(issuer="https://other.example")).client_id == "c2"  # what one gave is not shown to another
    room.clock.time = 2000.0
    assert (await room.find()).client_id == "c3"
    room.identity.callback = "https://ops.example/oauth/callback"
    assert (await room.find()).client_id == "c4"
    assert len(room.registrar.registered) == 4


async def test_the_order_is_configured_then_document_then_registered(room: Room) -> None:
    room.identity.document = "https://node.example/oauth/client.json"
    configured = await room.find(OAuthPlan(client_id="mine"), client_id_metadata_document_supported=True)
    assert configured.client_id == "mine"
    by_document = await room.find(client_id_metadata_document_supported=True)
    assert (by_document.client_id, by_document.method) == (room.identity.document, "none")
    assert (await room.find()).client_id == "c1"


async def test_a_configured_client_stays_with_its_first_issuer_unless_another_is_named(room: Room) -> None:
    plan = OAuthPlan(client_id="mine", client_secret="s")
    assert (await room.find(plan)).secret == "s"
    with pytest.raises(Unobtainable, match="belongs to"):
        await room.find(plan, issuer="https://evil.example")
    pinned = msgspec.structs.replace(plan, issuer="https://moved.example")
    assert (await room.find(pinned, issuer="https://moved.example")).issuer == "https://moved.example"
    other = msgspec.structs.replace(plan, client_id="another")
    assert (await room.find(other, issuer="https://evil.example")).client_id == "another"


async def test_a_client_without_a_proof_that_is_taken_says_what_is_taken(room: Room) -> None:
    plan = OAuthPlan(client_id="mine", client_secret="s")
    with pytest.raises(Unobtainable, match="it takes tls_client_auth"):
        await room.find(plan, token_endpoint_auth_methods_supported=("tls_client_auth",))


async def test_a_token_is_renewed_only_by_the_client_it_was_given_to(room: Room) -> None:
    server = AuthorizationServer(issuer=ISSUER, token_endpoint=ISSUER)
    grant = TokenGrant(server="s", resource="r", issuer=ISSUER, client_id="c1", access_token="t")
    with pytest.raises(TokenRefused, match="is no longer registered"):
        await room.clients.of_grant(OAuthPlan(), grant, server)
    await room.find()
    assert (await room.clients.of_grant(OAuthPlan(), grant, server)).client_id == "c1"
    with pytest.raises(TokenRefused, match="is another one now"):
        await room.clients.of_grant(OAuthPlan(client_id="mine"), grant, server)


async def test_a_grant_for_another_server_is_dropped_and_not_given(room: Room) -> None:
    grant = TokenGrant(server="https://one", resource="r", issuer=ISSUER, client_id="c", access_token="t")
    await room.records.keep_grant("crm", "", grant)
    await room.records.keep_grant("crm", "client:ada", grant)
    assert await room.records.find_grant("crm", "", "https://one") == grant
    assert await room.records.find_grant("crm", "", "https://two") is None
    assert await room.records.find_grant("crm", "", "https://one") is None
    assert await room.records.find_grant("crm", "client:ada", "https://one") == grant
    await room.secrets.put("token", "crm client:ada", b"of another version", 0.0)
    assert await room.records.find_grant("crm", "client:ada", "https://one") is None


def test_a_node_without_tokens_does_not_load_what_they_need() -> None:
    program = "import sys, interlock.node.node; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0


async def test_a_secret_that_looks_like_a_placeholder_is_not_filled_again(room: Room) -> None:
    await room.secrets.put("secret", "a", b"${secrets.B}", room.clock.wall())
    await room.secrets.put("secret", "b", b"b", room.clock.wall())
    filled = await SecretResolver(room.secrets, room.clock).text("x ${secrets.A} ${secrets.B} ${other}")
    assert filled == "x ${secrets.B} b ${other}"
