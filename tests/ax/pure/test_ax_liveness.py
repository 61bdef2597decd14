"""How long a registration lasts (MCP-AX 6.3, 13.1 to 13.3), with plain numbers for time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.ax.protocol.messages import Deregister, Heartbeat, Register, Registered
from interlock.ax.protocol.registration.registrations import (
    DEADLINES_SPARE,
    TABLE,
    Ended,
    Event,
    Joined,
    Liveness,
    LivenessInput,
    LivenessState,
    Lost,
    Peer,
    Policy,
    Recovered,
    Registrations,
    Session,
    SubtreeChanged,
    Suspected,
    Vanished,
    Violation,
)
from interlock.wire.refusal import Refusal


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


PEER = Peer(principal="alice")
BEAT = Heartbeat(session_id="s")


def engine(interval_ms: int = 5000, now: float = 0.0, **policy: Any) -> Registrations:
    """One registrant, session "s" and segment "leaf"."""
    made = Registrations(uuid(0), "default", Policy(**policy))
    request = Register(subserver_id=uuid(1), segment="leaf", heartbeat_interval_ms=interval_ms)
    assert isinstance(made.register(request, PEER, session_id="s", now=now).answer, Registered)
    return made


def state(made: Registrations, segment: str = "leaf") -> LivenessState | None:
    standing = made.find(segment)
    return None if standing is None else standing.state


def session(made: Registrations) -> Session:
    standing = made.find("leaf")
    assert standing is not None
    return standing.session


# The table


def in_state(wanted: LivenessState) -> Liveness:
    life = Liveness(1000, 0.0)
    steps = {
        LivenessState.LIVE: [],
        LivenessState.SUSPECT: [LivenessInput.SECOND_MISS],
        LivenessState.LOST: [LivenessInput.LINK_CLOSED],
        LivenessState.ENDED: [LivenessInput.END],
    }
    for what in steps[wanted]:
        life.step(what, 0.0)
    assert life.state is wanted
    return life


EXPECTED = {
    LivenessState.LIVE: {"beat": "live", "second miss": "suspect", "link closed": "lost", "end": "ended"},
    LivenessState.SUSPECT: {"beat": "live", "third miss": "lost", "link closed": "lost", "end": "ended"},
    LivenessState.LOST: {"grace over": "ended", "end": "ended"},
    LivenessState.ENDED: {},
}


@pytest.mark.parametrize("before", LivenessState)
@pytest.mark.parametrize("what", LivenessInput)
def test_every_input_in_every_state_leads_where_the_table_says_or_is_a_violation(
    before: LivenessState, what: LivenessInput
) -> None:
    life = in_state(before)
    after = EXPECTED[before].get(what.value)
    if after is None:
        assert (before, what) not in TABLE
        with pytest.raises(Violation, match=before.value):
            life.step(what, 1.0)
        assert life.state is before
    else:
        assert life.step(what, 1.0) is before
        assert life.state.value == after
        assert life.since == (0.0 if before is life.state else 1.0)


def test_nothing_is_due_once_a_registration_ended() -> None:
    life = in_state(LivenessState.ENDED)
    assert life.due is None
    with pytest.raises(Violation, match="nothing is due for a registration that is"):
        life.step_due()


# Misses


@pytest.mark.req("AX-6.3-2")
def test_silence_of_three_intervals_ends_the_session_and_less_does_not() -> None:
    made = engine()
    alice = session(made)
    assert made.on_deadline(9.9) == ()
    assert made.on_deadline(14.9) == (Suspected(session=alice, since=10.0),)
    assert made.on_deadline(15.0) == (Lost(session=alice, reason="heartbeat_timeout", since=15.0),)
    late = made.heartbeat(BEAT, PEER, now=15.1)
    assert isinstance(late.answer, Refusal)
    assert (late.answer.number, late.answer.message) == (32116, "session_unknown")
    request = Register(subserver_id=uuid(1), segment="leaf")
    assert isinstance(made.register(request, PEER, session_id="s2", now=15.2).answer, Registered)


@pytest.mark.req("AX-6.3-2")
def test_two_missed_and_one_received_restart_the_count() -> None:
    made = engine()
    alice = session(made)
    made.on_deadline(14.0)
    step = made.heartbeat(BEAT, PEER, now=14.9)
    assert (step.answer, step.events) == (15000, (Recovered(session=alice),))
    assert state(made) is LivenessState.LIVE
    assert made.next_deadline() == 24.9
    assert made.on_deadline(24.8) == ()
    assert [type(event) for event in made.on_deadline(29.9)] == [Suspected, Lost]


def test_a_beat_that_comes_too_late_is_too_late_even_if_nobody_looked_before() -> None:
    made = engine()
    step = made.heartbeat(BEAT, PEER, now=15.0)
    assert isinstance(step.answer, Refusal)
    assert [type(event) for event in step.events] == [Suspected, Lost]


@pytest.mark.req("AX-6.3-2")
def test_due_events_happen_at_their_time_however_late_the_clock_is_read() -> None:
    made = engine()
    suspected, lost = made.on_deadline(100.0)
    assert isinstance(suspected, Suspected)
    assert isinstance(lost, Lost)
    assert (suspected.since, lost.since, made.next_deadline()) == (10.0, 15.0, 315.0)


def test_from_the_second_miss_on_a_registrant_is_suspect() -> None:
    made = engine()
    made.on_deadline(10.0)
    standing = made.find("leaf")
    assert standing is not None
    assert (standing.state, standing.since, standing.retry_after_ms) == (LivenessState.SUSPECT, 10.0, 5000)


@pytest.mark.req("AX-6.3-2")
def test_beats_in_time_keep_a_registrant_for_ever() -> None:
    made = engine()
    for beat in range(1, 1000):
        assert made.heartbeat(BEAT, PEER, now=beat * 5.0).events == ()
        assert made.next_deadline() == beat * 5.0 + 10.0


@pytest.mark.req("AX-6.3-3")
def test_without_an_interval_only_the_link_counts() -> None:
    made = engine(interval_ms=0)
    alice = session(made)
    assert made.next_deadline() is None
    assert made.on_deadline(3600.0) == ()
    assert made.heartbeat(BEAT, PEER, now=3600.0).answer == 0
    assert made.link_closed("s", now=3601.0) == (Lost(session=alice, reason="connection_lost", since=3601.0),)


@pytest.mark.req("AX-6.3-4")
def test_a_suspect_may_still_deregister() -> None:
    made = engine()
    made.on_deadline(12.0)
    step = made.deregister(Deregister(session_id="s"), PEER, now=13.0)
    assert step.answer is None
    assert [type(event) for event in step.events] == [Ended, Vanished]
    assert made.next_deadline() is None


# Loss and grace


@pytest.mark.req("AX-13.2-4")
def test_names_of_a_lost_registrant_stay_for_the_grace_and_no_longer() -> None:
    made = engine()
    made.link_closed("s", now=0.0)
    assert state(made) is LivenessState.LOST
    assert made.next_deadline() == 300.0
    assert made.on_deadline(299.0) == ()
    assert state(made) is LivenessState.LOST
    assert made.on_deadline(300.0) == (Vanished(segment="leaf"),)
    assert (state(made), made.next_deadline(), made.on_deadline(301.0)) == (None, None, ())


@pytest.mark.req("AX-13.2-4")
def test_a_return_within_the_grace_cancels_the_removal() -> None:
    made = engine()
    made.link_closed("s", now=0.0)
    request = Register(subserver_id=uuid(1), segment="leaf", heartbeat_interval_ms=0)
    (joined,) = made.register(request, PEER, session_id="s2", now=299.0).events
    assert isinstance(joined, Joined)
    assert joined.replaces == "s"
    assert made.on_deadline(1000.0) == ()
    assert state(made) is LivenessState.LIVE


@pytest.mark.req("AX-13.2-4")
def test_the_grace_is_a_setting() -> None:
    made = engine(grace_s=20.0)
    made.link_closed("s", now=1.0)
    assert made.next_deadline() == 21.0


@pytest.mark.req("AX-13.2-1")
def test_with_degraded_mode_off_names_go_with_the_session() -> None:
    made = engine(degraded=False)
    alice = session(made)
    assert made.link_closed("s", now=1.0) == (
        Lost(session=alice, reason="connection_lost", since=1.0),
        Vanished(segment="leaf"),
    )
    made = engine(degraded=False)
    assert [type(event) for event in made.on_deadline(15.0)] == [Suspected, Lost, Vanished]
    assert made.next_deadline() is None


@pytest.mark.req("AX-13.1-1")
def test_a_loss_is_reported_once_whatever_closes_after_it() -> None:
    made = engine()
    made.on_deadline(15.0)
    assert made.link_closed("s", now=15.1) == ()
    assert made.link_closed("never", now=15.1) == ()


@pytest.mark.req("AX-13.3-1")
def test_a_lost_aggregator_takes_its_subtree_with_it_in_one_step() -> None:
    made = Registrations(uuid(0), "default", Policy())
    request = Register(subserver_id=uuid(1), segment="mid", subtree_ids=(uuid(1), uuid(2), uuid(3)))
    made.register(request, PEER, session_id="s", now=0.0)
    suspected, lost, changed = made.on_deadline(15.0)
    assert isinstance(suspected, Suspected)
    assert isinstance(lost, Lost)
    assert changed == SubtreeChanged(subtree_ids=(uuid(0),))


def test_deadlines_of_several_come_in_the_order_of_time() -> None:
    made = Registrations(uuid(0), "default", Policy(grace_s=1.0))
    for number, interval in ((1, 3000), (2, 1000), (3, 2000)):
        request = Register(subserver_id=uuid(number), segment=f"x{number}", heartbeat_interval_ms=interval)
        made.register(request, PEER, session_id=f"s{number}", now=0.0)
    seen = [
        (type(event).__name__, event.segment if isinstance(event, Vanished) else event.session.segment)
        for event in made.on_deadline(20.0)
        if not isinstance(event, SubtreeChanged)
    ]
    assert [one for one in seen if one[0] == "Lost"] == [("Lost", "x2"), ("Lost", "x3"), ("Lost", "x1")]
    assert [one for one in seen if one[0] == "Vanished"] == [("Vanished", "x2"), ("Vanished", "x3"), ("Vanished", "x1")]


def test_registering_again_and_again_leaves_nothing_behind() -> None:
    made = Registrations(uuid(0), "default", Policy())
    for number, interval in ((2, 0), (3, 3_599_000)):
        other = Register(subserver_id=uuid(number), segment=f"x{number}", heartbeat_interval_ms=interval)
        made.register(other, PEER, session_id=f"x{number}", now=0.0)
    request = Register(subserver_id=uuid(1), segment="leaf", heartbeat_interval_ms=3_600_000)
    for number in range(1000):
        made.register(request, PEER, session_id=f"s{number}", now=0.0)
    assert len(made._deadlines) <= DEADLINES_SPARE + 2 * 3
    assert made.next_deadline() == 7198.0
    assert [event.session.segment for event in made.on_deadline(7200.0) if isinstance(event, Suspected)] == [
        "x3",
        "leaf",
    ]


# Any order of anything

numbers = st.integers(1, 4)
operations = st.one_of(
    st.tuples(st.just("register"), numbers, numbers, st.sampled_from([0, 100, 1000]), st.booleans()),
    st.tuples(st.just("beat"), st.integers(0, 30)),
    st.tuples(st.just("bye"), st.integers(0, 30)),
    st.tuples(st.just("close"), st.integers(0, 30)),
    st.tuples(st.just("end"), st.integers(0, 30)),
    st.tuples(st.just("wait")),
)


def _done(made: Registrations, what: tuple[Any, ...], serial: int, now: float) -> tuple[Event, ...]:
    match what:
        case ("register", number, segment, interval, above):
            ids = (uuid(number), uuid(number + 10)) if above else None
            request = Register(
                subserver_id=uuid(number), segment=f"x{segment}", heartbeat_interval_ms=interval, subtree_ids=ids
            )
            return made.register(request, PEER, session_id=f"s{serial}", now=now).events
        case ("beat", of):
            return made.heartbeat(Heartbeat(session_id=f"s{of}"), PEER, now=now).events
        case ("bye", of):
            return made.deregister(Deregister(session_id=f"s{of}"), PEER, now=now).events
        case ("close", of):
            return made.link_closed(f"s{of}", now=now)
        case ("end", of):
            return made.end(f"s{of}", "removed", now=now)
        case _:
            return made.on_deadline(now)


@given(st.lists(st.tuples(operations, st.sampled_from([0.0, 0.05, 0.15, 1.0, 3.0])), max_size=30), st.booleans())
def test_the_events_alone_tell_what_there_is_in_any_order_of_anything(
    script: list[tuple[tuple[Any, ...], float]], degraded: bool
) -> None:
    made = Registrations(uuid(0), "default", Policy(degraded=degraded, grace_s=2.0))
    told: dict[str, tuple[LivenessState, str]] = {}  # segment -> what somebody who only hears the events believes
    below: tuple[str, ...] = (uuid(0),)
    now = 0.0
    for serial, (what, pause) in enumerate(script):
        now += pause
        for event in _done(made, what, serial, now):
            match event:
                case Joined():
                    told[event.session.segment] = (LivenessState.LIVE, event.session.session_id)
                case Suspected():
                    told[event.session.segment] = (LivenessState.SUSPECT, event.session.session_id)
                case Recovered():
                    told[event.session.segment] = (LivenessState.LIVE, event.session.session_id)
                case Lost():
                    assert told[event.session.segment][1] == event.session.session_id
                    told[event.session.segment] = (LivenessState.LOST, event.session.session_id)
                case Ended():
                    assert told[event.session.segment][1] == event.session.session_id
                case Vanished():
                    del told[event.segment]
                case SubtreeChanged():
                    below = event.subtree_ids
        standings = made.all()
        assert told == {one.session.segment: (one.state, one.session.session_id) for one in standings}
        assert len({one.session.register.subserver_id for one in standings}) == len(standings)
        alive = [one for one in standings if one.state in (LivenessState.LIVE, LivenessState.SUSPECT)]
        assert set(below) == {uuid(0)}.union(*(one.subtree_ids or () for one in alive)) == set(made.subtree_ids())
        due = made.next_deadline()
        assert due is None or due > now
