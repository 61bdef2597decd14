"""Who may hold a segment at an aggregator: conflicts, ownership, cycles, scopes (MCP-AX 4.2, 5.3, 6.2, 10.2)."""

import itertools
from typing import Any

import pytest

from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.messages import SUBTREE_IDS, AuthorityProof, Deregister, Heartbeat, Register, Registered
from interlock.ax.protocol.registration.codec import SUBTREE_IDS_MAX
from interlock.ax.protocol.registration.registrations import (
    Ended,
    Event,
    Joined,
    LivenessState,
    Peer,
    Policy,
    Registrations,
    SegmentOwner,
    Step,
    SubtreeChanged,
    Vanished,
)
from interlock.wire.refusal import INVALID_PARAMS, UNAVAILABLE, Refusal


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


HERE = uuid(0)
ALICE, BOB = Peer(principal="alice", link="1"), Peer(principal="bob", link="2")


def proved(principal: str, link: str = "9") -> Peer:
    return Peer(principal=principal, link=link, proved=True)


def register(number: int = 1, segment: str = "leaf", **changes: Any) -> Register:
    return Register(subserver_id=uuid(number), segment=segment, **changes)


class Aggregator:
    """The engine with session ids that count up."""

    def __init__(self, **policy: Any) -> None:
        self.engine = Registrations(HERE, "default", Policy(**policy))
        self.count = 0

    def asked(
        self, request: Register, peer: Peer = ALICE, *, owner: SegmentOwner | None = None, now: float = 0.0
    ) -> Step[Registered]:
        self.count += 1
        return self.engine.register(request, peer, session_id=f"s{self.count}", owner=owner, now=now)

    def joined(self, request: Register, peer: Peer = ALICE, **more: Any) -> Registered:
        answer = self.asked(request, peer, **more).answer
        assert isinstance(answer, Registered), answer
        return answer

    def refused(self, request: Register, peer: Peer = ALICE, **more: Any) -> Refusal:
        """Also: that the refusal left no trace."""
        before, below = self.engine.all(), self.engine.subtree_ids()
        step = self.asked(request, peer, **more)
        assert isinstance(step.answer, Refusal), step.answer
        assert step.events == ()
        assert (self.engine.all(), self.engine.subtree_ids()) == (before, below)
        assert self.engine.check(request, peer, more.get("owner")) == step.answer
        if step.answer.number > 32000:
            assert step.answer.details is not None
        return step.answer

    def beat(self, session_id: str, peer: Peer = ALICE, now: float = 0.0, **more: Any) -> Step[int]:
        return self.engine.heartbeat(Heartbeat(session_id=session_id, **more), peer, now=now)

    def bye(self, session_id: str, peer: Peer = ALICE, now: float = 0.0) -> Step[None]:
        return self.engine.deregister(Deregister(session_id=session_id), peer, now=now)

    @property
    def segments(self) -> dict[str, str]:
        return {one.session.segment: one.session.session_id for one in self.engine.all()}


def names(events: tuple[Event, ...]) -> list[str]:
    return [type(event).__name__ for event in events]


def code(answer: object) -> tuple[int, str]:
    assert isinstance(answer, Refusal), answer
    return answer.number, answer.message


CONFLICT = (32110, "namespace_conflict")
CYCLE = (32112, "registration_cycle")
UNVERIFIED = (32114, "authority_unverified")
OWNED = (32115, "authority_conflict")
UNKNOWN = (32116, "session_unknown")
INSECURE = (32119, "link_insecure")


# The answer


@pytest.mark.req("AX-6.2-3")
@pytest.mark.parametrize(("interval", "deadline"), [(5000, 15000), (100, 300), (0, 0)])
def test_the_deadline_is_three_intervals(interval: int, deadline: int) -> None:
    aggregator = Aggregator()
    answer = aggregator.joined(register(heartbeat_interval_ms=interval))
    assert answer.heartbeat_deadline_ms == deadline
    assert aggregator.beat("s1").answer == deadline


