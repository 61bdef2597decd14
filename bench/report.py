"""What is said about a run: the tables, the page, and which limits were missed."""

import itertools
import re
from collections.abc import Iterator

import msgspec
from rich.table import Table

from bench import devices, instruction_counts, names
from bench.aql_layer import ADDED_MAX_US, OPERATIONS, SEARCH_MAX_MS, AqlCosts, shown_spread
from bench.cells import ACROSS, SAME, crossing
from bench.crowds import Crowd
from bench.devices import DeviceFigures
from bench.first_run import FIRST_CALL, FirstRun
from bench.forest import Planted, median_ms
from bench.guards import CALLS, GUARDED, UNGUARDED, Guarding
from bench.hops import DEPTHS, FEW, FIRST, MANY, further
from bench.inbox import AT_ONCE
from bench.load import Job
from bench.measure import Figures, Sample, Spread, added, ratio, spread
from bench.names import NameFigures
from bench.rooms import page as rooms
from bench.rooms.measure import RoomFigures
from bench.tokens import page as tokens

CPU_RATIO_MAX = 2.5  # CPU time per call, of nginx's
REAL_RATIO_MAX = 3.2  # the same with the heads of real clients
LARGE_RATIO_MAX = 3.0  # CPU time per call with a megabyte
BESIDE_P99_MAX_US = 40_000.0
ADDED_P50_MAX_US = 200.0
IDLE_MAX_MB = 57.0
CROSSING_RATIO_MAX = 1.5  # CPU time per call, of the cheaper same-era cell's
FIRST_CALL_MAX_S = 30.0
GUARD_MAX_US = 3.0  # of a call that nothing holds
HOP_RATIO_MAX = 1.2  # CPU time of a further hop, of the first's
GROWTH_MAX_MB = 2.0  # of all cycles after the second: 70 bytes kept of each of 10,000 calls would be more
UNSTEADY_MAX = 0.3  # how far rounds may lie apart, of their median
BUSY_LOAD = 0.5  # a load average before the run above which the figures are rough
SAME_HEAD = "tools/call, 2026-07-28, every head the same"
REAL_HEADS = "tools/call, 2026-07-28, heads as three SDKs write them"
LARGE_REQUESTS = "tools/call with arguments of 1 MB"
LARGE_RESULTS = "tools/call with a result of 1 MB"
BESIDE = "small calls beside a client that sends 15 MB in each of its calls"
ONE_CORE = "tools/call, one connection, everybody on one core"
CONTRACTS = "a call through a contract"
CHATTER = "calls beside a server that sends 1,000 notifications a second"
TWO_CORES = "tools/call, one connection, the contestant on a core of its own"
NOTES = {
    REAL_HEADS: "The header sets of the Python and TypeScript SDKs and of Go's net/http, in turn; a traceparent of its "
    "own and one of 32 lengths for each request; the Python client sends the body in a packet of its own.",
    ONE_CORE: "Load, server and contestant take turns on one core, as `direct` does in both tables: what is added is "
    "the work of the contestant and four changes from one process to another.",
    TWO_CORES: "The same with the contestant on the other core: each of the four messages of a call wakes a core that "
    "has gone to sleep, which costs more than the work, nginx's included. How much is the machine's affair, so no "
    "promise is made for this.",
    "FastMCP 4.1.2": "Given a URL, `create_proxy` makes new HTTP clients for every call and reads the certificate "
    "store each time, though the connection is plain HTTP: about two thirds of its CPU time when profiled. Given a "
    "connected client it keeps that one.",
    CONTRACTS: "One node has the same server twice: in its configuration, and as a driver with a contract. Through the "
    "contract the input is checked, a driver is chosen, the arguments are written again and checked against the "
    "server's schema, the result is read and its value checked, and two more records are kept. No promise is made for "
    "this.",
    CHATTER: "One node for each kind, all on one core, each with the fast server that is called and a second one over "
    "stdio that talks. CPU time is that of the node per call, what it does with the notifications included.",
    "the four cells": "One node in front of a server of each era. A call across the eras is compared with the cheaper "
    "of the two cells of one era, in the same round.",
    MANY: "Depth is the number of nodes that a call passes. At depth 1 the node that the client calls has the server "
    "itself, over HTTP; each further node is registered with the one above it, over a WebSocket at `/ax`, and the "
    "server stands behind the last. CPU time is that of all nodes the call passes. The first hop is a call at depth 1: "
    "all that a node does for a client and for a server. A further hop is what a call costs more at depth d than at "
    "depth 1 in the same round, divided by d - 1.",
    FEW: "All nodes share one core here, which no tree does. Each finds its caches cold when its turn comes, and that "
    "is paid once for all messages that wait for it by then: with fewer calls under way there are fewer of them, and a "
    "call's share is larger. No promise is made for this.",
    "mcp-proxy 0.13.0, in front of the same server over stdio": "It serves stdio servers only, so the server is its "
    "child here; the child's CPU time is not counted. nginx is in front of the HTTP server as everywhere.",
}


