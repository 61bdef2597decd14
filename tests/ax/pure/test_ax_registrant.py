"""The registrant's engine: no event loop, time is a number."""

import itertools
from typing import Any

import pytest

from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.messages import Deregister, Heartbeat, Register, Registered
from interlock.ax.protocol.registration import registrant
from interlock.ax.protocol.registration.registrant import (
    TABLE,
    CycleReported,
    DialParent,
    Failed,
    Hangup,
    Ignored,
    JoinedParent,
    Left,
    OutOfOrder,
    Registrant,
    RegistrantInput,
    RegistrantState,
    Send,
    Steps,
    retry_in_s,
)
from interlock.wire.refusal import (
    INVALID_PARAMS,
    NAMESPACE_CONFLICT,
    REGISTRATION_CYCLE,
    SESSION_UNKNOWN,
    SPLIT_BRAIN,
    RefusalCode,
    UpstreamError,
    ax_refusal,
)

OURS = "550e8400-e29b-41d4-a716-446655440000"
FIRST = "11111111-1111-4111-8111-111111111111"
SECOND = "22222222-2222-4222-8222-222222222222"


def register(interval_ms: int = 1000, subtree_ids: tuple[str, ...] | None = None) -> Register:
    return Register(subserver_id=OURS, segment="greenhouse", heartbeat_interval_ms=interval_ms, subtree_ids=subtree_ids)


def answer(session: str = "s1", aggregator: str = FIRST, deadline_ms: int = 3000) -> Registered:
    return Registered(
        assigned_segment="greenhouse",
        session_id=session,
        heartbeat_deadline_ms=deadline_ms,
        budget={},
        aggregator_id=aggregator,
        tree="default",
        auth_scope=AuthScope.READ,
    )


def sent(steps: Steps) -> Send:
    found = [step for step in steps if isinstance(step, Send)]
    assert len(found) == 1, steps
    return found[0]


def failure(steps: Steps) -> Failed:
    found = [step for step in steps if isinstance(step, Failed)]
    assert len(found) == 1, steps
    return found[0]


def joined(parents: int = 1, now: float = 0.0, interval_ms: int = 1000) -> Registrant:
    """Registered with the first parent at `now`."""
    engine = Registrant(register(interval_ms), parents)
    engine.start(now)
    asked = sent(engine.opened(now))
    assert engine.granted(asked.id, answer(), now) == (JoinedParent(parent=0, registered=answer()),)
    return engine


def settled(parents: int = 1) -> Registrant:
    """Registered at 0, first heartbeat sent and answered at 0.5."""
    engine = joined(parents)
    assert engine.answered(sent(engine.on_deadline(0.5, 0.0)).id) == ()
    return engine


def refusal(code: RefusalCode, **details: Any) -> UpstreamError:
    """Return what a parent that refuses with this code sends."""
    made = ax_refusal(code, "because", **details)
    return UpstreamError(made.number, made.message, made.details)


@pytest.mark.parametrize(("state", "input"), [*itertools.product(RegistrantState, RegistrantInput)])
def test_a_move_is_in_the_table_or_a_violation(state: RegistrantState, input: RegistrantInput) -> None:
    engine = Registrant(register(), 1)
    engine.state = state
    if (state, input) in TABLE:
        engine._move(input)
        assert engine.state is TABLE[state, input]
    else:
        with pytest.raises(OutOfOrder):
            engine._move(input)
        assert engine.state is state


def test_every_state_is_reached_and_only_the_end_is_not_left() -> None:
    assert {following for _, following in TABLE.items()} | {RegistrantState.IDLE} == set(RegistrantState)
    assert {state for (state, input), following in TABLE.items() if following is not state} == set(RegistrantState) - {
        RegistrantState.CLOSED
    }


@pytest.mark.req("AX-6.3-1")
def test_a_registrant_dials_registers_and_has_a_parent() -> None:
    engine = Registrant(register(), 1)
    assert engine.start(0.0) == (DialParent(parent=0),)
    asked = sent(engine.opened(0.1))
    assert isinstance(asked.message, Register)
    assert asked.message.parent_id is None
    assert asked.message.released_session is None
    assert engine.granted(asked.id, answer(), 0.2) == (JoinedParent(parent=0, registered=answer()),)
    assert (engine.state, engine.parent_id) == (RegistrantState.REGISTERED, FIRST)


