"""When an authorization server is asked for its keys, and for its word on a token; with a clock that the test sets."""

import asyncio
import json
from typing import Any

import pytest
from tests.servers.minting import key, mint

from interlock.access.key_sets import BACKOFF_S, FRESH_S, UNKNOWN_KEY_S, IssuerUnavailable, KeyRing
from interlock.access.key_sets import KEPT_S as KEYS_KEPT_S
from interlock.access.oauth import ASKING_MAX, BELIEVED_S, KEPT_S, REFUSED_MAX, Introspector, Verifications
from interlock.access.tokens import KNOWN_MAX, TokenRegistry
from interlock.config.plan import IssuerPlan
from interlock.core.calls.caller import Principal
from interlock.core.store_backends import build_store
from interlock.crypto.jose import InvalidToken, Jwk, Jwt, Reason, read_jwt_untrusted
from interlock.net.fetch import FetchFailed
from interlock.store.tokens import TokenTable

ISSUER = "https://login.example.com"
JWKS = f"{ISSUER}/jwks"


class SetClock:
    def __init__(self) -> None:
        self.time = 1_000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_800_000_000.0 + self.time


class Server:
    """Answers from a table of documents; None is an answer that never comes, a missing one a failure."""

    def __init__(self, *kids: str) -> None:
        self.asked: list[str] = []
        self.documents: dict[str, Any] = {}
        self.waiting: asyncio.Event | None = None
        self.publish(*kids)

    def publish(self, *kids: str) -> None:
        self.documents[JWKS] = {"keys": [key("EdDSA", kid).jwk() for kid in kids]}

    async def get(self, url: str) -> bytes:
        self.asked.append(url)
        found = json.dumps(self.documents[url]).encode() if url in self.documents else None
        if self.waiting is not None:
            await self.waiting.wait()
        if found is None:
            raise FetchFailed("HTTP status 404")
        return found


def token(kid: str) -> Jwt:
    jwt = read_jwt_untrusted(mint(key("EdDSA", kid), {"sub": "alice"}))
    assert isinstance(jwt, Jwt)
    return jwt


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def server() -> Server:
    return Server("a")


@pytest.fixture
def ring(server: Server, clock: SetClock) -> KeyRing:
    return KeyRing("corp", ISSUER, JWKS, server.get, clock)


async def kid(ring: KeyRing, name: str) -> str | Reason | None:
    found = await ring.key_for(token(name))
    return found.reason if isinstance(found, InvalidToken) else found.kid


async def test_keys_are_fetched_once_while_they_are_fresh(ring: KeyRing, server: Server, clock: SetClock) -> None:
    for _ in range(5):
        assert await kid(ring, "a") == "a"
    clock.time += FRESH_S - 1
    assert await kid(ring, "a") == "a"
    assert len(server.asked) == 1
    clock.time += 1
    assert await kid(ring, "a") == "a"
    assert len(server.asked) == 2


