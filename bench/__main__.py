"""python -m bench [--quick] [--write] [--check] [--only SECTION ...]: measure, print, keep .cache/bench.json."""

import argparse
import os
import platform
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from bench import (
    aql_layer,
    cells,
    chatter,
    contestants,
    contracts,
    crowds,
    devices,
    first_run,
    forest,
    guards,
    hops,
    inbox,
    names,
)
from bench.load import Job
from bench.measure import compete
from bench.processes import CACHE, ROOT
from bench.report import (
    BESIDE,
    BUSY_LOAD,
    CHATTER,
    CONTRACTS,
    LARGE_REQUESTS,
    LARGE_RESULTS,
    ONE_CORE,
    REAL_HEADS,
    SAME_HEAD,
    TWO_CORES,
    UNSTEADY_MAX,
    Report,
    Section,
    markdown,
    missed,
    tables,
    unsteadiness,
    updated,
)
from bench.rooms import measure as rooms

SECTIONS = (
    "calls",
    "heads",
    "large",
    "legacy",
    "latency",
    "lists",
    "cells",
    "contracts",
    "chatter",
    "hops",
    "guard",
    "aql",
    "approvals",
    "crowds",
    "subservers",
    "rooms",
    "names",
    "devices",
    "first-run",
    "others",
)
MANY_TOOLS = 10_000
ATTEMPTS_MAX = 3  # to measure a section whose rounds agree
MEGABYTE = 1_000_000


