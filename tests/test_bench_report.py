"""Does the benchmark report call a promise kept only when it was?"""

import pytest
from bench import instruction_counts
from bench.aql_layer import AqlCosts
from bench.cells import ACROSS, CELLS, SAME, crossing
from bench.crowds import Crowd, Cycle, Live
from bench.devices import CrowdFigures, DeviceFigures, RoundTrips
from bench.first_run import FIRST_CALL, FirstRun
from bench.forest import Planted
from bench.guards import GUARDED, UNGUARDED, Guarding, measure
from bench.hops import DEPTHS, FEW, MANY, further
from bench.load import Job
from bench.measure import Figures, Sample
from bench.report import LARGE_RESULTS, UNSTEADY_MAX, Report, Section, limits, markdown, missed, unsteadiness, updated
from bench.rooms.measure import Beside, Fanned, RoomFigures, Round


def live(parked: int = 0, in_flight: int = 0) -> Live:
    return Live(sessions=0, streams=0, in_flight=in_flight, parked=parked, descriptors=30)


def crowd(*most_mb: float, left: Live | None = None) -> Crowd:
    cycles = [Cycle(open_mb=mb, ended_mb=mb - 1, open=live(100), ended=left or live()) for mb in most_mb]
    return Crowd(title="parked calls", count=100, before_mb=50.0, before=live(), cycles=cycles)


def section(*rounds: dict[str, float]) -> Section:
    """Rounds of CPU time per cell."""

    def taken(cpu_us: float) -> Sample:
        return Sample(cpu_us=cpu_us, p50_us=1.0, p99_us=1.0, per_second=1.0, answer_bytes=1)

    figures = [Figures(name=cell, samples=[taken(one[cell]) for one in rounds]) for cell in CELLS]
    return Section(name="cells", title="the four cells", job=Job(port=0), figures=figures)


def report(*crowds: Crowd, sections: tuple[Section, ...] = (), forest: tuple[Planted, ...] = ()) -> Report:
    return Report(
        machine="m", python="3", pinned=True, sections=list(sections), crowds=list(crowds), forest=list(forest)
    )


@pytest.mark.parametrize(
    ("one", "kept"),
    [
        (crowd(60.0, 62.0, 62.0, 63.9), True),
        (crowd(60.0, 62.0, 63.0, 64.1), False),
        (crowd(60.0, 62.0, 62.0, left=live(parked=1)), False),
        (crowd(60.0, 62.0, 62.0, left=live(in_flight=1)), False),
        (crowd(), None),
    ],
    ids=["flat", "growing", "one still parked", "one in flight", "not measured"],
)
def test_a_crowd_that_left_something_did_not_keep_the_promise(one: Crowd, kept: bool | None) -> None:
    (promise,) = limits(report(one))
    assert promise.kept is kept
    assert bool(missed(report(one))) is (kept is not True)


def test_the_memory_per_participant_is_the_growth_of_the_first_cycle() -> None:
    assert crowd(60.0, 90.0, 90.0).each_kb == pytest.approx(10 * 1024 / 100)
    assert "102.4 KB" in markdown(report(crowd(60.0, 90.0, 90.0)))


@pytest.mark.parametrize(("across", "kept"), [(60.0, True), (60.1, False)])
def test_crossing_is_judged_by_the_cheaper_cell_of_the_same_round(across: float, kept: bool) -> None:
    """The median of the rounds; a slow round is slow for all."""
    usual = dict.fromkeys(CELLS, 100.0) | {SAME[0]: 40.0, ACROSS[0]: across, ACROSS[1]: across}
    slow = {cell: 10 * cpu_us for cell, cpu_us in usual.items()}
    cells = section(usual, slow, usual)
    found = crossing(cells.figures, ACROSS[0])
    assert found is not None
    assert found.median == pytest.approx(across / 40.0)
    assert [one.kept for one in limits(report(sections=(cells,)))] == [kept, kept]


@pytest.mark.parametrize(("added_us", "kept"), [(2.9, True), (3.1, False)])
def test_the_guard_is_judged_by_the_median_of_what_it_adds_within_a_turn(added_us: float, kept: bool) -> None:
    without = [10.0, 50.0, 10.0, 12.0, 11.0, 11.0]
    extra = [added_us, added_us - 0.5, added_us, added_us + 0.5, added_us, 90.0]
    turns = {UNGUARDED: without, GUARDED: [one + more for one, more in zip(without, extra, strict=True)]}
    found = Report(machine="m", python="3", pinned=True, sections=[], guard=Guarding(turns=turns))
    (promise,) = limits(found)
    assert promise.kept is kept
    assert f"{added_us:.2f} us (" in markdown(found)