@pytest.mark.req("AX-6.2-1")
def test_the_answer_says_who_we_are_and_what_was_granted() -> None:
    step = Aggregator().asked(register(), Peer(principal="a", budget={"max_calls_per_minute": 60}))
    assert step.answer == Registered(
        assigned_segment="leaf",
        session_id="s1",
        heartbeat_deadline_ms=15000,
        budget={"max_calls_per_minute": 60},
        aggregator_id=HERE,
        tree="default",
        auth_scope=AuthScope.READ,
    )
    assert names(step.events) == ["Joined"]


def test_a_proof_and_a_released_session_are_not_kept() -> None:
    aggregator = Aggregator()
    request = register(
        authority="a.example", authority_proof=AuthorityProof(type="jwt", token="t"), released_session="old"
    )
    (event,) = aggregator.asked(request, proved("a")).events
    assert isinstance(event, Joined)
    assert event.session.register == register(authority="a.example")


@pytest.mark.req("AX-10.2-1")
@pytest.mark.parametrize(
    ("allowed", "asked", "granted"),
    [
        ("read", None, "read"),
        ("write", None, "write"),
        ("write", "read", "read"),
        ("read", "admin", "read"),
        ("admin", "write", "write"),
        ("admin", "admin", "admin"),
    ],
)
def test_the_granted_scope_is_the_lower_of_policy_and_wish(allowed: str, asked: str | None, granted: str) -> None:
    wish = None if asked is None else AuthScope(asked)
    answer = Aggregator().joined(register(auth_scope=wish), Peer(principal="a", scope=AuthScope(allowed)))
    assert answer.auth_scope is AuthScope(granted)


@pytest.mark.req("AX-10.2-1")
def test_scopes_are_kept_per_session_and_given_again_with_each() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1, "a"), Peer(principal="a", scope=AuthScope.WRITE))
    aggregator.joined(register(2, "b"), Peer(principal="b"))
    aggregator.joined(register(1, "a", auth_scope=AuthScope.READ), Peer(principal="a", scope=AuthScope.ADMIN))
    scopes = {one.session.segment: one.session.auth_scope for one in aggregator.engine.all()}
    assert scopes == {"a": AuthScope.READ, "b": AuthScope.READ}


# Segments


@pytest.mark.req("AX-4.2-2")
def test_the_first_keeps_the_segment_and_the_second_learns_which() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1))
    refusal = aggregator.refused(register(2), BOB)
    assert code(refusal) == CONFLICT
    assert refusal.details is not None
    assert (refusal.details["segment"], refusal.details["mcpax_error"]) == ("leaf", "namespace_conflict")
    assert "is taken" in refusal.details["detail"]
    assert code(aggregator.refused(register(2), BOB, owner=OWNER)) == CONFLICT  # whoever owns it: somebody has it now
    assert aggregator.beat("s1").answer == 15000
    Aggregator().joined(register(2), BOB)


@pytest.mark.req("AX-4.2-2")
def test_the_same_principal_with_another_subserver_is_a_rival_too() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1))
    assert code(aggregator.refused(register(2))) == CONFLICT


@pytest.mark.parametrize("segment", ["rooms", "names", "tools", "notifications_dropped"])
def test_reserved_segments_cannot_be_registered(segment: str) -> None:
    assert code(Aggregator().refused(register(segment=segment))) == CONFLICT


@pytest.mark.req("AX-4.1-2")
def test_a_segment_outside_the_pattern_is_refused_here_too() -> None:
    assert Aggregator().refused(register(segment="a.b")).number == 32111


def test_segments_of_configured_servers_cannot_be_registered() -> None:
    aggregator = Aggregator()
    aggregator.engine.keep(["jira"])
    assert code(aggregator.refused(register(segment="jira"))) == CONFLICT
    aggregator.engine.keep([])
    aggregator.joined(register(segment="jira"))


@pytest.mark.req("AX-4.2-3")
def test_a_segment_is_free_at_once_after_deregistration() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1))
    step = aggregator.bye("s1")
    assert step.answer is None
    assert names(step.events) == ["Ended", "Vanished"]
    aggregator.joined(register(2), BOB)


def test_there_is_an_end_to_registrations() -> None:
    aggregator = Aggregator(registrations_max=2)
    aggregator.joined(register(1, "a"))
    aggregator.joined(register(2, "b"))
    assert aggregator.refused(register(3, "c")).code == UNAVAILABLE
    aggregator.joined(register(2, "c"))
    assert aggregator.segments == {"a": "s1", "c": "s4"}