class Section(msgspec.Struct, kw_only=True):
    name: str
    title: str
    job: Job
    figures: list[Figures]

    def of(self, name: str) -> Figures | None:
        return next((one for one in self.figures if one.name == name and one.samples), None)


class Report(msgspec.Struct, kw_only=True):
    machine: str
    python: str
    pinned: bool
    load_before: float = 0.0
    sections: list[Section]
    crowds: list[Crowd] = []
    guard: Guarding | None = None
    aql: AqlCosts | None = None
    approvals: dict[str, float] = {}
    forest: list[Planted] = []
    first_run: FirstRun | None = None
    rooms: RoomFigures | None = None
    names: NameFigures | None = None
    devices: DeviceFigures | None = None


class Limit(msgspec.Struct, kw_only=True):
    """A promise and what was measured of it; None where it could not be measured."""

    promise: str
    measured: str | None
    kept: bool | None


def limits(report: Report) -> list[Limit]:
    found = []
    for section in report.sections:
        node, nginx, direct = section.of("interlock"), section.of("nginx"), section.of("direct")
        if section.name in ("calls", "heads", "legacy"):
            most = REAL_RATIO_MAX if section.job.heads == "real" else CPU_RATIO_MAX
            promise = f"CPU time of a call at most {most} times nginx's ({section.title})"
            cost = ratio(node, nginx) if node and nginx else None
            found.append(limit(promise, cost, most, "times"))
        if section.title in (LARGE_REQUESTS, LARGE_RESULTS):
            promise = f"CPU time at most {LARGE_RATIO_MAX} times nginx's ({section.title})"
            found.append(limit(promise, ratio(node, nginx) if node and nginx else None, LARGE_RATIO_MAX, "times"))
        if section.title == BESIDE:
            promise = f"p99 of {BESIDE} at most {BESIDE_P99_MAX_US / 1000:.0f} ms"
            slowest = spread([one.p99_us for one in node.samples]) if node else None
            found.append(limit(promise, slowest, BESIDE_P99_MAX_US, "us"))
        if section.title == ONE_CORE:
            promise = f"p50 at one connection raised by less than {ADDED_P50_MAX_US / 1000} ms"
            found.append(limit(promise, added(node, direct) if node and direct else None, ADDED_P50_MAX_US, "us"))
        if section.name == "calls":
            idle = node.idle_mb if node else None
            memory = Spread(idle, idle, idle) if idle is not None else None
            found.append(limit(f"an idle node resident in at most {IDLE_MAX_MB:.0f} MB", memory, IDLE_MAX_MB, "MB"))
        if section.name == "cells":
            for cell in ACROSS:
                promise = f"CPU time of a call at most {CROSSING_RATIO_MAX} times a call's within one era ({cell})"
                found.append(limit(promise, crossing(section.figures, cell), CROSSING_RATIO_MAX, "times"))
        if section.title == MANY:
            for depth in DEPTHS[1:]:
                promise = f"CPU time of each further hop at most {HOP_RATIO_MAX} times the first's (depth {depth})"
                cost = further(section.figures, f"depth {depth}", of_first=True)
                found.append(limit(promise, cost, HOP_RATIO_MAX, "times"))
    if report.guard is not None:
        promise = f"a call that nothing holds pays at most {GUARD_MAX_US:.0f} us for the guard"
        found.append(limit(promise, report.guard.added_us(GUARDED), GUARD_MAX_US, "us"))
    if report.aql is not None:
        promise = f"an operation costs at most {ADDED_MAX_US:.0f} us more than a flat call"
        for way in report.aql.ways:
            found.append(limit(f"{promise} ({way})", report.aql.added_us(way), ADDED_MAX_US, "us"))
        promise = f"a search over {OPERATIONS:,} operations takes at most {SEARCH_MAX_MS:.0f} ms"
        found.append(limit(promise, report.aql.slowest_search_ms(), SEARCH_MAX_MS, "ms"))
    if report.first_run is not None:
        promise = f"from clone to the first call at most {FIRST_CALL_MAX_S:.0f} s, with warm package caches"
        found.append(limit(promise, report.first_run.spread_of(FIRST_CALL), FIRST_CALL_MAX_S, "s"))
    found += [stay(crowd) for crowd in report.crowds]
    for promise, value, kept, unit in rooms.promises(report.rooms) if report.rooms is not None else ():
        found.append(Limit(promise=promise, measured=shown(value, unit) if value is not None else None, kept=kept))
    for promise, taken, kept, unit in names.promises(report.names) if report.names is not None else ():
        found.append(Limit(promise=promise, measured=shown(Spread(taken, taken, taken), unit), kept=kept))
    for promise, share, kept, unit in devices.promises(report.devices) if report.devices is not None else ():
        found.append(Limit(promise=promise, measured=shown(share, unit), kept=kept))
    return found + [limit for planted in report.forest for limit in seen_above(planted)]


