"""What the official suite is run against: every pair of eras, over every way between them.

A cell has the suite in front of a node and the fixture behind it. A leg has a client of ours in front of a node and the
suite behind it. Fixtures that others wrote stand in `foreign`.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

from tests.conformance import renaming, suite
from tests.conformance.foreign import FOREIGN, FOREIGN_ALONE, Foreign
from tests.conformance.gateway import node
from tests.conformance.shim import renamed
from tests.conformance.upstream import hosting
from tests.servers.start import everything, serving

ERAS = ("legacy", "modern")
AT_ONCE = 2  # scenarios of a leg, each a suite, a node and a client


@dataclass(frozen=True)
class Cell:
    """Which era the suite speaks in front, which the fixture speaks behind, and the way between them.

    alone     no node: the fixture itself
    http      /mcp/only/fixture, the fixture over HTTP
    stdio     /mcp/only/fixture, the fixture over stdio
    prefixed  /mcp, the fixture over HTTP, names put back by the renaming proxy
    """

    client: str
    server: str
    way: str

    @property
    def name(self) -> str:
        return f"{self.known_as}-{self.way}"

    @property
    def known_as(self) -> str:
        """Whose expectations hold: the way makes no difference."""
        return f"fixture-{self.server}" if self.way == "alone" else f"{self.client}-{self.server}"

    @property
    def title(self) -> str:
        return f"{self.server} fixture alone" if self.way == "alone" else f"{self.client} client, {self.server} server"

    @contextlib.contextmanager
    def target(self) -> Iterator[str]:
        """The URL for the suite."""
        options = ("--era", self.server)
        with contextlib.ExitStack() as stack:
            reach: str | list[str] = everything("--stdio", *options)
            if self.way != "stdio":
                reach = stack.enter_context(serving(everything(*options)))
            if self.way == "alone":
                yield str(reach)
                return
            running = stack.enter_context(node({renaming.SEGMENT: reach}, roots=["/shop"]))
            found = running.link(renaming.SEGMENT)["era"]
            if found != self.server:
                raise RuntimeError(f"the fixture was to be {self.server}, the node found it {found}")
            if self.way == "prefixed":
                yield stack.enter_context(renamed(running.url))
            else:
                yield f"{running.url}/mcp/only/{renaming.SEGMENT}"

    def run(self) -> dict[str, suite.Scenario]:
        with self.target() as url:
            return suite.run_server(url, suite.REQUIREMENTS[self.client])


@dataclass(frozen=True)
class Leg:
    """Which era our client speaks in front, and which the suite speaks behind."""

    client: str
    server: str

    @property
    def name(self) -> str:
        return f"upstream-{self.client}-{self.server}"

    @property
    def known_as(self) -> str:
        return self.name

    @property
    def title(self) -> str:
        return f"upstream, {self.client} client, {self.server} server"

    @property
    def scenarios(self) -> list[str]:
        return [one for one in suite.client_scenarios(suite.REQUIREMENTS[self.server]) if suite.is_run(one)]

    def run(self) -> dict[str, suite.Scenario]:
        revision = suite.REQUIREMENTS[self.server]
        with hosting(self.client) as command, ThreadPoolExecutor(AT_ONCE) as pool:
            done = pool.map(lambda scenario: suite.run_client(command, scenario, revision), self.scenarios)
            return dict(zip(self.scenarios, done, strict=True))


Trial = Cell | Leg | Foreign

ALONE = [Cell(era, era, "alone") for era in ERAS]
CELLS = [Cell(client, server, way) for client, server in product(ERAS, ERAS) for way in ("http", "stdio", "prefixed")]
LEGS = [Leg(client, server) for server, client in product(ERAS, ERAS)]
TRIALS: list[Trial] = [*ALONE, *CELLS, *LEGS, *FOREIGN_ALONE, *FOREIGN]