# Coming again


@pytest.mark.req("AX-4.2-3")
def test_a_subserver_supersedes_itself_and_its_old_session_is_unknown() -> None:
    aggregator = Aggregator()
    aggregator.joined(register())
    step = aggregator.asked(register(), Peer(principal="alice", link="another"), now=3.0)
    assert isinstance(step.answer, Registered)
    ended, joined = step.events
    assert isinstance(ended, Ended)
    assert isinstance(joined, Joined)
    assert (ended.session.session_id, ended.reason) == ("s1", "superseded")
    assert (joined.session.session_id, joined.replaces) == ("s2", "s1")
    for late in (aggregator.beat("s1", now=4.0), aggregator.bye("s1", now=4.0)):
        assert code(late.answer) == UNKNOWN
        assert late.events == ()
    assert aggregator.engine.link_closed("s1", now=5.0) == ()
    assert aggregator.segments == {"leaf": "s2"}


def test_a_subserver_that_comes_again_under_another_segment_leaves_the_first() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(segment="old"))
    step = aggregator.asked(register(segment="new"))
    assert names(step.events) == ["Ended", "Vanished", "Joined"]
    assert step.events[1] == Vanished(segment="old")
    assert aggregator.segments == {"new": "s2"}


@pytest.mark.req("AX-4.2-3")
def test_a_refused_second_registration_leaves_the_first_alone() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1, "a"))
    aggregator.joined(register(2, "b"), BOB)
    assert code(aggregator.refused(register(1, "b"))) == CONFLICT
    assert aggregator.segments == {"a": "s1", "b": "s2"}


@pytest.mark.req("AX-4.2-3")
@pytest.mark.parametrize("segment", ["leaf", "elsewhere"])
def test_a_subserver_id_under_another_principal_is_refused(segment: str) -> None:
    aggregator = Aggregator()
    aggregator.joined(register())
    assert code(aggregator.refused(register(segment=segment), BOB)) == CONFLICT
    assert code(aggregator.refused(register(segment=segment, authority="a.example"), proved("bob"))) == CONFLICT


@pytest.mark.req("AX-6.2-2")
@pytest.mark.parametrize(
    "peer", [BOB, Peer(principal="alice", link="2"), Peer(principal="bob", link="1")], ids=["both", "link", "principal"]
)
def test_a_session_of_somebody_else_is_unknown_and_untouched(peer: Peer) -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1))
    aggregator.joined(register(2, "other"), peer)
    for step in (aggregator.beat("s1", peer, now=9.0, subtree_ids=(HERE,)), aggregator.bye("s1", peer, now=9.0)):
        assert code(step.answer) == UNKNOWN
    assert aggregator.segments == {"leaf": "s1", "other": "s2"}
    assert aggregator.engine.next_deadline() == 10.0
    assert code(aggregator.beat("s99").answer) == UNKNOWN


@pytest.mark.req("AX-6.3-4")
def test_deregistering_twice_is_unknown() -> None:
    aggregator = Aggregator()
    aggregator.joined(register())
    assert aggregator.bye("s1").answer is None
    assert code(aggregator.bye("s1").answer) == UNKNOWN
    assert code(aggregator.beat("s1").answer) == UNKNOWN


# A lost registrant's segment


def lost(request: Register, peer: Peer = ALICE) -> Aggregator:
    aggregator = Aggregator()
    aggregator.joined(request, peer)
    assert names(aggregator.engine.link_closed("s1", now=1.0)) == ["Lost"]
    return aggregator


@pytest.mark.req("AX-4.2-3")
def test_a_segment_in_grace_is_kept_from_others() -> None:
    aggregator = lost(register(1))
    assert code(aggregator.refused(register(2), BOB, now=2.0)) == CONFLICT
    assert code(aggregator.refused(register(2), now=2.0)) == CONFLICT
    assert code(aggregator.refused(register(1), BOB, now=2.0)) == CONFLICT
    aggregator.joined(register(2), BOB, now=301.0)