@pytest.mark.req("AX-13.4-4")
def test_the_query_for_the_parent_is_answered_with_the_parent_only_while_there_is_a_parent() -> None:
    engine = joined()
    assert (engine.parent_asked().subserver_id, engine.parent_asked().parent_id) == (OURS, FIRST)
    engine.lost("it closed the link", 1.0, 0.0)
    assert engine.parent_asked().parent_id is None


@pytest.mark.req("AX-6.3-1")
def test_a_hundred_intervals_have_a_heartbeat_at_every_half_even_when_every_call_comes_late() -> None:
    engine = joined(parents=2)
    beats, now = [0.0], 0.0
    for turn in range(200):
        due = engine.next_deadline()
        assert due is not None
        assert engine.on_deadline(due - 0.01, 0.0) == ()
        late = 0.499 if turn % 7 == 0 else 0.01 * (turn % 2)  # a stalled loop of almost half an interval
        now = due + late
        beat = sent(engine.on_deadline(now, 0.0))
        assert beat.message == Heartbeat(session_id="s1")
        engine.answered(beat.id)
        beats.append(now)
    assert max(later - earlier for earlier, later in itertools.pairwise(beats)) < 1.0


def test_the_registrant_does_nothing_before_its_time() -> None:
    engine = joined()
    assert engine.next_deadline() == 0.5
    assert engine.on_deadline(0.499, 0.0) == ()
    assert isinstance(sent(engine.on_deadline(0.5, 0.0)).message, Heartbeat)


def test_a_parent_may_ask_for_more_heartbeats_but_not_for_fewer_than_promised_nor_for_a_flood() -> None:
    for deadline_ms, half in [(3000, 0.5), (600, 0.1), (60000, 0.5), (0, 0.5), (1, 0.05), (-5, 0.5)]:
        engine = Registrant(register(1000), 1)
        engine.start(0.0)
        engine.granted(sent(engine.opened(0.0)).id, answer(deadline_ms=deadline_ms), 0.0)
        assert engine.next_deadline() == pytest.approx(half)


@pytest.mark.req("AX-6.3-3")
def test_without_an_interval_there_is_no_heartbeat() -> None:
    engine = joined(interval_ms=0)
    assert engine.on_deadline(registrant.SETTLED_S, 0.0) == ()
    assert engine.next_deadline() is None
    assert engine.on_deadline(3600.0, 0.0) == ()
    assert engine.state is RegistrantState.REGISTERED


@pytest.mark.req("AX-13.3-3")
def test_with_a_backup_one_heartbeat_unanswered_for_one_interval_is_the_loss_of_the_parent() -> None:
    engine = settled(parents=2)
    sent(engine.on_deadline(1.0, 0.0))
    sent(engine.on_deadline(1.5, 0.0))
    assert engine.on_deadline(1.999, 0.0) == ()
    steps = engine.on_deadline(2.0, 0.0)
    assert steps[0] == Left(parent=0, reason="it does not answer heartbeats")
    assert isinstance(steps[1], Hangup)
    assert steps[-1] == DialParent(parent=1)
    assert engine.state is RegistrantState.MOVING


def test_without_a_backup_a_silent_parent_is_kept_and_costs_no_memory() -> None:
    engine = joined()
    now = 0.0
    for _ in range(1000):
        now = engine.next_deadline() or 0.0
        sent(engine.on_deadline(now, 0.0))
    assert engine.state is RegistrantState.REGISTERED
    assert len(engine._asked) <= registrant.BEATS_KEPT + 1