def unsteadiness(section: Section) -> float:
    """How far the rounds of a promised ratio lie apart, of their median; 0 where none is promised."""
    node, nginx = section.of("interlock"), section.of("nginx")
    is_promised = section.name in ("calls", "heads", "legacy") or section.title in (LARGE_REQUESTS, LARGE_RESULTS)
    if not is_promised or node is None or nginx is None or len(node.samples) != len(nginx.samples):
        return 0.0
    cost = ratio(node, nginx)
    return (cost.high - cost.low) / cost.median


def seen_above(planted: Planted) -> Iterator[Limit]:
    """Whether every change was listed in time; not the usual one."""
    total = f"{planted.subservers * planted.tools:,} tools of {planted.subservers:,} subservers, {planted.title}"
    for what, seconds in (("changes its list", planted.changed), ("deregisters", planted.left)):
        promise = f"a subserver that {what}: seen in the root's list within {planted.interval_s:g} s ({total})"
        if not seconds:
            yield Limit(promise=promise, measured=None, kept=None)
        else:
            yield Limit(
                promise=promise, measured=shown(median_ms(seconds), "ms"), kept=max(seconds) <= planted.interval_s
            )


def stay(crowd: Crowd) -> Limit:
    promise = (
        f"{crowd.count:,} {crowd.title}: nothing alive after they ended, and no growth, within "
        f"{GROWTH_MAX_MB:.0f} MB, from the second cycle to the last"
    )
    if not crowd.cycles:
        return Limit(promise=promise, measured=None, kept=None)
    left = "nothing alive" if crowd.gone else f"alive: {crowd.cycles[-1].ended.said}"
    measured = f"{crowd.each_kb:.1f} KB each; {left}, {crowd.grown_mb:+.1f} MB in {len(crowd.cycles) - 2} cycles"
    return Limit(promise=promise, measured=measured, kept=crowd.gone and crowd.grown_mb <= GROWTH_MAX_MB)


def limit(promise: str, value: Spread | None, most: float, unit: str) -> Limit:
    if value is None:
        return Limit(promise=promise, measured=None, kept=None)
    return Limit(promise=promise, measured=shown(value, unit), kept=value.median <= most)


