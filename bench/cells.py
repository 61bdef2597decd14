"""The four cells: a client of either era calls a server of either era through one node, and the cells take turns.

What a cell costs is the CPU time of the node per call; what crossing costs is its ratio to the cheaper same-era cell
of the same round.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from bench import contestants
from bench.load import Job
from bench.measure import Figures, Spread, fast_server, sample, spread
from bench.processes import NotStarted, cores

ERAS = ("modern", "legacy")
CELLS = {f"{client} client, {server} server": (client, server) for client in ERAS for server in ERAS}
SAME = tuple(cell for cell, (client, server) in CELLS.items() if client == server)
ACROSS = tuple(cell for cell in CELLS if cell not in SAME)


def take_turns(job: Job, rounds: int, say: Any) -> list[Figures]:
    figures = {cell: Figures(name=cell) for cell in CELLS}
    with contextlib.ExitStack() as stack:
        try:
            servers = {era: contestants.dialled(stack.enter_context(fast_server(era))) for era in ERAS}
            node = stack.enter_context(contestants.node(servers, cores()[1]))
            for number in range(1, rounds + 1):
                for cell, (client, server) in CELLS.items():
                    taken = sample(replace(node, tool=f"{server}__echo"), msgspec.structs.replace(job, era=client))
                    figures[cell].samples.append(taken)
                    say(f"  round {number}: {cell:28} {taken.cpu_us:7.1f} us CPU   p50 {taken.p50_us:7.1f} us")
        except NotStarted as reason:
            say(f"  failed: {reason}")
            for one in figures.values():
                one.absent, one.samples = "the node failed", []
    return list(figures.values())


def crossing(figures: Sequence[Figures], cell: str) -> Spread | None:
    """What a cell costs, of the cheaper of the same-era cells in each round."""
    samples = {one.name: one.samples for one in figures}
    rounds = zip(samples[cell], *(samples[same] for same in SAME), strict=True)
    ratios = [one.cpu_us / min(other.cpu_us for other in same) for one, *same in rounds]
    return spread(ratios) if ratios else None