@pytest.mark.req("AX-13.3-3")
def test_our_own_stall_is_not_taken_for_the_parents_silence() -> None:
    engine = settled(parents=2)
    beat = sent(engine.on_deadline(1.0, 0.0))
    late = sent(engine.on_deadline(9.0, 0.0))  # the answer to the first lies unread
    assert engine.state is RegistrantState.REGISTERED
    engine.answered(beat.id)
    assert engine.on_deadline(9.49, 0.0) == ()
    assert engine.answered(late.id) == ()
    assert engine.state is RegistrantState.REGISTERED


def test_a_late_answer_to_an_earlier_heartbeat_does_not_answer_the_later_heartbeat() -> None:
    engine = settled(parents=2)
    early = sent(engine.on_deadline(1.0, 0.0))
    sent(engine.on_deadline(1.5, 0.0))
    engine.answered(early.id)
    sent(engine.on_deadline(2.0, 0.0))
    assert engine.on_deadline(2.5, 0.0)[-1] == DialParent(parent=1)


@pytest.mark.req("AX-13.3-2")
def test_a_closed_link_moves_at_once_with_the_same_identity_and_gives_up_the_old_session() -> None:
    engine = settled(parents=2)
    assert engine.lost("it closed the link", 0.7, 0.0)[-1] == DialParent(parent=1)
    asked = sent(engine.opened(0.8)).message
    assert isinstance(asked, Register)
    assert (asked.subserver_id, asked.segment) == (OURS, "greenhouse")
    assert (asked.released_session, asked.parent_id) == ("s1", None)


@pytest.mark.req("AX-13.3-2")
def test_the_backup_is_kept_when_the_first_parent_returns() -> None:
    engine = settled(parents=2)
    engine.lost("it closed the link", 0.7, 0.0)
    engine.granted(sent(engine.opened(0.8)).id, answer("s2", SECOND), 0.8)
    for _ in range(100):
        beat = sent(engine.on_deadline(engine.next_deadline() or 0.0, 0.0))
        assert beat.message == Heartbeat(session_id="s2")
        engine.answered(beat.id)
    assert (engine.parent, engine.parent_id) == (1, SECOND)


@pytest.mark.req("AX-13.3-2")
def test_back_off_grows_from_a_fifth_of_a_second_to_ten_and_is_jittered() -> None:
    for failures in range(1, 100):
        assert retry_in_s(failures, 0.0) == pytest.approx(0.2)
        assert 0.2 <= retry_in_s(failures, 0.5) <= retry_in_s(failures, 1.0) <= 10.0
    assert [retry_in_s(n, 1.0) for n in (1, 2, 3, 4, 5, 6)] == pytest.approx([0.4, 0.8, 1.6, 3.2, 6.4, 10.0])
    assert retry_in_s(1, 7.0) == retry_in_s(1, 1.0)


@pytest.mark.req("AX-13.3-2")
def test_with_all_parents_down_each_is_retried_in_its_own_time_and_never_two_at_once() -> None:
    engine = Registrant(register(), 2)
    dialled: list[tuple[float, int]] = []
    now, steps = 0.0, engine.start(0.0)
    while now < 120.0:
        for step in steps:
            if isinstance(step, DialParent):
                dialled.append((now, step.parent))
        if engine.state is RegistrantState.IDLE:
            now = engine.next_deadline() or now
            steps = engine.on_deadline(now, 1.0)
        else:
            steps = engine.lost("refused", now, 1.0)
    for parent in (0, 1):
        times = [at for at, which in dialled if which == parent]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert gaps[:3] == pytest.approx([0.4, 0.8, 1.6])
        assert max(gaps) <= 10.001
        assert min(gaps) >= 0.2


def test_parents_that_grant_and_hang_up_are_not_dialled_in_a_circle() -> None:
    engine = Registrant(register(), 2)
    now, dials, steps = 0.0, 0, engine.start(0.0)
    while now < 60.0:
        dials += sum(isinstance(step, DialParent) for step in steps)
        if engine.state is RegistrantState.IDLE:
            now = engine.next_deadline() or now
            steps = engine.on_deadline(now, 1.0)
        else:
            engine.granted(sent(engine.opened(now)).id, answer(), now)
            steps = engine.lost("it closed the link", now, 1.0)
    assert dials < 30


