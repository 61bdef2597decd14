"""Checks that need the servers themselves (`interlock check --upstream`), reported at the place of each in the file.

`survey` starts or dials every server as a node would, lists its tools and stops it again. No endpoint is opened and no
call is made; programs are started and packages installed, because nothing else can tell. `warnings_of` reports servers
that do not come up, tools that will be withheld and why, and rules about tools that no server has.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from interlock.ax.protocol.names import QUALIFIED_MAX, normalise
from interlock.catalog.api import Tool
from interlock.catalog.routes import HIDDEN
from interlock.config.load import Loaded, Problem
from interlock.config.plan import Plan
from interlock.config.problems import quoted_word
from interlock.drivers.api import DriverSummary
from interlock.drivers.parts import DriverParts
from interlock.links.api import Link
from interlock.node.node import Node
from interlock.store.ports import StoreError
from interlock.wire.refusal import Refused

PATIENCE_S = 120.0  # a first installation of several packages on a slow line
USABLE = ("ready", "slow")
LAST_WORDS = 3  # lines of stderr: the reason of most programs that end is in the last


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all configured servers, which `interlock check --upstream` has started or dialled."""

    links: tuple[Link, ...]
    tools: tuple[Tool, ...]
    drivers: tuple[DriverSummary, ...]
    last_words: Mapping[str, tuple[str, ...]]  # by segment: the end of what a program wrote to stderr


async def survey(plan: Plan, *, patience_s: float) -> Survey:
    """Start or dial every server of a plan, and return the resulting states after at most `patience_s` seconds."""

    def refuse_endpoint(*_: Any) -> None:
        raise AssertionError("a survey opens no endpoint")

    node = Node(plan, refuse_endpoint, listen=False)
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


def survey_of(loaded: Loaded) -> Survey:
    """Start or dial every server of a configuration, and return the resulting states. Raise Refused if the store cannot
    be used.
    """
    log = logging.getLogger("interlock")
    level = log.level
    log.setLevel(logging.CRITICAL)  # what goes wrong with a server is in the report
    try:
        return asyncio.run(survey(loaded.plan, patience_s=PATIENCE_S))
    except StoreError as error:
        raise Refused("store_refused", str(error), hint="--data names another folder") from None
    finally:
        log.setLevel(level)


def warnings_of(survey: Survey, loaded: Loaded, earlier: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Return the warnings about servers, drivers and [[tool]] entries that follow from the survey.

    Failures of servers that `earlier` explains are left out.
    """
    return (*_servers(survey, loaded, earlier), *_drivers(survey), *_rules(survey, loaded))


def _drivers(survey: Survey) -> Iterator[Problem]:
    """Yield warnings about drivers that are not ready, and about their files."""
    for driver in survey.drivers:
        file = str(Path(driver.folder) / "DRIVER.md")
        for each in driver.found:
            if each.severity == "warning":
                yield Problem(file=file, message=f"{each.message} [{each.code}]", hint=each.hint)
        if driver.state in ("ready", "kind_unsupported") or (driver.state == "rejected" and not driver.trusted):
            continue
        yield Problem(
            file=file,
            message=f"{driver.segment} is {driver.state}: {driver.reason or 'no reason given'}",
            hint=f"interlock drivers trust {driver.segment} shows it" if driver.state == "untrusted" else None,
        )


def _servers(survey: Survey, loaded: Loaded, problems: tuple[Problem, ...]) -> Iterator[Problem]:
    """Yield warnings about servers that do not answer, tools that are withheld, and settings for tools that do not
    exist.
    """
    plans = {server.segment: server for server in loaded.plan.servers}
    for link in survey.links:
        segment = link.segment
        if segment not in plans:
            continue  # a driver's, or a subserver's
        at = loaded.written["servers", segment]
        explained = any((item.key or "").startswith(f"servers.{segment}.") for item in problems)
        if link.state != "ready" and not (link.state == "failed" and explained):
            stderr_lines = [line for line in survey.last_words[segment] if line.strip()]
            state, reason = f"is {link.state}", link.reason or "no reason given"
            if link.state == "connecting":
                state, reason = f"is still connecting after {PATIENCE_S:g} s", link.reason or "no answer"
            hint = f"it wrote: {stderr_lines[-1].strip()}" if stderr_lines else None
            yield at.problem(f"[servers.{segment}] {state}: {reason}", hint)
        for item in link.withheld:
            if item.reason != HIDDEN:
                what, _, remedy = item.reason.partition("; ")
                yield at.problem(f"{quoted_word(item.name, QUALIFIED_MAX)} is withheld: {what}", remedy or None)
        if link.state in USABLE:
            offered = [tool.original for tool in survey.tools if tool.segment == segment]
            for name in plans[segment].classes:
                if name not in offered:
                    near = get_close_matches(name, offered, n=1)
                    hint = f"did you mean {quoted_word(near[0])}?" if near else "interlock tools list shows what it has"
                    yield at.inside("tools").inside(name).problem(f"the server has no tool {quoted_word(name)}", hint)


def _rules(survey: Survey, loaded: Loaded) -> Iterator[Problem]:
    """Yield a warning for each [[tool]] entry that matches no tool.

    Rules are only checked if every server is usable, because an unavailable server may have the tool.
    """
    if any(link.state not in USABLE for link in survey.links):
        return
    root = loaded.plan.ax.root_segment
    above = f"{root}." if root else ""
    names = [
        tool.name if tool.withheld is None else f"{above}{tool.segment}.{normalise(tool.original)}"
        for tool in survey.tools
    ]
    for index, rule in enumerate(loaded.plan.tools):
        at = loaded.written.get(("tool", str(index)))
        if at is not None and not any(fnmatchcase(name, rule.match) for name in names):
            near = get_close_matches(rule.match, names, n=1)
            hint = f"did you mean {quoted_word(near[0])}?" if near else "interlock tools list shows what there is"
            yield at.inside("match").problem(f"no tool is called {quoted_word(rule.match)}", hint)