def shown(value: Spread, unit: str) -> str:
    if value.low == value.high:
        return f"{value.median:.1f} {unit}"
    digits = 2 if value.high < (100 if unit == "times" else 10) else 0
    middle = f"{value.median:,.{digits}f} {unit}".strip()
    return f"{middle} ({value.low:,.{digits}f} to {value.high:,.{digits}f})"


def missed(report: Report) -> list[str]:
    return [
        f"not kept: {one.promise}: {one.measured}" if one.kept is False else f"not measured: {one.promise}"
        for one in limits(report)
        if not one.kept
    ]


COLUMNS = ("contestant", "CPU per request", "of nginx's", "p50", "p99", "requests/s", "answer", "memory idle, loaded")


def rows(section: Section) -> Iterator[list[str]]:
    reference = section.of("nginx")
    for one in section.figures:
        if not one.samples:
            yield [one.name, f"no part: {one.absent}", *[""] * (len(COLUMNS) - 2)]
            continue
        alone = one.name == "direct"
        same = reference is not None and len(reference.samples) == len(one.samples)
        cost = ratio(one, reference) if reference is not None and same and not alone else None
        yield [
            one.name,
            "" if alone else time(one.median("cpu_us")),
            shown(cost, "times") if cost is not None and one is not reference else "",
            time(one.median("p50_us")),
            time(one.median("p99_us")),
            f"{one.median('per_second'):,.0f}",
            answer(one.samples[-1]),
            "" if one.idle_mb is None else f"{one.idle_mb:.0f} MB, {one.loaded_mb or 0:.0f} MB",
        ]


def answer(sample: Sample) -> str:
    size = f"{sample.answer_bytes:,} bytes"
    return f"{sample.tools:,} tools, {sample.pages} pages, {size}" if sample.tools else size


def time(microseconds: float) -> str:
    return f"{microseconds:.0f} us" if microseconds < 10_000 else f"{microseconds / 1000:.1f} ms"


def about(section: Section) -> str:
    job = section.job
    rounds = max(len(one.samples) for one in section.figures)
    connections = f"{job.connections} connection{'s' if job.connections > 1 else ''}"
    return f"{connections}, {job.count:,} requests in each of {rounds} rounds after {job.warmup:,} to warm up"


CELL_COLUMNS = ("cell", "CPU per call", "of the cheaper same-era cell's", "p50", "p99", "requests/s", "answer")


def cell_rows(section: Section) -> Iterator[list[str]]:
    for one in section.figures:
        if not one.samples:
            yield [one.name, f"no part: {one.absent}", *[""] * (len(CELL_COLUMNS) - 2)]
            continue
        cost = crossing(section.figures, one.name)
        yield [
            one.name,
            time(one.median("cpu_us")),
            shown(cost, "times") if cost is not None and one.name not in SAME else "",
            time(one.median("p50_us")),
            time(one.median("p99_us")),
            f"{one.median('per_second'):,.0f}",
            answer(one.samples[-1]),
        ]


HOP_COLUMNS = (
    "depth",
    "CPU per call",
    "CPU of a further hop",
    "of the first",
    "p50",
    "p50 added by a hop",
    "requests/s",
)


def hop_rows(section: Section) -> Iterator[list[str]]:
    for one in section.figures:
        if not one.samples:
            yield [one.name, f"no part: {one.absent}", *[""] * (len(HOP_COLUMNS) - 2)]
            continue
        cost = further(section.figures, one.name)
        relative = further(section.figures, one.name, of_first=True)
        added_us = further(section.figures, one.name, "p50_us")
        yield [
            one.name.removeprefix("depth "),
            time(one.median("cpu_us")),
            time(one.median("cpu_us")) if one.name == FIRST else shown(cost, "us") if cost is not None else "",
            shown(relative, "times") if relative is not None else "",
            time(one.median("p50_us")),
            shown(added_us, "us") if added_us is not None else "",
            f"{one.median('per_second'):,.0f}",
        ]


