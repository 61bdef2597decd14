"""People who are sent to a page: how long it is good, for whom, and how many there may be."""

from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import pytest

from interlock.credentials import token as token_module
from interlock.credentials.authorization_server import TokenSource
from interlock.credentials.protocol.oauth_client import AuthorizationServer, Client
from interlock.credentials.secret_references import Unobtainable
from interlock.credentials.token import CONSENT_S, ConsentPage, Consents, RequestedConsent, TokenHolder
from interlock.store.ports import Unavailable

ISSUER = "https://login.example.com"
BACK = "http://127.0.0.1:7412/oauth/callback"


class SetClock:
    time = 1000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


class Asker:
    segment, title = "crm", "crm"

    def __init__(self, principal: str = "") -> None:
        self.principal = principal
        self.forms: list[dict[str, str]] = []
        self.accepted: list[RequestedConsent] = []
        self.trouble: Exception | None = None

    async def redeem(self, pending: RequestedConsent, form: dict[str, str]) -> None:
        self.forms.append(form)
        if self.trouble is not None:
            raise self.trouble
        self.accepted.append(pending)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def desk(clock: SetClock) -> Consents:
    return Consents(clock)


def found(**changes: Any) -> TokenSource:
    usual: dict[str, Any] = {
        "issuer": ISSUER,
        "token_endpoint": f"{ISSUER}/token",
        "authorization_endpoint": f"{ISSUER}/authorize",
        "code_challenge_methods_supported": ("S256",),
    }
    return TokenSource(resource="https://mcp.example.com/mcp", server=AuthorizationServer(**(usual | changes)))


def ask(desk: Consents, asker: Asker, *scopes: str, **changes: Any) -> RequestedConsent:
    client = Client(issuer=ISSUER, client_id="node")
    return desk.ask(cast(TokenHolder, asker), found(**changes), client, BACK, scopes)


def state(consent: RequestedConsent) -> str:
    return dict(parse_qsl(urlsplit(consent.url).query))["state"]


async def come_back(desk: Consents, consent: RequestedConsent, **more: str) -> ConsentPage:
    return (await desk.finish([("state", state(consent)), ("code", "c"), *more.items()]))[0]


@pytest.mark.req("AIP-30.auth-3")
async def test_a_page_is_good_until_it_expires(desk: Consents, clock: SetClock) -> None:
    assert CONSENT_S == 600
    asker = Asker()
    consent = ask(desk, asker)
    clock.time += CONSENT_S - 0.1
    assert (await come_back(desk, consent)).status == 200
    late = ask(desk, asker)
    clock.time += CONSENT_S
    assert (await come_back(desk, late)).status == 400
    assert len(asker.accepted) == 1


async def test_a_repeated_consent_request_gets_the_same_page_and_a_wider_request_another(
    desk: Consents, clock: SetClock
) -> None:
    asker, other = Asker(), Asker()
    first = ask(desk, asker, "a")
    assert ask(desk, asker, "a") is first
    assert ask(desk, other, "a") is not first
    wider = ask(desk, asker, "a", "b")
    assert (await come_back(desk, first)).status == 400  # the newest page is the one that counts
    clock.time += CONSENT_S - 30
    assert ask(desk, asker, "a", "b") is not wider  # too little time is left of it


async def test_one_persons_page_gives_a_token_to_nobody_else(desk: Consents) -> None:
    ada, bob = Asker("client:ada"), Asker("client:bob")
    for_ada, for_bob = ask(desk, ada), ask(desk, bob)
    assert (await come_back(desk, for_bob)).status == 200
    assert (len(ada.accepted), len(bob.accepted)) == (0, 1)
    assert ada.forms == [] and for_ada.id != for_bob.id


async def test_the_verifier_belongs_to_the_page(desk: Consents) -> None:
    one, two = Asker(), Asker()
    for asker in (one, two):
        await come_back(desk, ask(desk, asker))
    assert one.forms[0]["code_verifier"] != two.forms[0]["code_verifier"]
    assert len(one.forms[0]["code_verifier"]) >= 43  # RFC 7636 4.1


@pytest.mark.parametrize(
    ("trouble", "status"), [(Unobtainable("no"), 502), (Unavailable("disk full at /x"), 503), (None, 200)]
)
async def test_errors_on_the_way_are_shown_on_the_page(desk: Consents, trouble: Exception | None, status: int) -> None:
    asker = Asker()
    asker.trouble = trouble
    page = await come_back(desk, ask(desk, asker))
    assert page.status == status and "/x" not in page.text


async def test_pages_nobody_opens_make_room_for_others(
    desk: Consents, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_module, "PENDING_MAX", 3)
    consents = [ask(desk, Asker()) for _ in range(5)]
    assert len(desk._pending) == len(desk._hashes) == 3
    assert (await come_back(desk, consents[0])).status == 400
    assert (await come_back(desk, consents[4])).status == 200
    clock.time += CONSENT_S
    ask(desk, Asker())
    assert len(desk._pending) == len(desk._hashes) == 1


@pytest.mark.parametrize(
    "changes", [{"authorization_endpoint": None}, {"code_challenge_methods_supported": None}, {}], ids=str
)
def test_nobody_is_sent_where_they_would_not_be_safe(desk: Consents, changes: dict[str, Any]) -> None:
    if not changes:
        ask(desk, Asker())
        return
    with pytest.raises(Unobtainable):
        ask(desk, Asker(), **changes)
    assert not desk._pending