@pytest.mark.req("AX-4.2-3")
def test_a_segment_in_grace_returns_to_its_registrant() -> None:
    aggregator = lost(register(1))
    step = aggregator.asked(register(1), now=2.0)
    (joined,) = step.events
    assert isinstance(joined, Joined)
    assert joined.replaces == "s1"
    assert aggregator.segments == {"leaf": "s2"}


@pytest.mark.req("AX-4.2-3")
@pytest.mark.parametrize("number", [1, 2])
def test_a_segment_in_grace_goes_to_who_proves_the_same_authority(number: int) -> None:
    aggregator = lost(register(1, authority="a.example"))
    assert code(aggregator.refused(register(number, authority="a.example"), BOB, now=2.0)) == CONFLICT
    assert code(aggregator.refused(register(number, authority="b.example"), proved("bob"), now=2.0)) == CONFLICT
    assert code(aggregator.refused(register(number), proved("bob"), now=2.0)) == CONFLICT
    step = aggregator.asked(register(number, authority="a.example"), proved("bob"), now=2.0)
    assert names(step.events) == ["Joined"]
    assert aggregator.segments == {"leaf": "s5"}


def test_a_subserver_that_takes_over_a_segment_leaves_its_former_segment() -> None:
    aggregator = lost(register(1, authority="a.example"))
    aggregator.joined(register(2, "mine"), proved("bob"), now=2.0)
    step = aggregator.asked(register(2, authority="a.example"), proved("bob"), now=2.0)
    assert names(step.events) == ["Ended", "Vanished", "Joined"]
    assert aggregator.segments == {"leaf": "s3"}


def test_an_operator_can_cut_the_grace_short_but_not_a_session() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1))
    assert aggregator.engine.release("leaf", now=0.0) == ()
    aggregator.engine.link_closed("s1", now=1.0)
    assert aggregator.engine.release("leaf", now=2.0) == (Vanished(segment="leaf"),)
    assert aggregator.engine.release("leaf", now=2.0) == ()
    aggregator.joined(register(2), BOB, now=2.0)


# Ownership

OWNER = SegmentOwner(segment="leaf", authority="a.example", subserver_id=uuid(1))


@pytest.mark.req("AX-4.2-5")
def test_only_a_proved_claim_becomes_ownership() -> None:
    claim = register(authority="a.example")
    for peer, owner in ((ALICE, None), (proved("alice"), OWNER)):
        (event,) = Aggregator().asked(claim, peer).events
        assert isinstance(event, Joined)
        assert event.owner == owner
    (event,) = Aggregator().asked(register(), proved("child")).events
    assert isinstance(event, Joined)
    assert event.owner is None


@pytest.mark.req("AX-4.2-5", "AX-4.2-6")
def test_an_owned_segment_is_for_its_authority_alone_and_only_with_proof() -> None:
    aggregator = Aggregator()
    assert code(aggregator.refused(register(2), BOB, owner=OWNER)) == OWNED
    assert code(aggregator.refused(register(2), proved("bob"), owner=OWNER)) == OWNED
    assert code(aggregator.refused(register(2, authority="b.example"), proved("bob"), owner=OWNER)) == OWNED
    rogue = aggregator.refused(register(1, authority="a.example"), owner=OWNER)
    assert code(rogue) == UNVERIFIED
    assert rogue.details is not None and rogue.details["reason"] == "absent"
    assert "authority_proof" in str(rogue.details)
    aggregator.joined(register(7, authority="a.example"), proved("whoever"), owner=OWNER)


@pytest.mark.req("AX-4.2-5")
def test_an_owned_segment_in_grace_is_refused_as_owned_and_a_live_segment_as_taken() -> None:
    claim = register(1, authority="a.example")
    aggregator = Aggregator()
    aggregator.joined(claim, proved("alice"))
    assert code(aggregator.refused(register(2), BOB, owner=OWNER)) == CONFLICT
    aggregator.engine.link_closed("s1", now=1.0)
    assert code(aggregator.refused(register(2), BOB, owner=OWNER, now=2.0)) == OWNED


