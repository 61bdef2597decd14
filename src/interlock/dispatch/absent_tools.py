"""Tools that a caller may see and that no list has now, each with the reason and the time to try again.

A tool is absent because it is withheld (an operator has to accept its changed definition, for instance), or because its
server is not there: it is connecting, being installed, or has failed. Both are answered with that reason instead of
"there is no tool", which would make a model look for another one. What the operator hid is not mentioned. Why a server
failed may name hosts and files, so only operators are told.

The tools of a server that never listed any are not known. A name that begins with its segment counts as one of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from interlock.ax.protocol.names import alias
from interlock.catalog.catalog import View
from interlock.catalog.routes import CHANGED
from interlock.core.link_state import RETRY_AFTER_MS, UNREACHABLE, USABLE, LinkState
from interlock.links.keeper import Keeper
from interlock.wire.refusal import METHOD_NOT_FOUND, TOOL_DEGRADED, Refusal

DECISION_MS: Final = 60_000  # a person decides, which is not a matter of seconds
WHY_CHARS_MAX: Final = 300  # a server may choose part of the text

WITHHELD: Final = "withheld"
_UNACCEPTED: Final = "an operator has not accepted its changed definition"
# What a client learns of a server or a driver in this state. Other states count as a failure.
_STATES: Final[Mapping[str, str]] = {
    "connecting": "its server is still connecting",
    "checking": "its server is still connecting",
    "installing": "its server is still being installed",
    "unauthorised": "its server waits for a credential",
    "untrusted": "an operator has not accepted the files of its server",
    "rejected": "the files of its server, or what it offers, cannot be used",
    "partial": "its server does not offer it as its contract describes it",
}
_FAILED: Final = "its server has failed"
_REASONS: Final = {
    **dict.fromkeys(("connecting", "checking"), "relisting"),
    **dict.fromkeys(("failed", "degraded", "unavailable", "stopped"), UNREACHABLE),
}
_FOR_A_PERSON: Final = frozenset(("unauthorised", "untrusted", "rejected", "partial"))
_PASSING: Final = frozenset(("connecting", "checking", "installing"))


class AbsentServer(msgspec.Struct, frozen=True, kw_only=True):
    """Server of which some or all tools are not listed, with its state and the reason."""

    segment: str  # below which its tools would be listed
    state: str
    detail: str | None  # for operators: it may name hosts and files
    tools: frozenset[str] | None = None  # their local names; None: they are not known


class AbsentTool(msgspec.Struct, frozen=True, kw_only=True):
    """Tool that cannot be called now. `qualified` and `original` are None if the object represents all tools of a
    server whose tools are unknown.
    """

    segment: str
    qualified: str | None
    original: str | None
    reason: str  # one word for programs
    why: str
    detail: str
    retry_after_ms: int

    @property
    def text(self) -> str:
        return f"{self.why}; try again in {self.retry_after_ms // 1000} s"

    @property
    def refusal(self) -> Refusal:
        # AX-13.2-2, AX-13.2-5: the words that a listed tool of such a server is refused with
        reason = _REASONS.get(self.reason, self.reason)
        data = {"reason": reason, "outcome": "not_sent", "retry_after_ms": self.retry_after_ms}
        if self.reason not in _PASSING:
            data["next"] = f"an operator looks at it: interlock status {self.segment}"
        if self.reason == WITHHELD:  # AX-5.2-2: for programs, a withheld tool is one that is not there
            data |= {"reason": "tool_not_found", "because": WITHHELD}
            return Refusal(METHOD_NOT_FOUND, f"tool_not_found: {self.text}", data)
        return Refusal(TOOL_DEGRADED, f"tool_degraded: {self.text}", data)


class AbsentTools:
    """Finder of the tools that a caller is allowed to see but that are not listed now, for example because their server
    is not connected.
    """

    def __init__(self, keepers: Mapping[str, Keeper]) -> None:
        self._keepers = keepers
        self._sources: list[Callable[[], Iterable[AbsentServer]]] = []

    def add_source(self, source: Callable[[], Iterable[AbsentServer]]) -> None:
        """Add a function that returns further absent servers, those for which the node has no keeper. An example is a
        driver that is installed and not running.
        """
        self._sources.append(source)

    def find(self, view: View, name: str) -> AbsentTool | None:
        """Return the absent tool to which a caller refers by `name`, or None. If its server is not connected, start to
        connect it.
        """
        for tool in self.all(view):
            if tool.qualified is None:
                qualified = view.find_name_below(tool.segment, name)
                if qualified is None or not view.names_tool(qualified):
                    continue
            elif name not in (tool.qualified, alias(tool.qualified)) and not (
                view.is_of_one_server and name == tool.original
            ):
                continue
            if (keeper := self._keepers.get(tool.segment)) is not None:
                keeper.wake()
            return tool
        return None

    def all(self, view: View) -> Iterator[AbsentTool]:
        """Yield the absent tools that a caller with this view is allowed to see. Tools with a known name come before
        those that represent all unknown tools of a server.
        """
        for segment, qualified, entry in view.withheld():
            why = _UNACCEPTED if entry.code == CHANGED else entry.reason.partition("; ")[0].partition(": ")[0]
            yield AbsentTool(
                segment=segment,
                qualified=qualified,
                original=entry.name,
                reason=WITHHELD,
                why=f"this tool is withheld: {why[:WHY_CHARS_MAX]}",
                detail=f"it is withheld: {entry.reason}",
                retry_after_ms=DECISION_MS,
            )
        servers = [server for server in self._servers(view) if view.may_hold(server.segment)]
        for server in servers:
            for local in sorted(server.tools or ()):
                qualified = view.qualify(server.segment, local)
                if view.names_tool(qualified) and view.find_tool(qualified) is None:
                    yield self._of(server, qualified, local)
        for server in servers:
            if server.tools is None:
                yield self._of(server, None, None)

    def _servers(self, view: View) -> Iterator[AbsentServer]:
        listed = {link.segment for link in view.links}
        for segment, keeper in self._keepers.items():
            standing = keeper.link.standing
            if keeper.is_offered and segment not in listed and standing.state not in (*USABLE, LinkState.STOPPED):
                yield AbsentServer(segment=segment, state=standing.state.value, detail=standing.reason)
        for source in self._sources:
            yield from source()

    def _of(self, server: AbsentServer, qualified: str | None, original: str | None) -> AbsentTool:
        why = f": {server.detail}" if server.detail else ""
        return AbsentTool(
            segment=server.segment,
            qualified=qualified,
            original=original,
            reason=server.state,
            why=_STATES.get(server.state, _FAILED),
            detail=f"{server.segment} is {server.state}{why}",
            retry_after_ms=DECISION_MS if server.state in _FOR_A_PERSON else RETRY_AFTER_MS,
        )