def test_every_way_of_the_guard_answers_its_calls() -> None:
    said: list[str] = []
    found = measure(quick=True, say=said.append)
    assert len(found.turns) == len(said) == 3
    assert all(len(turns) == 20 and min(turns) > 0 for turns in found.turns.values())
    assert limits(Report(machine="m", python="3", pinned=True, sections=[], guard=found))[0].measured is not None


def hops(*rounds: dict[int, float], title: str = MANY) -> Section:
    """Rounds of CPU time per depth."""

    def taken(cpu_us: float) -> Sample:
        return Sample(cpu_us=cpu_us, p50_us=2 * cpu_us, p99_us=1.0, per_second=1.0, answer_bytes=1)

    figures = [Figures(name=f"depth {depth}", samples=[taken(one[depth]) for one in rounds]) for depth in DEPTHS]
    return Section(name="hops", title=title, job=Job(port=0), figures=figures)


@pytest.mark.parametrize(("each", "kept"), [(48.0, True), (48.1, False)])
def test_a_further_hop_is_judged_by_the_first_of_the_same_round(each: float, kept: bool) -> None:
    usual = {depth: 40.0 + (depth - 1) * each for depth in DEPTHS}
    slow = {depth: 5 * cpu_us for depth, cpu_us in usual.items()}
    section_ = hops(usual, slow, usual)
    for depth in DEPTHS[1:]:
        cost = further(section_.figures, f"depth {depth}")
        assert cost is not None
        assert (cost.median, cost.high) == (pytest.approx(each), pytest.approx(5 * each))
    assert further(section_.figures, "depth 1") is None
    assert [one.kept for one in limits(report(sections=(section_,)))] == [kept] * 3
    page = markdown(report(sections=(section_, hops(usual, title=FEW))))
    assert page.count("| 8 |") == 2
    assert limits(report(sections=(hops(usual, title=FEW),))) == []


def test_a_chain_that_failed_is_not_called_kept() -> None:
    section_ = hops()
    section_.figures[0].absent = "the nodes failed"
    assert [one.kept for one in limits(report(sections=(section_,)))] == [None] * 3


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [([0.1, 0.2, 5.0], True), ([0.1, 0.2, 5.1], False), ([], None)],
    ids=["in time", "late", "none"],
)
def test_one_change_that_was_seen_too_late_breaks_the_promise(seconds: list[float], kept: bool | None) -> None:
    planted = Planted(title="one node", subservers=10, tools=2, answered=[2.0], gathered=[2.5], before_mb=50, all_mb=60)
    planted.changed, planted.left = seconds, seconds
    assert [one.kept for one in limits(report(forest=(planted,)))] == [kept, kept]
    page = markdown(report(forest=(planted,)))
    assert ("1024 KB" in page) is (kept is not None)
    assert ("not measured here" in page) is (kept is None)


def test_the_cost_of_approvals_is_on_the_page_without_a_promise() -> None:
    page = markdown(Report(machine="m", python="3", pinned=True, sections=[], approvals={"raised per second": 1234.5}))
    assert "| raised per second | 1,234 |" in page
    assert "no promise" in page


def test_counts_of_instructions_are_part_of_every_page_and_no_version_costs_more_than_the_first() -> None:
    assert instruction_counts.section() in markdown(report())
    first, *later = instruction_counts.read_counts().counts
    # Bytecodes are shown and not held to: a search of bytes is several of them and costs less than a formatted copy.
    assert all(one.instructions <= first.instructions for one in later)


@pytest.mark.parametrize(("title", "name"), [("tools/call", "heads"), (LARGE_RESULTS, "large")])
@pytest.mark.parametrize(("costs", "is_steady"), [((20.0, 22.0, 26.0), True), ((20.0, 22.0, 27.0), False)])
def test_rounds_that_lie_far_apart_are_no_figure(
    title: str, name: str, costs: tuple[float, ...], is_steady: bool
) -> None:
    def figures(who: str, *cpu_us: float) -> Figures:
        taken = [Sample(cpu_us=one, p50_us=1.0, p99_us=1.0, per_second=1.0, answer_bytes=1) for one in cpu_us]
        return Figures(name=who, samples=taken)

    both = [figures("nginx", 10.0, 10.0, 10.0), figures("interlock", *costs)]
    assert (unsteadiness(Section(name=name, title=title, job=Job(port=0), figures=both)) <= UNSTEADY_MAX) is is_steady
    assert unsteadiness(Section(name="lists", title="tools/list", job=Job(port=0), figures=both)) == 0