FOREST_COLUMNS = (
    "tree",
    "registrations/s",
    "all listed after",
    "memory of one",
    "memory, none and all",
    "a changed list is seen after",
    "a deregistration is seen after",
    "CPU at rest",
)
ABOUT_FOREST = (
    "Every subserver dials `/ax` with a token, registers, is greeted and asked for its lists, and sends heartbeats "
    "twice in each interval of 5 s, the default; 32 register at a time. A registration counts when it was answered and "
    "the subserver's list was read; all are listed when the root's list, read page by page again and again, has every "
    "tool. With a root above, both nodes share one core, and the root reads the growing list of the lower one "
    "meanwhile."
)
ON_CHANGES = (
    "A change is timed from the subserver's message to the first answer of the root that shows it, while a client asks "
    "for its first page every few milliseconds. The word of a change is held back for 50 ms so that several make one, "
    "and a list of 20,000 tools is not read again within a second; the changes here come 1.5 s apart and do not meet "
    "that. Memory is resident memory of the node with the subservers before and with all of them, and of the root "
    "above it with their tools listed; the memory of one is a subserver with its 20 tools. CPU at rest is that of all "
    "nodes while nothing happens but heartbeats, as a share of one core."
)


def forest_rows(forest: list[Planted]) -> Iterator[list[str]]:
    for one in forest:
        rate = one.per_second
        if rate is None or not one.changed or not one.left:
            yield [one.title, "not measured here", *[""] * (len(FOREST_COLUMNS) - 2)]
            continue
        root = f", root {one.root_mb:.0f} MB" if one.root_mb else ""
        yield [
            f"{one.title}, {one.subservers:,} subservers, {one.subservers * one.tools:,} tools",
            shown(rate, ""),
            shown(median_ms(one.gathered), "ms"),
            "" if one.root_mb else f"{one.each_kb:.0f} KB",
            f"{one.before_mb:.0f} MB, {one.all_mb:.0f} MB{root}",
            shown(median_ms(one.changed), "ms"),
            shown(median_ms(one.left), "ms"),
            f"{one.idle_share:.1%}",
        ]


CROWD_COLUMNS = ("clients", "memory of one", "before", "cycle", "all there", "all gone", "alive there", "alive gone")
ABOUT_CROWDS = (
    "The clients come, stay and leave, cycle after cycle. A session has a connection for its requests and one for its "
    "stream. A parked call is one of a modern client whose legacy server asked something in mid-call: the client was "
    "answered `input_required` and keeps nothing open, the node holds the connection on which the server asked, and in "
    "the end each is taken up again and answered. The node has its default limits."
)
ON_MEMORY = (
    "The memory of one is what the resident memory of the node grew by in the first cycle, divided by their number. "
    "What is alive is what the node counts itself, and its descriptors; up to 256 of them are idle connections to the "
    "server, kept for half a minute. Resident memory does not fall back when all are gone: Python's allocator gives an "
    "arena of 1 MB back only when nothing in it is used, the C library's only what lies at the end of its heap, and "
    "neither is asked to tidy up here (no `malloc_trim`, no `gc.collect`). What was freed is used by the next cycle: "
    "when the most that a cycle takes does not grow from the second on, nothing is kept."
)


def crowd_rows(crowds: list[Crowd]) -> Iterator[list[str]]:
    for crowd in crowds:
        if not crowd.cycles:
            yield [f"{crowd.count:,} {crowd.title}", "not measured here", *[""] * (len(CROWD_COLUMNS) - 2)]
        for number, cycle in enumerate(crowd.cycles, 1):
            first = [f"{crowd.count:,} {crowd.title}", f"{crowd.each_kb:.1f} KB", f"{crowd.before_mb:.1f} MB"]
            memory = [f"{cycle.open_mb:.1f} MB", f"{cycle.ended_mb:.1f} MB"]
            head = first if number == 1 else [""] * 3
            yield [*head, str(number), *memory, cycle.open.said, cycle.ended.said]


ABOUT_APPROVALS = (
    f"The inbox of a node on its own store, {AT_ONCE} at once; each step is on disk before it counts. Disks differ, "
    "so no promise is made."
)
CONTRACT_COLUMNS = ("call", "CPU per call", "of the first's", "p50", "p99", "requests/s")