def test_success_makes_the_next_failure_the_first_again() -> None:
    engine = Registrant(register(), 1)
    engine.start(0.0)
    for _ in range(8):
        engine.lost("refused", engine.next_deadline() or 0.0, 1.0)
        engine.on_deadline(engine.next_deadline() or 0.0, 1.0)
    now = engine.next_deadline() or 0.0
    engine.granted(sent(engine.opened(now)).id, answer(), now)
    engine.answered(sent(engine.on_deadline(now + 0.5, 1.0)).id)
    assert failure(engine.lost("it closed the link", now + 0.6, 1.0)).retry_in_s == pytest.approx(0.4)


@pytest.mark.parametrize("code", [*sorted(registrant.UNMENDABLE)])
def test_a_refusal_that_only_a_person_can_resolve_is_reported_and_retried_slowly(code: RefusalCode) -> None:
    engine = Registrant(register(), 1)
    engine.start(0.0)
    fault = refusal(code)
    steps = engine.refused(sent(engine.opened(0.0)).id, fault, 0.0, 0.0)
    told = failure(steps)
    assert (told.error, told.mendable) == (fault, False)
    assert 30.0 <= told.retry_in_s <= 60.0
    assert any(isinstance(step, Hangup) for step in steps)
    assert engine.next_deadline() == told.retry_in_s


@pytest.mark.parametrize(("jitter", "seconds"), [(0.0, 30.0), (0.5, 45.0), (1.0, 60.0)])
def test_a_segment_that_another_has_is_asked_for_again_after_half_a_minute_or_more(
    jitter: float, seconds: float
) -> None:
    engine = Registrant(register(), 1)
    engine.start(0.0)
    taken = refusal(NAMESPACE_CONFLICT)
    told = failure(engine.refused(sent(engine.opened(0.0)).id, taken, 0.0, jitter))
    assert told.retry_in_s == seconds


@pytest.mark.parametrize("code", [SPLIT_BRAIN, "unavailable", "internal_error"])
def test_a_refusal_that_may_pass_is_retried_soon(code: RefusalCode) -> None:
    engine = Registrant(register(), 1)
    engine.start(0.0)
    fault = refusal(code)
    told = failure(engine.refused(sent(engine.opened(0.0)).id, fault, 0.0, 1.0))
    assert told.mendable
    assert told.retry_in_s == pytest.approx(0.4)


def test_a_hopeless_parent_does_not_slow_the_others() -> None:
    engine = Registrant(register(), 2)
    engine.start(0.0)
    steps = engine.refused(sent(engine.opened(0.0)).id, refusal(INVALID_PARAMS), 0.0, 0.0)
    assert steps[-1] == DialParent(parent=1)
    engine.lost("refused", 0.1, 0.0)
    assert engine.next_deadline() == pytest.approx(0.3)
    assert engine.on_deadline(engine.next_deadline() or 0.0, 0.0) == (DialParent(parent=1),)


def test_a_link_refused_for_its_credential_is_retried_slowly() -> None:
    engine = Registrant(register(), 1)
    engine.start(0.0)
    told = failure(engine.lost("HTTP 401", 0.0, 0.0, mendable=False))
    assert not told.mendable
    assert told.retry_in_s == 30.0


@pytest.mark.req("AX-6.3-2")
def test_an_unknown_session_is_registered_again_on_the_same_link() -> None:
    engine = settled()
    beat = sent(engine.on_deadline(1.0, 0.0))
    steps = engine.refused(beat.id, refusal(SESSION_UNKNOWN), 1.1, 0.0)
    assert isinstance(steps[0], Left)
    again = sent(steps)
    assert isinstance(again.message, Register)
    assert again.message.released_session is None
    assert engine.state is RegistrantState.REGISTERING
    engine.granted(again.id, answer("s9"), 1.2)
    assert sent(engine.on_deadline(1.7, 0.0)).message == Heartbeat(session_id="s9")


