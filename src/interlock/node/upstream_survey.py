"""A look at every server of a plan: all are started or dialled as a node would, listed, and stopped again.

No endpoint is opened and no call is made. Programs are started and packages installed, because nothing else can tell.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from interlock.catalog.api import Tool
from interlock.config.plan import Plan
from interlock.drivers.api import DriverSummary
from interlock.drivers.parts import DriverParts
from interlock.links.api import Link
from interlock.node.node import Node

LAST_WORDS = 3  # lines of stderr: the reason of most programs that end is in the last


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    links: tuple[Link, ...]
    tools: tuple[Tool, ...]
    drivers: tuple[DriverSummary, ...]
    last_words: Mapping[str, tuple[str, ...]]  # by segment: the end of what a program wrote to stderr


async def survey(plan: Plan, *, patience_s: float) -> Survey:
    """Return the state of every server after its first attempt, or as connecting after `patience_s`."""
    node = Node(plan, _no_operator_endpoint, listen=False)
    try:
        await node.open()
        await node.readiness.settle(patience_s)
        loaded = node.get(DriverParts).drivers
        await loaded.settle(patience_s)
        operations = node.operations
        return Survey(
            links=operations.links.list_all().links,
            tools=operations.tools.list_all().tools,
            drivers=(await operations.drivers.list_all()).drivers if loaded.registry is not None else (),
            last_words={
                segment: tuple(line.text for line in operations.links.logs(segment, LAST_WORDS).lines)
                for segment in node.calls.keepers
            },
        )
    finally:
        await node.close()


def _no_operator_endpoint(*_: Any) -> None:
    raise AssertionError("a survey opens no endpoint")