def test_a_node_may_register_only_the_proved() -> None:
    aggregator = Aggregator(require_proof="always")
    assert code(aggregator.refused(register(authority="a.example"))) == UNVERIFIED
    assert code(aggregator.refused(register())) == UNVERIFIED
    aggregator.joined(register(authority="a.example"), proved("alice"))


@pytest.mark.parametrize("require_proof", ["mutable", "never"])
def test_otherwise_a_claim_without_proof_is_registered_as_unproved(require_proof: str) -> None:
    aggregator = Aggregator(require_proof=require_proof)
    aggregator.joined(register(authority="a.example"))
    (standing,) = aggregator.engine.all()
    assert not standing.session.peer.proved


# Cycles


@pytest.mark.req("AX-5.3-3", "AX-5.3-5")
@pytest.mark.parametrize(
    "request_",
    [
        register(0, "self"),
        register(1, subtree_ids=(HERE,)),
        register(1, subtree_ids=(uuid(1), uuid(2), HERE)),
    ],
)
def test_a_registrant_we_are_below_is_refused(request_: Register) -> None:
    aggregator = Aggregator()
    aggregator.joined(register(5, "other", subtree_ids=(uuid(5),)))
    assert code(aggregator.refused(request_)) == CYCLE
    assert aggregator.beat("s1").answer == 15000


@pytest.mark.req("AX-5.3-3", "AX-5.3-5")
@pytest.mark.parametrize("length", [2, 3, 12])
def test_the_last_link_of_a_circle_is_refused_however_long_it_is(length: int) -> None:
    chain = [Registrations(uuid(number), "default", Policy()) for number in range(length)]
    for below, above in itertools.pairwise(chain):
        request = Register(subserver_id=below.aggregator_id, segment="x", subtree_ids=below.subtree_ids())
        assert isinstance(above.register(request, ALICE, session_id="s", now=0.0).answer, Registered)
    top, bottom = chain[-1], chain[0]
    request = Register(subserver_id=top.aggregator_id, segment="x", subtree_ids=top.subtree_ids())
    assert code(bottom.register(request, ALICE, session_id="s", now=0.0).answer) == CYCLE
    assert bottom.all() == ()


@pytest.mark.req("AX-5.3-5")
def test_a_circle_that_closes_later_is_ended_by_the_heartbeat() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1, subtree_ids=(uuid(1),)))
    step = aggregator.beat("s1", subtree_ids=(uuid(1), HERE), now=1.0)
    assert code(step.answer) == CYCLE
    ended, vanished, changed = step.events
    assert isinstance(ended, Ended)
    assert ended.reason == "registration_cycle"
    assert vanished == Vanished(segment="leaf")
    assert changed == SubtreeChanged(subtree_ids=(HERE,))
    assert code(aggregator.beat("s1", now=1.0).answer) == UNKNOWN


ABOVE = uuid(77)


@pytest.mark.req("AX-5.3-3")
@pytest.mark.parametrize(
    "request_", [register(77), register(1, subtree_ids=(uuid(1), ABOVE)), register(77, subtree_ids=(ABOVE,))]
)
def test_a_registrant_that_names_an_aggregator_above_us_is_refused(request_: Register) -> None:
    aggregator = Aggregator()
    aggregator.engine.set_above(frozenset({ABOVE}))
    refused = aggregator.refused(request_)
    assert code(refused) == CYCLE
    assert (refused.details or {})["id"] == ABOVE


@pytest.mark.req("AX-5.3-3")
def test_a_registrant_whose_heartbeat_names_an_aggregator_above_us_is_refused_unless_it_withdraws_in_time() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1, subtree_ids=(uuid(1),)))
    aggregator.engine.set_above(frozenset({ABOVE}))
    step = aggregator.beat("s1", subtree_ids=(uuid(1), ABOVE), now=1.0)
    assert code(step.answer) == CYCLE
    assert names(step.events) == ["CycleClaimed"]
    again = aggregator.beat("s1", now=1.5)  # what was refused is not taken back by saying nothing
    assert code(again.answer) == CYCLE
    assert again.events == ()
    assert aggregator.engine.subtree_ids() == (HERE, uuid(1))
    assert aggregator.beat("s1", subtree_ids=(uuid(1), uuid(2)), now=2.0).answer == 15000
    assert aggregator.engine.end_cycle("s1", now=6.0) == ()
    assert aggregator.engine.subtree_ids() == (HERE, uuid(1), uuid(2))