def measure(options: argparse.Namespace, console: Console) -> Report:
    fast = {"nginx": contestants.nginx, "interlock": contestants.interlock}
    if options.sketch is not None:
        fast["sketch"] = contestants.sketch(options.sketch)
    both = {name: fast[name] for name in ("nginx", "interlock")}
    rounds, scale = (3, 0.2) if options.quick else (7, 1.0)

    def calls(count: int) -> int:
        return max(int(count * scale), 20)

    def say(line: str) -> None:
        console.print(line, highlight=False)

    def section(name: str, title: str, starts: dict[str, contestants.Start], job: Job, **more: int) -> None:
        if name not in options.only:
            return
        turns = {"rounds": rounds, **more}
        for attempt in range(1, (ATTEMPTS_MAX if options.write else 1) + 1):
            console.print(f"[bold]{title}[/bold]" + (f", attempt {attempt}" if attempt > 1 else ""))
            figures = compete(starts, job, say=say, **turns)
            made = Section(name=name, title=title, job=job, figures=list(figures.values()))
            if unsteadiness(made) <= UNSTEADY_MAX:
                break
            say(f"  the rounds differ by {unsteadiness(made):.0%} of their median")
        sections.append(made)

    sections: list[Section] = []
    ordinary = Job(port=0, warmup=calls(2000), count=calls(20000))
    section("calls", "tools/call, 2026-07-28", fast, ordinary)
    for title, heads in ((SAME_HEAD, "same"), (REAL_HEADS, "real")):
        section("heads", title, fast, msgspec.structs.replace(ordinary, heads=heads))
    few = Job(port=0, connections=4, warmup=calls(20), count=calls(200))
    section("large", LARGE_REQUESTS, both, msgspec.structs.replace(few, text_bytes=MEGABYTE))
    section("large", LARGE_RESULTS, both, few, result_bytes=MEGABYTE)
    section(
        "large", BESIDE, both, Job(port=0, connections=4, warmup=100, count=calls(4000), beside_bytes=15 * MEGABYTE)
    )
    section(
        "legacy",
        "tools/call, 2025-11-25 with a session",
        fast if options.sketch is None else {name: fast[name] for name in ("nginx", "interlock")},
        Job(port=0, era="legacy", warmup=calls(2000), count=calls(20000)),
    )
    alone = Job(port=0, connections=1, warmup=calls(500), count=calls(5000))
    section("latency", ONE_CORE, {"direct": contestants.direct, **fast}, alone, apart=False)
    section("latency", TWO_CORES, {"direct": contestants.direct, **fast}, alone)
    section(
        "lists",
        f"tools/list of {MANY_TOOLS:,} tools",
        {name: fast[name] for name in ("nginx", "interlock")},
        Job(port=0, method="tools/list", connections=1, warmup=2, count=calls(100)),
        tools=MANY_TOOLS,
    )
    if "cells" in options.only:
        title, job = "the four cells", Job(port=0, warmup=calls(500), count=calls(10000))
        console.print(f"[bold]{title}[/bold]")
        turns = cells.take_turns(job, rounds, say)
        sections.append(Section(name="cells", title=title, job=job, figures=turns))
    if "contracts" in options.only:
        title, job = CONTRACTS, Job(port=0, warmup=calls(500), count=calls(10000))
        console.print(f"[bold]{title}[/bold]")
        turns = contracts.take_turns(job, rounds, say)
        sections.append(Section(name="contracts", title=title, job=job, figures=turns))
    if "chatter" in options.only:
        job = Job(port=0, warmup=calls(500), count=calls(10000))
        console.print(f"[bold]{CHATTER}[/bold]")
        turns = chatter.take_turns(job, rounds, say)
        sections.append(Section(name="chatter", title=CHATTER, job=job, figures=turns))
    if "hops" in options.only:
        console.print("[bold]calls through nodes below one another[/bold]")
        many = Job(port=0, connections=hops.CONNECTIONS, warmup=calls(1000), count=calls(10000))
        few = msgspec.structs.replace(many, connections=Job(port=0).connections, count=calls(5000))
        for title, job, turns in hops.take_turns(many, few, rounds, say):
            sections.append(Section(name="hops", title=title, job=job, figures=turns))
    guard = None
    if "guard" in options.only:
        console.print("[bold]the guard[/bold]")
        guard = guards.measure(options.quick, say)
    aql = None
    if "aql" in options.only:
        console.print("[bold]the AQL layer[/bold]")
        aql = aql_layer.measure(options.quick, say)
    approvals: dict[str, float] = {}
    if "approvals" in options.only:
        console.print("[bold]approvals[/bold]")
        approvals = inbox.in_a_folder(*((500, 5_000) if options.quick else (inbox.PENDING, inbox.RECORDS)))
    stayed = crowds.measure(options.quick, say) if "crowds" in options.only else []
    planted = forest.measure(options.quick, say) if "subservers" in options.only else []
    fanned = rooms.measure(options.quick, say) if "rooms" in options.only else None
    registered = names.measure(options.quick, say) if "names" in options.only else None
    wired = None
    for attempt in range(1, (ATTEMPTS_MAX if options.write else 1) + 1) if "devices" in options.only else ():
        console.print("[bold]devices[/bold]" + (f", attempt {attempt}" if attempt > 1 else ""))
        wired = devices.measure(options.quick, say)
        if wired.unsteadiness <= UNSTEADY_MAX:
            break
        say(f"  what the rounds add differs by {wired.unsteadiness:.0%} of its median")
    newcomer = None
    if "first-run" in options.only:
        console.print("[bold]first run[/bold]")
        newcomer = first_run.measure(options.quick, say)
    slow = {
        "nginx": contestants.nginx,
        "create_proxy(url)": contestants.fastmcp(contestants.FASTMCP),
        "create_proxy(client)": contestants.fastmcp(contestants.FASTMCP_SHARED),
    }
    section("others", "FastMCP 4.1.2", slow, Job(port=0, warmup=20, count=calls(100)), rounds=3)
    slow = {"nginx": contestants.nginx, "mcp-proxy": contestants.mcp_proxy}
    legacy = Job(port=0, era="legacy", warmup=50, count=calls(400))
    section("others", "mcp-proxy 0.13.0, in front of the same server over stdio", slow, legacy, rounds=3)
    return Report(
        machine=f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        python=platform.python_version(),
        pinned=len(os.sched_getaffinity(0)) > 1,
        sections=sections,
        crowds=stayed,
        guard=guard,
        aql=aql,
        approvals=approvals,
        forest=planted,
        first_run=newcomer,
        rooms=fanned,
        names=registered,
        devices=wired,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a first look, not a figure")
    parser.add_argument(
        "--write", action="store_true", help="write docs/benchmarks.md, or its SECTIONs, unless rounds differ"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 when a limit is missed or cannot be judged")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="SECTION", help=str(SECTIONS))
    parser.add_argument("--sketch", type=Path, help="also load this program: python FILE LISTEN_PORT SERVER_PORT")
    options = parser.parse_args()
    console = Console()
    busy = os.getloadavg()[0]
    if busy > BUSY_LOAD:
        console.print(
            f"[yellow]the machine is busy with other work (load {busy:.1f}): the figures will be rough[/yellow]"
        )
    report = measure(options, console)
    report.load_before = busy
    for drawn in tables(report):
        console.print(drawn, no_wrap=True, crop=False)
    CACHE.mkdir(exist_ok=True)
    (CACHE / "bench.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    unsteady = [one.title for one in report.sections if unsteadiness(one) > UNSTEADY_MAX]
    if report.devices is not None and report.devices.unsteadiness > UNSTEADY_MAX:
        unsteady.append("devices")
    for title in unsteady:
        console.print(f"[red]rounds differ by more than {UNSTEADY_MAX:.0%}: {title}[/red]")
    if options.write and unsteady:
        console.print("docs/benchmarks.md was not written: run it again when the machine is quiet")
        return 1
    if options.write:
        page = ROOT / "docs" / "benchmarks.md"
        is_whole = set(options.only) == set(SECTIONS)
        page.write_text(markdown(report) if is_whole else updated(page.read_text(), report))
        console.print("wrote docs/benchmarks.md")
    failures = missed(report)
    for failure in failures:
        console.print(f"[red]{failure}[/red]")
    return 1 if options.check and failures else 0


if __name__ == "__main__":
    sys.exit(main())