def contract_rows(section: Section) -> Iterator[list[str]]:
    plain = section.of(section.figures[0].name)
    for one in section.figures:
        if not one.samples or plain is None:
            yield [one.name, f"no part: {one.absent}", *[""] * (len(CONTRACT_COLUMNS) - 2)]
            continue
        yield [
            one.name,
            time(one.median("cpu_us")),
            shown(ratio(one, plain), "times") if one is not plain else "",
            time(one.median("p50_us")),
            time(one.median("p99_us")),
            f"{one.median('per_second'):,.0f}",
        ]


ABOUT_AQL = (
    "What an operation costs more than the same call of the flat list, through the same dispatcher in one process; and "
    f"what a search of introspection takes over {OPERATIONS:,} operations."
)
GUARD_COLUMNS = ("way", "CPU per call", "more than without a guard")
ABOUT_GUARD = (
    "From the dispatcher's request to the client's answer, in one process and without a network: the route is found, "
    "the request written, a server in memory answers at once. Without a guard nothing is asked between the "
    "route and the link. The two budgets are the subserver's and the caller's, both with room. The ways take turns of "
    f"{CALLS:,} calls, and are compared within a turn; of the differences the median is given, with the middle half."
)


def guard_rows(guard: Guarding) -> Iterator[list[str]]:
    for way in guard.turns:
        added = guard.added_us(way)
        more = shown(added, "us") if added is not None and way != UNGUARDED else ""
        yield [way, f"{guard.median_us(way):.1f} us", more]


ABOUT_FIRST_RUN = (
    "A clone of the repository, `make run`, and the first call with `interlock tools call`. Everything is installed "
    "again; the caches of pip and npm are warm. Seconds since the beginning of the clone."
)


def first_run_rows(first_run: FirstRun) -> Iterator[list[str]]:
    for step in first_run.seconds:
        taken = first_run.spread_of(step)
        yield [step, shown(taken, "s") if taken is not None else ""]


class Part(msgspec.Struct):
    title: str
    words: list[str]
    columns: tuple[str, ...]
    rows: list[list[str]]


def parts(report: Report) -> list[Part]:
    found = []
    for section in report.sections:
        words = [about(section) + ".", *([NOTES[section.title]] if section.title in NOTES else [])]
        if section.name == "cells":
            found.append(Part(section.title, words, CELL_COLUMNS, list(cell_rows(section))))
        elif section.name in ("contracts", "chatter"):
            found.append(Part(section.title, words, CONTRACT_COLUMNS, list(contract_rows(section))))
        elif section.name == "hops":
            found.append(Part(section.title, words, HOP_COLUMNS, list(hop_rows(section))))
        else:
            found.append(Part(section.title, words, COLUMNS, list(rows(section))))
    if report.guard is not None and report.guard.turns:
        found.append(Part("the guard", [ABOUT_GUARD], GUARD_COLUMNS, list(guard_rows(report.guard))))
    if report.aql is not None:
        listed = [[way, f"{shown_spread(report.aql.added_us(way), '+.1f')} us"] for way in report.aql.ways]
        listed += [
            [f"search: {each}", f"{shown_spread(spread(ms), '.2f')} ms"] for each, ms in report.aql.searches.items()
        ]
        found.append(Part("the AQL layer", [ABOUT_AQL], ("what", "CPU time"), listed))
    if report.approvals:
        listed = [[name, f"{figure:,.{0 if figure > 10 else 2}f}"] for name, figure in report.approvals.items()]
        found.append(Part("approvals", [ABOUT_APPROVALS], ("what", "figure"), listed))
    if report.first_run is not None:
        listed = list(first_run_rows(report.first_run))
        found.append(Part("first run", [ABOUT_FIRST_RUN], ("step", "time"), listed))
    if report.crowds:
        listed = list(crowd_rows(report.crowds))
        found.append(Part("clients that stay", [ABOUT_CROWDS, ON_MEMORY], CROWD_COLUMNS, listed))
    if report.forest:
        trees = list(forest_rows(report.forest))
        found.append(Part("subservers by the thousand", [ABOUT_FOREST, ON_CHANGES], FOREST_COLUMNS, trees))
    if report.rooms is not None:
        found.append(Part("rooms", rooms.words(report.rooms), rooms.COLUMNS, list(rooms.rows(report.rooms))))
    if report.names is not None:
        found.append(Part("names", names.words(report.names), names.COLUMNS, list(names.rows(report.names))))
    if report.devices is not None:
        listed = list(devices.rows(report.devices))
        found.append(Part("devices", devices.words(report.devices), devices.COLUMNS, listed))
    return found


