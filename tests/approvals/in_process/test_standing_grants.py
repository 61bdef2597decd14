"""Standing grants on a real store: their ends by either clock, writers that race, what services may not sign."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.in_process.test_ax_judge import ADA, BOB, OWN_ID, PLANS, SERVICE, Service
from tests.approvals.inboxes import ManualClock, StoredInbox, stored_inbox
from tests.servers.minting import SigningKey, mint

from interlock.approvals.grant_terms import CALLS_MAX, LIFETIME_S_MAX, grant_digest
from interlock.approvals.grants_api import GrantRule, GrantTerms
from interlock.approvals.standing_grants import StandingGrants, StoredGrant, Uncovered
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.gate.protocol.held_call import Presented
from interlock.wire.refusal import Refusal

TOOL, DIGEST, WHO = "files.delete", "ab" * 32, "client:alice"
ANY = (GrantRule(at="/n", kind="any"),)


class Granting:
    """Grants on a store. A second one on the same store is another process, or the next start."""

    def __init__(self, desk: StoredInbox, clock: ManualClock, plans: Any = PLANS) -> None:
        self.clock = clock
        self.anchors = Anchors(plans, clock, Service().get)
        self.anchors.load()
        self.judge = ProofVerifier(desk.store.kv, clock, self.anchors)
        self.grants = StandingGrants(desk.store.kv, clock, self.judge, desk.recorder, aggregator_id=OWN_ID)

    async def open(self) -> StandingGrants:
        await self.judge.open()
        await self.grants.open()
        return self.grants

    def terms(self, **changes: Any) -> GrantTerms:
        now = int(self.clock.wall())
        members = {"calls": None, "until": now + 600, "rules": ANY, "tool": TOOL, "issued_at": now, **changes}
        return GrantTerms(id=str(uuid.uuid4()), aggregator_id=OWN_ID, tool_digest=DIGEST, who=WHO, **members)

    def proof(self, grant: GrantTerms, signer: SigningKey = ADA) -> Presented:
        now = self.clock.wall()
        claims = {
            **{"iss": "x", "aud": OWN_ID, "jti": str(uuid.uuid4()), "iat": now, "exp": now + 120},
            **{"confirmation_id": grant.id, "call_digest": grant_digest(grant)},
        }
        return Presented(token=mint(signer, claims, typ="mcpax-confirm+jwt"))

    async def signed(self, signer: SigningKey = ADA, **changes: Any) -> StoredGrant | Refusal:
        grant = self.terms(**changes)
        return await self.grants.sign(grant, self.proof(grant, signer), by="operator:ada")

    def find(self, arguments: Any = None, digest: str = DIGEST, who: str = WHO, tool: str = TOOL) -> Any:
        return self.grants.find(tool, digest, who, {} if arguments is None else arguments)


@contextlib.asynccontextmanager
async def granting(folder: Path) -> AsyncIterator[tuple[Granting, StoredInbox]]:
    clock = ManualClock()
    async with stored_inbox(folder, clock) as desk:
        made = Granting(desk, clock)
        await made.open()
        yield made, desk


def got(answer: Any) -> StoredGrant:
    assert isinstance(answer, StoredGrant), answer
    return answer


async def test_a_grant_ends_by_whichever_clock_says_so_first(tmp_path: Path) -> None:
    async with granting(tmp_path) as (here, _):
        grant = got(await here.signed()).grant
        here.clock.pass_(599)
        assert isinstance(here.find(), StoredGrant)
        here.clock.wall_at -= 10_000  # somebody sets the clock back
        assert isinstance(here.find(), StoredGrant)
        here.clock.at += 1
        assert here.find() == Uncovered(grant.id, "has expired")
        assert isinstance(await here.grants.use(grant.id), Refusal)
        here.clock.at -= 1
        here.clock.wall_at += 10_001  # a machine that slept
        assert here.find() == Uncovered(grant.id, "has expired")


async def test_two_processes_count_the_same_uses(tmp_path: Path) -> None:
    async with granting(tmp_path) as (here, desk):
        grant = got(await here.signed(calls=5, until=None)).grant
        there = Granting(desk, here.clock)
        await there.open()
        uses = [one.grants.use(grant.id) for _ in range(6) for one in (here, there)]
        done = await asyncio.gather(*uses)
        assert sum(isinstance(one, StoredGrant) for one in done) == 5
        later = await Granting(desk, here.clock).open()
        assert (got(later.get(grant.id)).used, later.find_end_reason(grant.id)) == (5, "is used up (5 calls)")
        assert isinstance(await there.grants.use(grant.id), Refusal)


async def test_a_revocation_in_another_process_ends_it_here_at_the_next_use(tmp_path: Path) -> None:
    async with granting(tmp_path) as (here, desk):
        grant = got(await here.signed(calls=5)).grant
        there = Granting(desk, here.clock)
        await (await there.open()).revoke(grant.id, by="operator:bob")
        assert isinstance(here.find(), StoredGrant)  # not seen yet
        assert isinstance(await here.grants.use(grant.id), Refusal)
        assert here.find() == Uncovered(grant.id, "was revoked by operator:bob")


async def test_of_several_grants_the_one_that_ends_first_is_used(tmp_path: Path) -> None:
    async with granting(tmp_path) as (here, _):
        now = int(here.clock.wall())
        later = got(await here.signed(until=now + 900)).grant
        soon = got(await here.signed(until=now + 60, calls=9)).grant
        assert here.find().grant.id == soon.id
        assert here.find(digest="cd" * 32) == Uncovered(soon.id, "is for another definition of the tool")
        here.clock.pass_(60)
        assert here.find().grant.id == later.id
        assert here.find({"other": 1}).why == "does not cover it: /other is not among its arguments"
        here.clock.pass_(900)
        assert here.find() == Uncovered(soon.id, "has expired")  # the newest
        assert here.find(who="client:alice#mark") is None
        assert here.find(who="client:Alice") is None
        assert here.find(tool="files.delete2") is None


@pytest.mark.parametrize("signer", [SERVICE, BOB])
async def test_only_a_person_who_may_approve_the_tool_signs(tmp_path: Path, signer: SigningKey) -> None:
    async with granting(tmp_path) as (here, _):
        refused = await here.signed(signer)
        assert isinstance(refused, Refusal)
        assert refused.message == "proof_invalid"
        assert here.find() is None


@pytest.mark.parametrize(
    "changes",
    [
        {"calls": None, "until": None},
        {"calls": 0},
        {"calls": CALLS_MAX + 1},
        {"until": 0},
        {"until": 1_700_000_000 + LIFETIME_S_MAX + 1},
        {"issued_at": 1_700_000_000 - 301},
        {"issued_at": 1_700_000_000 + 301},
        {"reason": "x" * 1001},
        {"rules": (*ANY, *ANY)},
    ],
)
async def test_a_grant_without_a_valid_limit_is_refused(tmp_path: Path, changes: Any) -> None:
    async with granting(tmp_path) as (here, _):
        refused = await here.signed(**changes)
        assert isinstance(refused, Refusal)
        assert refused.message == "bad_grant"
        assert here.grants.all() == []


@pytest.mark.parametrize("changed", ["calls", "who", "tool_digest", "rules", "until", "token", "anchor"])
async def test_a_grant_changed_on_disk_grants_nothing(tmp_path: Path, changed: str) -> None:
    async with granting(tmp_path) as (here, desk):
        grant = got(await here.signed(calls=5)).grant
        entry = await desk.store.kv.get("grants", grant.id, here.clock.wall())
        assert entry is not None
        stored = json.loads(entry.value)
        if changed == "token":
            stored["token"] = here.proof(here.terms()).token
        elif changed == "anchor":
            stored["proof"]["anchor"] = "bob"
        else:
            new = {
                "calls": 9,
                "who": "client:eve",
                "tool_digest": "00" * 32,
                "until": grant.until + 60 if grant.until else 0,
            }
            stored["grant"][changed] = new.get(changed, [{"at": "", "kind": "any", "value": None, "each": False}])
        await desk.store.kv.put("grants", grant.id, json.dumps(stored).encode(), here.clock.wall())
        later = await Granting(desk, here.clock).open()
        assert str(later.find_end_reason(grant.id)).startswith("is void")
        assert isinstance(await later.use(grant.id), Refusal)


async def test_stored_grants_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    async with granting(tmp_path) as (here, desk):
        grant = got(await here.signed(calls=5)).grant
        await desk.store.kv.put("grants", "odd", b"{", here.clock.wall())
        later = await Granting(desk, here.clock).open()
        assert [one.grant.id for one in later.all()] == [grant.id]


async def test_a_revoked_key_voids_its_grants_for_good(tmp_path: Path) -> None:
    async with granting(tmp_path) as (here, desk):
        grant = got(await here.signed(calls=5)).grant
        await here.judge.revoke("ada")
        assert str(here.grants.find_end_reason(grant.id)).startswith("is void: who approved it may no longer")
        (voided,) = await here.grants.void_unfounded()
        assert voided.ended is not None
        later = await Granting(desk, here.clock).open()
        assert str(later.find_end_reason(grant.id)).startswith("is void")
        assert [one["verdict"] for one in await desk.records() if one.get("grant") == grant.id] == ["signed", "ended"]


async def test_a_grant_that_another_process_let_go_is_unknown_and_no_failure(tmp_path: Path) -> None:
    async with granting(tmp_path) as (here, desk):
        first, second = got(await here.signed(calls=5)).grant, got(await here.signed(calls=5)).grant
        for one in (first, second):
            await desk.store.kv.delete("grants", one.id)
        refused = await here.grants.revoke(first.id, by="operator:bob")
        assert isinstance(refused, Refusal) and refused.message == "confirmation_unknown"
        await here.anchors.replan(PLANS[1:])
        assert await here.grants.void_unfounded() == []
        assert here.grants.all() == []