@pytest.mark.parametrize(("seconds", "kept"), [([20.0, 29.0, 31.0], True), ([31.0, 31.0, 20.0], False), ([], None)])
def test_a_first_call_counts_from_the_clone(seconds: list[float], kept: bool | None) -> None:
    made = report()
    made.first_run = FirstRun(seconds={FIRST_CALL: seconds})
    (promise,) = limits(made)
    assert promise.kept is kept
    assert ("29.0" in markdown(made) or "29 s" in markdown(made)) is (kept is True)


def fanned(rate: float, each_kb: float, busy_us: float, deaf_ms: float) -> RoomFigures:
    ours = Round(per_second=rate, cpu_us=5.0, p50_us=4000.0, p99_us=9000.0)
    theirs = Round(per_second=100.0, cpu_us=5.0, p50_us=100.0, p99_us=900.0)
    beside = Beside(quiet_p50=[100.0], busy_p50=[busy_us], quiet_p99=[900.0], busy_p99=[990.0])
    shape = Fanned(rooms=1, participants=1000, node=[ours], bare=[theirs], each_kb=each_kb)
    return RoomFigures(shapes=[shape], beside=beside, deaf_p99_ms=[12.0, deaf_ms])


@pytest.mark.parametrize(
    ("figures", "kept"),
    [
        (fanned(50.0, 60.0, 150.0, 100.0), [True] * 4),
        (fanned(49.0, 61.0, 151.0, 100.1), [False] * 4),
        (RoomFigures(shapes=[Fanned(rooms=1, participants=1000)], beside=Beside()), [None] * 4),
    ],
    ids=["at the limit", "beyond it", "not measured"],
)
def test_rooms_keep_their_promises_or_are_reported(figures: RoomFigures, kept: list[bool | None]) -> None:
    whole = Report(machine="m", python="3", pinned=True, sections=[], rooms=figures)
    assert [one.kept for one in limits(whole)] == kept
    assert "## rooms" in markdown(whole)


@pytest.mark.parametrize(("more_us", "ms", "kept"), [(20.0, 2.0, True), (31.0, 2.0, False), (20.0, 6.0, False)])
def test_the_layer_of_aql_and_its_search_are_held_to_their_promises(more_us: float, ms: float, kept: bool) -> None:
    costs = AqlCosts(turns={"flat": [5.0] * 8, "AQL": [5.0 + more_us] * 8}, searches={"a": [1.0], "b": [ms]})
    made = Report(machine="m", python="3", pinned=True, sections=[], aql=costs)
    assert [one.kept for one in limits(made)] == [more_us <= 30, ms <= 5]
    assert (not missed(made)) is kept
    assert "| search: b |" in markdown(made)


def device_figures(*node_ms: float) -> DeviceFigures:
    trip = RoundTrips(baud=9600, wire_ms=20.0, relay_ms=[0.2], node_ms=list(node_ms), slowest_ms=[1.0])
    crowd = CrowdFigures(
        devices=1000, each_kb=56, idle_share=0.03, quiet_ms=(1, 2), flooded_ms=(1, 3), flood_share=0.04, flood_kb=9
    )
    return DeviceFigures(trips=[trip], crowd=crowd, wire_bytes={}, firmware={})


@pytest.mark.parametrize(("added_ms", "kept"), [(1.0, True), (1.01, False)])
def test_a_round_trip_is_judged_by_the_median_of_what_its_rounds_add_to_the_wire(added_ms: float, kept: bool) -> None:
    found = report()
    found.devices = device_figures(added_ms - 0.1, added_ms, 9.0)
    assert [one.kept for one in limits(found)] == [kept]
    assert found.devices.unsteadiness > UNSTEADY_MAX
    assert device_figures(1.0, 1.1, 1.2).unsteadiness < UNSTEADY_MAX


def test_a_section_measured_alone_takes_its_former_place_and_leaves_the_others() -> None:
    whole = report(crowd(60.0, 62.0, 62.0))
    whole.approvals = {"raised per second": 1234.5}
    before = markdown(whole)
    alone = report()
    alone.devices = device_figures(0.5)
    once = updated(before, alone)
    assert "| 9,600 baud: a round trip | 20.50 ms: +2.5%" in once
    assert "Measured apart from the others: m, Python 3." in once
    assert once.index("## devices") < once.index("## Tokens")
    for line in before.splitlines():
        assert line in once
    alone.devices, alone.load_before = device_figures(2.0), 3.0
    again = updated(once, alone)
    assert [line for line in again.splitlines() if "9,600 baud a round trip" in line] == [
        "| at 9,600 baud a round trip is at most 5% above the wire's own time | 10.0 % | **not kept** |"
    ]
    assert again.count("## devices") == 1
    assert "20.50 ms" not in again
    assert "load 3.0 before the run" in again
    assert updated(again, alone) == again