@pytest.mark.req("AX-5.3-3")
def test_a_registrant_that_keeps_a_false_claim_is_removed_and_the_claim_is_not_repeated_above() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1, subtree_ids=(uuid(1), ABOVE)))
    aggregator.joined(register(2, "other", subtree_ids=(uuid(2),)), BOB)
    claimed, changed = aggregator.engine.set_above(frozenset({ABOVE}))
    assert type(claimed).__name__ == "CycleClaimed"
    assert changed == SubtreeChanged(subtree_ids=(HERE, uuid(1), uuid(2)))
    ended, vanished, after = aggregator.engine.end_cycle("s1", now=5.0)
    assert isinstance(ended, Ended)
    assert ended.reason == "registration_cycle"
    assert vanished == Vanished(segment="leaf")
    assert after == SubtreeChanged(subtree_ids=(HERE, uuid(2)))
    assert aggregator.beat("s2", BOB, now=5.0).answer == 15000


@pytest.mark.req("AX-5.3-5")
def test_a_refusal_says_whether_the_claim_can_be_true() -> None:
    aggregator = Aggregator()
    closing = register(1, subtree_ids=(uuid(1), uuid(2), HERE))
    assert (aggregator.refused(closing).details or {})["is_below"] is False
    aggregator.engine.set_above(frozenset({uuid(2)}))
    assert (aggregator.refused(closing).details or {})["is_below"] is True


def test_two_that_registered_with_each_other_at_once_find_out_with_the_next_beat() -> None:
    a, b = (Registrations(uuid(number), "default", Policy()) for number in (1, 2))
    for one, other in ((a, b), (b, a)):
        request = Register(subserver_id=one.aggregator_id, segment="x", subtree_ids=(one.aggregator_id,))
        assert isinstance(other.register(request, ALICE, session_id="s", now=0.0).answer, Registered)
    beat = Heartbeat(session_id="s", subtree_ids=a.subtree_ids())
    assert code(b.heartbeat(beat, ALICE, now=1.0).answer) == CYCLE
    assert b.subtree_ids() == (uuid(2),)


# The ids below


@pytest.mark.req("AX-5.3-4")
def test_the_ids_below_are_ours_first_and_each_once() -> None:
    aggregator = Aggregator()
    assert aggregator.engine.subtree_ids() == (HERE,)
    aggregator.joined(register(1, "leaf"))
    assert aggregator.engine.subtree_ids() == (HERE,)
    step = aggregator.asked(register(2, "a", subtree_ids=(uuid(2), uuid(3))))
    assert step.events[-1] == SubtreeChanged(subtree_ids=(HERE, uuid(2), uuid(3)))
    aggregator.joined(register(4, "b", subtree_ids=(uuid(4), uuid(3))))
    assert aggregator.engine.subtree_ids() == (HERE, uuid(2), uuid(3), uuid(4))
    aggregator.bye("s2")
    assert set(aggregator.engine.subtree_ids()) == {HERE, uuid(3), uuid(4)}


@pytest.mark.req("AX-5.3-4")
def test_a_changed_set_is_learnt_by_heartbeat_and_the_same_set_changes_nothing() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1, subtree_ids=(uuid(1),)))
    assert aggregator.beat("s1", subtree_ids=(uuid(1),)).events == ()
    assert aggregator.beat("s1").events == ()
    step = aggregator.beat("s1", subtree_ids=(uuid(1), uuid(2)))
    assert step.events == (SubtreeChanged(subtree_ids=(HERE, uuid(1), uuid(2))),)
    assert aggregator.beat("s1").events == ()
    (standing,) = aggregator.engine.all()
    assert standing.subtree_ids == (uuid(1), uuid(2))


def test_superseding_with_the_same_set_changes_nothing_above() -> None:
    aggregator = Aggregator()
    request = register(1, subtree_ids=(uuid(1), uuid(2)))
    aggregator.joined(request)
    assert names(aggregator.asked(request).events) == ["Ended", "Joined"]
    assert aggregator.engine.subtree_ids() == (HERE, uuid(1), uuid(2))