@pytest.mark.req("AX-5.3-5")
def test_a_cycle_found_by_a_heartbeat_ends_the_registration() -> None:
    engine = settled()
    beat = sent(engine.on_deadline(1.0, 0.0))
    steps = engine.refused(beat.id, refusal(REGISTRATION_CYCLE), 1.1, 0.0)
    assert isinstance(steps[0], Left)
    assert not failure(steps).mendable
    assert engine.state is RegistrantState.IDLE


BELOW = "33333333-3333-4333-8333-333333333333"


@pytest.mark.req("AX-5.3-3")
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("data", [{"id": FIRST}, {"id": FIRST.upper()}, {}])
def test_a_cycle_that_a_child_claims_costs_the_child_and_not_this_node(data: dict[str, str], is_gone: bool) -> None:
    engine = Registrant(register(subtree_ids=(OURS, BELOW)), 1)
    engine.start(0.0)
    engine.granted(sent(engine.opened(0.0)).id, answer(), 0.0)
    engine.subtree_changed((OURS, BELOW, FIRST), 0.4)
    beat = sent(engine.on_deadline(0.6, 0.0))
    fault = UpstreamError(32112, "registration_cycle", {**data})
    if is_gone:  # meanwhile
        engine.subtree_changed((OURS, BELOW), 0.65)
    assert engine.refused(beat.id, fault, 0.7, 0.0) == (CycleReported(id=FIRST),)
    assert engine.state is RegistrantState.REGISTERED
    engine.subtree_changed((OURS, BELOW), 0.7)
    assert sent(engine.on_deadline(1.2, 0.0)).message == Heartbeat(session_id="s1")


@pytest.mark.req("AX-5.3-3")
def test_a_claim_that_the_new_parent_denies_is_dropped_and_a_true_claim_stays_refused() -> None:
    engine = Registrant(register(subtree_ids=(OURS, BELOW, FIRST)), 1)
    engine.start(0.0)
    for is_below in (True, False):
        asked = sent(engine.opened(0.0))
        fault = refusal(REGISTRATION_CYCLE, id=FIRST, is_below=is_below)
        steps = engine.refused(asked.id, fault, 0.1, 0.0)
        assert (CycleReported(id=FIRST) in steps) is not is_below
        assert failure(steps).mendable is not is_below
        engine.on_deadline(200.0, 0.0)


@pytest.mark.req("AX-5.3-5", "AX-6.3-2")
def test_any_other_error_on_a_heartbeat_shows_a_living_parent() -> None:
    engine = settled(parents=2)
    beat = sent(engine.on_deadline(1.0, 0.0))
    assert engine.refused(beat.id, UpstreamError(-32601, "Method not found"), 1.1, 0.0) == ()
    assert engine.state is RegistrantState.REGISTERED


@pytest.mark.req("AX-5.3-4")
def test_a_changed_subtree_is_sent_in_each_heartbeat_until_it_is_answered_and_in_a_new_registration() -> None:
    engine = Registrant(register(subtree_ids=(OURS,)), 1)
    engine.start(0.0)
    engine.granted(sent(engine.opened(0.0)).id, answer(), 0.0)
    assert engine.subtree_changed((OURS, FIRST), 0.1) == ()
    unanswered = sent(engine.on_deadline(0.5, 0.0)).message
    repeated = sent(engine.on_deadline(1.0, 0.0))
    assert unanswered == repeated.message == Heartbeat(session_id="s1", subtree_ids=(OURS, FIRST))
    engine.answered(repeated.id)
    assert sent(engine.on_deadline(1.5, 0.0)).message == Heartbeat(session_id="s1")
    engine.lost("it closed the link", 1.6, 0.0)
    engine.on_deadline(1.8, 0.0)
    asked = sent(engine.opened(1.8)).message
    assert isinstance(asked, Register)
    assert asked.subtree_ids == (OURS, FIRST)


def test_a_subtree_that_changed_during_the_registration_is_sent_afterwards() -> None:
    engine = Registrant(register(subtree_ids=(OURS,)), 1)
    engine.start(0.0)
    asked = sent(engine.opened(0.0))
    engine.subtree_changed((OURS, FIRST), 0.1)
    engine.granted(asked.id, answer(), 0.2)
    assert sent(engine.on_deadline(0.7, 0.0)).message == Heartbeat(session_id="s1", subtree_ids=(OURS, FIRST))


