"""The operator's key behind a passphrase: whose wrong tries make whom wait."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.approvals.inboxes import ManualClock

from interlock.approvals.trust import operator_keys
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.operator_keys import FREE_TRIES, SHARED_TRIES, OperatorKeyService, TooOften
from interlock.config.plan import AnchorPlan
from interlock.crypto import signing as key_files
from interlock.crypto.signing import make_key
from interlock.gate.protocol.proofs import ProofQuestion
from interlock.wire.refusal import Refusal

RIGHT, WRONG = "correct horse", "battery staple"
ASKED = ProofQuestion(confirmation_id="c", call_digest="d", nonce="n", tool="files.delete", aggregator_id="node")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def service(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> OperatorKeyService:
    monkeypatch.setattr(key_files, "SCRYPT_N", 2**4)
    public = make_key(tmp_path / "ada.key", "ed25519", RIGHT.encode())

    async def get(url: str) -> bytes:
        raise AssertionError(url)

    anchors = Anchors((AnchorPlan(name="ada", key=public, approves=("*",)),), clock, get)
    anchors.load()
    return OperatorKeyService(tmp_path, anchors, clock)


async def test_wrong_passphrases_of_one_caller_lock_no_one_else_out(
    service: OperatorKeyService, clock: ManualClock
) -> None:
    for _ in range(FREE_TRIES):
        assert isinstance(await service.sign(ASKED, None, WRONG, by="operator:eve"), Refusal)
    assert await service.sign(ASKED, None, RIGHT, by="operator:eve") == TooOften(5)
    assert isinstance(await service.sign(ASKED, None, RIGHT, by="browser:ada"), str)
    clock.pass_(5)
    assert isinstance(await service.sign(ASKED, None, WRONG, by="operator:eve"), Refusal)
    assert await service.sign(ASKED, None, RIGHT, by="operator:eve") == TooOften(10)


async def test_new_sessions_are_no_new_tries_and_who_knew_it_once_goes_on(service: OperatorKeyService) -> None:
    assert isinstance(await service.sign(ASKED, None, RIGHT, by="browser:ada"), str)
    for number in range(SHARED_TRIES):
        assert isinstance(await service.sign(ASKED, None, WRONG, by=f"browser:{number}"), Refusal)
    assert await service.sign(ASKED, None, WRONG, by="browser:next") == TooOften(5)
    assert isinstance(await service.sign(ASKED, None, RIGHT, by="browser:ada"), str)


async def test_one_key_is_made_or_opened_at_a_time(
    service: OperatorKeyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, going = threading.Event(), threading.Event()

    def make(path: Path, *_: object) -> str:
        begun.set()
        assert going.wait(10)
        return path.stem

    monkeypatch.setattr(operator_keys, "make_key", make)
    first = asyncio.create_task(service.make("bob", RIGHT))
    await asyncio.to_thread(begun.wait, 10)
    begun.clear()
    second = asyncio.create_task(service.make("eve", RIGHT))
    signing = asyncio.create_task(service.sign(ASKED, None, RIGHT, by="browser:ada"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not begun.is_set() and not signing.done()
    going.set()
    assert (await first, await second, type(await signing)) == ("bob", "eve", str)