def test_children_cannot_bring_us_above_what_our_parent_takes() -> None:
    aggregator = Aggregator()
    most = tuple(map(uuid, range(1, SUBTREE_IDS_MAX)))
    aggregator.joined(register(1, "a", subtree_ids=most[:-1]))
    refusal = aggregator.refused(register(2, "b", subtree_ids=(most[-1], uuid(99_999))))
    assert refusal.code == INVALID_PARAMS
    assert refusal.details == {"member": SUBTREE_IDS}
    assert aggregator.beat("s1", subtree_ids=most).answer == 15000
    step = aggregator.beat("s1", subtree_ids=(*most, uuid(99_999)), now=9.0)
    assert isinstance(step.answer, Refusal)
    assert step.answer.code == INVALID_PARAMS
    assert aggregator.engine.next_deadline() == 10.0
    assert len(aggregator.engine.subtree_ids()) == SUBTREE_IDS_MAX


def test_ids_that_are_replaced_count_no_more_unless_another_child_has_them_too() -> None:
    aggregator = Aggregator()
    first, second = (tuple(map(uuid, range(start, start + SUBTREE_IDS_MAX - 1))) for start in (1, 100_000))
    aggregator.joined(register(1, "a", subtree_ids=first))
    assert aggregator.beat("s1", subtree_ids=second).answer == 15000
    aggregator.joined(register(1, "a", subtree_ids=first))
    aggregator.joined(register(2, "b", subtree_ids=first[:1]), BOB)
    assert aggregator.refused(register(1, "a", subtree_ids=second)).code == INVALID_PARAMS
    aggregator.joined(register(1, "a", subtree_ids=(*first[:1], *second[1:])))
    assert len(aggregator.engine.subtree_ids()) == SUBTREE_IDS_MAX


def test_a_leaf_may_become_an_aggregator() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(1))
    step = aggregator.beat("s1", subtree_ids=(uuid(1),))
    assert (step.answer, step.events) == (15000, (SubtreeChanged(subtree_ids=(HERE, uuid(1))),))


# Trees and links


def test_a_registrant_of_another_tree_is_refused_and_a_registrant_without_a_tree_is_not() -> None:
    aggregator = Aggregator()
    refusal = aggregator.refused(register(tree="lab"))
    assert (refusal.code, refusal.details) == (INVALID_PARAMS, {"member": "tree", "tree": "default"})
    aggregator.joined(register(tree="default"))
    aggregator.joined(register(tree=None))


@pytest.mark.req("AX-10.4-1")
def test_an_aggregator_over_a_link_that_is_not_secure_is_refused_now_or_when_it_shows() -> None:
    plain = Peer(principal="alice", link="1", secure=False)
    aggregator = Aggregator()
    assert code(aggregator.refused(register(subtree_ids=(uuid(1),)), plain)) == INSECURE
    aggregator.joined(register(), plain)
    step = aggregator.beat("s2", plain, subtree_ids=(uuid(1),))
    assert code(step.answer) == INSECURE
    assert names(step.events) == ["Ended", "Vanished"]
    assert isinstance(step.events[0], Ended)
    assert step.events[0].reason == "link_insecure"
    assert aggregator.engine.all() == ()


@pytest.mark.req("AX-6.3-5")
def test_a_session_the_aggregator_ends_is_gone_with_its_reason() -> None:
    aggregator = Aggregator()
    aggregator.joined(register())
    ended, vanished = aggregator.engine.end("s1", "split_brain", now=1.0)
    assert isinstance(ended, Ended)
    assert (ended.reason, vanished) == ("split_brain", Vanished(segment="leaf"))
    assert aggregator.engine.end("s1", "split_brain", now=1.0) == ()
    assert aggregator.engine.find("leaf") is None


@pytest.mark.req("AX-13.2-2")
def test_a_standing_says_how_a_registration_is_doing() -> None:
    aggregator = Aggregator()
    aggregator.joined(register(heartbeat_interval_ms=0), now=7.0)
    standing = aggregator.engine.find("leaf")
    assert standing is not None
    assert (standing.state, standing.since, standing.retry_after_ms) == (LivenessState.LIVE, 7.0, 5000)