def test_a_changed_subtree_is_sent_soon_and_at_most_ten_times_an_interval() -> None:
    engine = joined()
    engine.subtree_changed((OURS, FIRST), 0.1)
    assert engine.next_deadline() == pytest.approx(0.12)
    assert engine.on_deadline(0.119, 0.0) == ()
    first = sent(engine.on_deadline(0.125, 0.0))
    assert first.message == Heartbeat(session_id="s1", subtree_ids=(OURS, FIRST))
    for later in (0.13, 0.14, 0.15):
        engine.subtree_changed((OURS, FIRST, SECOND) if later != 0.14 else (OURS,), later)
    assert engine.next_deadline() == pytest.approx(0.225)
    second = sent(engine.on_deadline(0.23, 0.0))
    assert second.message == Heartbeat(session_id="s1", subtree_ids=(OURS, FIRST, SECOND))
    engine.answered(second.id)
    assert engine.next_deadline() == pytest.approx(0.73)  # the beats that hold the session come at half the interval


def test_however_often_the_subtree_changes_a_parent_that_answers_nothing_is_found_out_in_time() -> None:
    engine = settled(parents=2)
    now, steps = 0.5, ()
    turn = 0
    while not steps or isinstance(steps[0], Send):
        turn += 1
        engine.subtree_changed((OURS, FIRST) if turn % 2 else (OURS,), now)
        now = engine.next_deadline() or 0.0
        steps = engine.on_deadline(now, 0.0)
    assert failure(steps).reason == "it does not answer heartbeats"
    assert now <= 0.5 + 0.1 + 1.0


def test_without_heartbeats_a_changed_subtree_is_sent_at_once() -> None:
    engine = joined(interval_ms=0)
    assert sent(engine.subtree_changed((OURS,), 5.0)).message == Heartbeat(session_id="s1", subtree_ids=(OURS,))


@pytest.mark.req("AX-6.3-4")
def test_an_orderly_end_deregisters_and_hangs_up_when_that_is_answered() -> None:
    engine = settled()
    farewell = sent(engine.stop(1.0))
    assert farewell.message == Deregister(session_id="s1")
    assert not engine.done
    steps = engine.answered(farewell.id)
    assert [type(step) for step in steps] == [Left, Hangup]
    assert engine.done
    assert engine.next_deadline() is None


def test_a_parent_that_does_not_say_goodbye_is_not_waited_for() -> None:
    engine = settled(parents=2)
    sent(engine.on_deadline(1.0, 0.0))
    engine.stop(1.1)
    assert engine.next_deadline() == 1.1 + registrant.FAREWELL_S
    assert engine.on_deadline(2.5, 0.0) == ()
    assert isinstance(engine.on_deadline(3.2, 0.0)[-1], Hangup)
    assert engine.done


def test_stopping_is_possible_in_every_state_and_twice() -> None:
    idle = Registrant(register(), 1)
    assert idle.stop(0.0) == ()
    connecting = Registrant(register(), 1)
    connecting.start(0.0)
    assert connecting.stop(0.0) == (Hangup(reason="shutting down"),)
    assert connecting.opened(0.1) == (Hangup(reason="shutting down"),)
    registering = Registrant(register(), 1)
    registering.start(0.0)
    asked = sent(registering.opened(0.0))
    assert registering.stop(0.0) == (Hangup(reason="shutting down"),)
    assert registering.granted(asked.id, answer(), 0.1) == (Ignored(reason="a registration that was not asked for"),)
    for engine in (idle, connecting, registering):
        assert engine.done
        assert engine.stop(1.0) == ()
        assert engine.lost("gone", 1.0, 0.0) == ()