def tables(report: Report) -> Iterator[Table]:
    """Parts with the same columns share a table."""
    for columns, group in itertools.groupby(parts(report), key=lambda part: part.columns):
        drawn = Table(title=f"{report.machine}, Python {report.python}", title_justify="left")
        for column in columns:
            drawn.add_column(column)
        for part in group:
            drawn.add_row(f"[bold]{part.title}[/bold]")
            for row in part.rows:
                drawn.add_row(*row)
            drawn.add_section()
        yield drawn


def markdown(report: Report) -> str:
    cores = (
        "The load generator and the server share one core, the contestant has the other."
        if report.pinned
        else "Everything shares one core."
    )
    page = [
        "# Benchmarks",
        "Written by `python -m bench --write`. Do not edit.",
        f"{report.machine}, Python {report.python}. {cores} Contestants take turns round by round; ratios and "
        "differences are taken within a round, and the median of the rounds is given with the lowest and the highest. "
        "CPU time is user and system time of all processes of the contestant, read from the scheduler. The node "
        "authenticates a bearer token, routes, renames and writes an audit record for every call; nginx "
        "(`worker_processes 1`, keep-alive on both sides, no access log) only forwards." + _rough(report),
        "## Promises",
        "\n".join([*PROMISES_HEAD, *_promised(report)]),
        *(_drawn(part) for part in parts(report)),
        tokens.section(),
        instruction_counts.section(),
    ]
    return "\n\n".join(page) + "\n"


PROMISES_HEAD = ("| promise | measured | |", "|---|---|---|")
LAST = "## Tokens"  # parts that are new on a page stand before it


def updated(page: str, report: Report) -> str:
    """The page with the parts and promises of this run, which measured some sections alone; the others stay."""
    head, *found = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    for part in parts(report):
        alone = f"Measured apart from the others: {report.machine}, Python {report.python}.{_rough(report)}"
        drawn = _drawn(msgspec.structs.replace(part, words=[*part.words, alone])) + "\n\n"
        titles = [one.splitlines()[0] for one in found]
        if f"## {part.title}" in titles:
            found[titles.index(f"## {part.title}")] = drawn
        else:
            found.insert(titles.index(LAST), drawn)
    rows = [line for line in found[0].splitlines() if line.startswith("| ") and line not in PROMISES_HEAD]
    kept = {line.split(" | ")[0]: line for line in [*rows, *_promised(report)]}  # a newer one in its former place
    found[0] = "\n".join(["## Promises", "", *PROMISES_HEAD, *kept.values()]) + "\n\n"
    return head + "".join(found)


def _promised(report: Report) -> list[str]:
    words = {True: "kept", False: "**not kept**", None: "not measured here"}
    return [f"| {one.promise} | {one.measured or ''} | {words[one.kept]} |" for one in limits(report)]


def _drawn(part: Part) -> str:
    lines = [f"| {' | '.join(part.columns)} |", "|" + "---|" * len(part.columns)]
    lines += [f"| {' | '.join(row)} |" for row in part.rows]
    return "\n\n".join([f"## {part.title}", *part.words, "\n".join(lines)])


def _rough(report: Report) -> str:
    if report.load_before <= BUSY_LOAD:
        return ""
    return f" **The machine was busy with other work (load {report.load_before:.1f} before the run): rough figures.**"