async def test_many_waiters_share_one_fetch_and_a_waiter_that_leaves_does_not_end_it(
    ring: KeyRing, server: Server
) -> None:
    server.waiting = asyncio.Event()
    waiting = [asyncio.create_task(ring.key_for(token("a"))) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    server.waiting.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert all(isinstance(one, Jwk) for one in found[1:])
    assert len(server.asked) == 1


async def test_a_withdrawn_key_is_forgotten_with_the_next_fetch(ring: KeyRing, server: Server, clock: SetClock) -> None:
    assert await kid(ring, "a") == "a"
    server.publish("b")
    assert await kid(ring, "a") == "a"
    clock.time += FRESH_S
    assert await kid(ring, "a") is Reason.KEY_UNKNOWN


async def test_made_up_keys_are_looked_for_once_a_second_and_delay_a_rotated_key_no_longer(
    ring: KeyRing, server: Server, clock: SetClock
) -> None:
    assert await kid(ring, "a") == "a"
    server.publish("a", "b")
    assert await kid(ring, "b") == "b"  # at once
    assert len(server.asked) == 2
    looked_for = [asyncio.create_task(kid(ring, name)) for name in ("made-up", "made-up", "another", "c")]
    await asyncio.sleep(0)
    server.publish("a", "b", "c")
    assert len(server.asked) == 2
    clock.time += UNKNOWN_KEY_S
    async with asyncio.timeout(UNKNOWN_KEY_S + 5):
        assert await asyncio.gather(*looked_for) == [*[Reason.KEY_UNKNOWN] * 3, "c"]
    assert len(server.asked) == 3


async def test_a_set_that_was_fetched_before_the_question_does_not_answer_it(
    ring: KeyRing, server: Server, clock: SetClock
) -> None:
    assert await kid(ring, "a") == "a"
    server.waiting = asyncio.Event()
    made_up = asyncio.create_task(kid(ring, "made-up"))
    await asyncio.sleep(0.05)
    assert len(server.asked) == 2
    server.publish("b")
    rotated = asyncio.create_task(kid(ring, "b"))
    await asyncio.sleep(0)
    server.waiting.set()
    assert await made_up is Reason.KEY_UNKNOWN
    clock.time += UNKNOWN_KEY_S
    assert await rotated == "b"


async def test_known_keys_serve_while_the_server_fails_but_not_for_ever(
    ring: KeyRing, server: Server, clock: SetClock
) -> None:
    assert await kid(ring, "a") == "a"
    server.documents.clear()
    clock.time += KEYS_KEPT_S - 1
    assert await kid(ring, "a") == "a"
    clock.time += 1
    with pytest.raises(IssuerUnavailable):
        await kid(ring, "a")


async def test_a_server_that_fails_is_asked_at_growing_distances(
    ring: KeyRing, server: Server, clock: SetClock
) -> None:
    server.documents.clear()
    distances, last = [], clock.time
    for _ in range(3_000):
        before = len(server.asked)
        with pytest.raises(IssuerUnavailable):
            await kid(ring, "a")
        if len(server.asked) > before:
            distances.append(clock.time - last)
            last = clock.time
        clock.time += 0.25
    assert distances[1 : len(BACKOFF_S) + 1] == list(BACKOFF_S)
    assert set(distances[len(BACKOFF_S) :]) == {BACKOFF_S[-1]}
    server.publish("a")
    clock.time += BACKOFF_S[-1]
    assert await kid(ring, "a") == "a"


@pytest.mark.parametrize("document", [{"keys": 7}, [], {"keys": [{}] * 1000}])
async def test_a_document_that_is_no_key_set_leaves_the_last_key_set(
    ring: KeyRing, server: Server, clock: SetClock, document: Any
) -> None:
    assert await kid(ring, "a") == "a"
    server.documents[JWKS] = document
    clock.time += FRESH_S
    assert await kid(ring, "a") == "a"
    assert len(server.asked) == 2


async def test_the_key_set_is_found_in_the_first_good_metadata(server: Server, clock: SetClock) -> None:
    ring = KeyRing("corp", f"{ISSUER}/t", None, server.get, clock)
    first, second, third = (
        f"{ISSUER}/.well-known/oauth-authorization-server/t",
        f"{ISSUER}/.well-known/openid-configuration/t",
        f"{ISSUER}/t/.well-known/openid-configuration",
    )
    server.documents[first] = {"issuer": "https://evil.example", "jwks_uri": "https://evil.example/jwks"}
    server.documents[third] = {"issuer": f"{ISSUER}/t", "jwks_uri": JWKS}
    assert await kid(ring, "a") == "a"
    assert server.asked == [first, second, third, JWKS]


async def test_a_fetch_under_way_ends_with_the_ring(ring: KeyRing, server: Server) -> None:
    server.waiting = asyncio.Event()
    waiting = asyncio.create_task(ring.key_for(token("a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await ring.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


# Introspection


class Judge:
    def __init__(self) -> None:
        self.asked = 0
        self.answer: Any = {"active": False}
        self.waiting: asyncio.Event | None = None

    async def post(self, url: str, headers: bytes, body: bytes) -> bytes:
        self.asked += 1
        if self.waiting is not None:
            await self.waiting.wait()
        if self.answer is None:
            raise FetchFailed("HTTP status 500")
        return json.dumps(self.answer).encode()


def introspector(judge: Judge, clock: SetClock) -> Introspector:
    secret = "s"
    plan = IssuerPlan(
        name="corp", url=ISSUER, introspection_url=f"{ISSUER}/introspect", client_id="c", client_secret=secret
    )
    return Introspector(plan, judge.post, Verifications(), clock)


async def test_a_refused_token_is_remembered_a_while_and_no_more_of_them_than_fit(clock: SetClock) -> None:
    judge = Judge()
    asking = introspector(judge, clock)
    for _ in range(3):
        assert await asking.claims("x", "here") == InvalidToken(Reason.INACTIVE)
    assert judge.asked == 1
    clock.time += BELIEVED_S
    await asking.claims("x", "here")
    assert judge.asked == 2
    for number in range(REFUSED_MAX + 10):
        await asking.claims(f"t{number}", "here")
    assert len(asking._refused) == REFUSED_MAX


async def test_a_server_that_cannot_be_asked_or_answers_oddly_refuses_nobody_for_good(clock: SetClock) -> None:
    judge = Judge()
    asking = introspector(judge, clock)
    judge.answer = None
    with pytest.raises(IssuerUnavailable):
        await asking.claims("x", "here")
    for judge.answer in ([], {"active": "yes"}, {"active": True, "aud": 7}):
        assert await asking.claims("x", "here") == InvalidToken(Reason.UNCLEAR)
    judge.answer = {"active": True, "sub": "alice"}
    found = await asking.claims("x", "here")
    assert not isinstance(found, InvalidToken)
    claims, believed_s = found
    assert claims.exp is not None and claims.exp > clock.wall()
    assert believed_s == BELIEVED_S


async def test_a_confirmed_token_stays_believed_while_its_server_cannot_be_asked_but_not_for_ever(
    clock: SetClock,
) -> None:
    judge = Judge()
    asking = introspector(judge, clock)
    judge.answer = {"active": True, "sub": "alice"}
    first = await asking.claims("x", "here")
    clock.time += BELIEVED_S / 2
    again = await asking.claims("x", "here")
    assert not isinstance(first, InvalidToken) and not isinstance(again, InvalidToken)
    assert (judge.asked, again) == (1, (first[0], BELIEVED_S / 2))
    judge.answer = None
    clock.time += BELIEVED_S / 2
    assert await asking.claims("x", "here") == (first[0], BELIEVED_S)
    clock.time += KEPT_S - BELIEVED_S - 1
    assert await asking.claims("x", "here") == (first[0], 1)
    assert judge.asked == 3  # it was asked, each time
    clock.time += 1
    with pytest.raises(IssuerUnavailable):
        await asking.claims("x", "here")
    judge.answer = {"active": False}
    assert await asking.claims("x", "here") == InvalidToken(Reason.INACTIVE)


@pytest.mark.parametrize(("answer", "reason"), [({"active": False}, Reason.INACTIVE), ([], Reason.UNCLEAR)])
async def test_a_confirmed_token_that_its_server_confirms_no_more_is_refused(
    clock: SetClock, answer: Any, reason: Reason
) -> None:
    judge = Judge()
    asking = introspector(judge, clock)
    judge.answer = {"active": True, "sub": "alice"}
    await asking.claims("x", "here")
    clock.time += BELIEVED_S
    judge.answer = answer
    assert await asking.claims("x", "here") == InvalidToken(reason)


async def test_a_confirmed_token_is_looked_up_however_busy_others_keep_the_server(clock: SetClock) -> None:
    judge = Judge()
    asking = introspector(judge, clock)
    judge.answer = {"active": True, "sub": "alice"}
    await asking.claims("x", "here")
    clock.time += BELIEVED_S
    judge.waiting = asyncio.Event()
    async with asyncio.TaskGroup() as flood:
        made_up = [flood.create_task(asking.claims(f"t{number}", f"source {number}")) for number in range(100)]
        await asyncio.sleep(0.05)
        assert judge.asked == 1 + ASKING_MAX
        again = flood.create_task(asking.claims("x", "here"))
        await asyncio.sleep(0.05)
        assert judge.asked == 1 + ASKING_MAX + 1
        judge.waiting.set()
    assert judge.asked == 1 + len(made_up) + 1
    assert not isinstance(again.result(), InvalidToken)


# What is remembered


async def test_verified_tokens_are_remembered_until_then_and_no_more_of_them_than_fit(
    clock: SetClock, tmp_path: Any
) -> None:
    store = build_store("sqlite", tmp_path)
    book = TokenRegistry(TokenTable(store.kv), clock, (), 30)
    alice = Principal("client:corp/alice@app", issuer=ISSUER)
    now = clock.wall()
    book.remember(b"Bearer x", alice, until=now + 10, ends=now + 20)
    assert book.principal(b"Bearer x") is alice
    assert not book.has_lapsed(alice.name)
    clock.time += 10
    assert book.principal(b"Bearer x") is None
    assert not book.has_lapsed(alice.name)
    clock.time += 10
    assert book.has_lapsed(alice.name)
    book.remember(b"Bearer y", alice, until=now + 90, ends=now + 90)
    assert not book.has_lapsed(alice.name)
    for number in range(KNOWN_MAX):
        book.remember(b"Bearer %d" % number, alice, until=now + 90, ends=now + 30)
    assert book.principal(b"Bearer y") is None
    assert book.principal(b"Bearer %d" % (KNOWN_MAX - 1)) is alice
    assert len(book._known) == KNOWN_MAX
    assert not book.has_lapsed("local") and not book.has_lapsed("client:small")