def test_a_parent_that_never_answers_is_given_up_at_every_step() -> None:
    engine = Registrant(register(), 1)
    engine.start(0.0)
    assert engine.on_deadline(9.99, 0.0) == ()
    assert "no connection" in failure(engine.on_deadline(registrant.DIAL_S, 0.0)).reason
    engine.on_deadline(10.2, 0.0)
    sent(engine.opened(11.0))
    assert "mcpax/register" in failure(engine.on_deadline(11.0 + registrant.ANSWER_S, 0.0)).reason
    assert engine.state is RegistrantState.IDLE


def test_answers_to_what_was_not_asked_change_nothing() -> None:
    engine = settled()
    for steps in (
        engine.granted(99, answer("stolen", SECOND), 0.6),
        engine.answered(99),
        engine.refused(99, refusal(SESSION_UNKNOWN), 0.6, 0.0),
        engine.misanswered(99, "an array", 0.6, 0.0),
    ):
        assert [type(step) for step in steps] == [Ignored]
    assert (engine.state, engine.parent_id) == (RegistrantState.REGISTERED, FIRST)


def test_an_answer_is_taken_once_and_only_for_its_own_request() -> None:
    engine = settled()
    beat = sent(engine.on_deadline(1.0, 0.0))
    assert isinstance(engine.granted(beat.id, answer("s2", SECOND), 1.0)[0], Ignored)
    engine.answered(beat.id)
    assert isinstance(engine.answered(beat.id)[0], Ignored)
    assert engine.parent_id == FIRST


def test_an_answer_from_the_link_before_fits_nothing_on_the_next() -> None:
    engine = settled(parents=2)
    beat = sent(engine.on_deadline(1.0, 0.0))
    engine.lost("it closed the link", 1.1, 0.0)
    asked = sent(engine.opened(1.2))
    assert asked.id > beat.id
    assert isinstance(engine.answered(beat.id)[0], Ignored)
    assert isinstance(engine.answered(asked.id)[0], Ignored)
    assert engine.state is RegistrantState.REGISTERING


def test_nonsense_instead_of_a_registration_is_a_failure_and_instead_of_a_heartbeat_is_silence() -> None:
    engine = Registrant(register(), 2)
    engine.start(0.0)
    steps = engine.misanswered(sent(engine.opened(0.0)).id, "session_id is missing", 0.1, 0.0)
    assert "session_id is missing" in failure(steps).reason
    assert steps[-1] == DialParent(parent=1)
    engine.granted(sent(engine.opened(0.2)).id, answer(), 0.2)
    beat = sent(engine.on_deadline(0.7, 0.0))
    engine.misanswered(beat.id, "a number", 0.8, 0.0)
    engine.on_deadline(1.2, 0.0)
    assert isinstance(engine.on_deadline(1.7, 0.0)[0], Left)


def test_the_caller_is_informed_when_it_reports_the_impossible() -> None:
    engine = Registrant(register(), 1)
    for report in (lambda: engine.opened(0.0), lambda: engine.lost("x", 0.0, 0.0)):
        with pytest.raises(OutOfOrder):
            report()
    with pytest.raises(ValueError, match="at least one parent"):
        Registrant(register(), 0)


@pytest.mark.req("AX-13.3-3")
@pytest.mark.parametrize("phase", range(10))
@pytest.mark.parametrize("frozen", [False, True])
def test_a_failed_parent_is_replaced_in_less_than_three_intervals_at_every_phase_of_the_beat(
    phase: int, frozen: bool
) -> None:
    engine = settled(parents=2)
    failed_at = 10.0 + phase / 10
    now = 0.5
    while True:
        due = engine.next_deadline() or 0.0
        if due >= failed_at:
            break
        now = due
        engine.answered(sent(engine.on_deadline(now, 0.0)).id)
    steps: Steps = () if frozen else engine.lost("it closed the link", failed_at, 0.0)
    while not any(isinstance(step, DialParent) for step in steps):
        now = engine.next_deadline() or now
        steps = engine.on_deadline(now, 0.0)
    now = max(now, failed_at) + 0.05
    engine.granted(sent(engine.opened(now)).id, answer("s2", SECOND), now)
    assert engine.parent_id == SECOND
    assert now - failed_at < 3.0
