"""The flow from a server without a driver to a folder in the workspace: ask, propose, agree, keep.

The caller decides who agrees and how: `agree` gets every tool with its proposed class and gives back what
is to be written. No server runs meanwhile: an import asks about the tools of several at once.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from interlock.ax.protocol.capability import ToolClass
from interlock.drivers.add.add import AddResult, NotAdded, add, known_contracts, survey
from interlock.drivers.add.trial import Say, TrialRunner
from interlock.drivers.protocol.authoring.proposal import Composed, Proposal, compose, propose
from interlock.drivers.protocol.files.inventory import SECRETS_FILE
from interlock.drivers.protocol.problems import Problem
from interlock.drivers.workspace.imported_folder import read_folder

Agree = Callable[[tuple[Proposal, ...]], Awaitable[tuple[Proposal, ...]]]


class DriverRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A driver to be made. `data`: its frontmatter, without implements; `files`: others of its folder."""

    data: Mapping[str, Any]
    files: Mapping[str, str] = {}
    tools: Mapping[str, str | None] | None = None  # only these, with the ids of their contracts
    classes: Mapping[str, ToolClass] = {}
    hints: Mapping[str, Any] = {}  # only_tools, without_tools, asks, asks_tools: what a source says of tools
    replaces: bool = False

    @property
    def id(self) -> str:
        return str(self.data["id"])


class WrapResult(msgspec.Struct, frozen=True, kw_only=True):
    added: AddResult
    composed: Composed
    proposals: tuple[Proposal, ...]


def request_of_draft(path: Path) -> DriverRequest:
    """The request that a draft in this folder makes. Raises NotAdded."""
    folder = read_folder(path)
    if not folder.data:
        raise NotAdded("bad_draft", f"{path} cannot be read", "interlock import writes it anew")
    return DriverRequest(
        data={key: value for key, value in folder.data.items() if key != "implements"},
        files={SECRETS_FILE: folder.secrets_text} if folder.secrets_text else {},
        hints=folder.record.hints if folder.record is not None else {},
    )


async def wrap(bench: TrialRunner, wanted: DriverRequest, agree: Agree, say: Say) -> WrapResult:
    """Wrap a server in a driver. Raises NotAdded, StoreError, OSError, what `agree` raises; then nothing was
    written."""
    stood = await survey(bench, wanted.data, wanted.files, say)
    data = dict(wanted.data)
    if stood.transport and data["transport"] in ("http", "sse"):
        data["transport"] = stood.transport  # AIP-transport-9
    if not stood.tools:
        raise NotAdded("no_tools", "the server has no tools", "there is nothing to make contracts of")
    known = known_contracts(bench.plan, wanted.id)
    tools = _choose_contracts(wanted, stood.tools)
    proposed = propose(stood.tools, wanted.id, wanted=tools, known=known, classes=wanted.classes)
    problems = [each for each in proposed if isinstance(each, Problem)]
    if problems:
        raise NotAdded(problems[0].code, problems[0].message, f"it has {problems[0].hint}", problems)
    proposals = await agree(tuple(each for each in proposed if isinstance(each, Proposal)))
    if not proposals:
        raise NotAdded("no_tools", "none of the server's tools is wanted", "there is nothing to make contracts of")
    asks = wanted.hints.get("asks", False) or frozenset(wanted.hints.get("asks_tools", ()))
    body = f"# {data.get('name')}\n\n{data.get('description')}"
    composed = compose(data, stood.tools, proposals, known=known, body=body, asks=asks)
    if not isinstance(composed, Composed):
        raise NotAdded(composed[0].code, composed[0].message, composed[0].hint, composed)
    files = {**wanted.files, **composed.files}
    added = await add(bench, wanted.id, files, say, replaces=wanted.replaces)
    return WrapResult(added=added, composed=composed, proposals=proposals)


def _choose_contracts(wanted: DriverRequest, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, str | None] | None:
    if wanted.tools is not None or not wanted.hints:
        return wanted.tools
    only, without = wanted.hints.get("only_tools"), wanted.hints.get("without_tools", ())
    names = (str(tool.get("name")) for tool in tools)
    return dict.fromkeys(name for name in names if (not only or name in only) and name not in without)
