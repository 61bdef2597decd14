"""Questions about tools of which nobody can compute whether they keep to their name: put to a person, once each.

What is accepted is one pair of schemas, for one tool: another revision or another definition is another question.
"""

import logging
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.classifications import Rulings
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Source
from interlock.approvals.protocol.digests import ACCEPT, SURFACE
from interlock.approvals.protocol.state import Status
from interlock.approvals.tool_definitions import NODE
from interlock.core.background import BackgroundTasks
from interlock.names.protocol.judgement import SchemaPair
from interlock.names.surface_check import UndecidedPair
from interlock.wire.jsonrpc.errors import Fault

log = logging.getLogger("interlock.names")

WAITING_MAX: Final = 50  # questions about one segment; more are asked when some are decided
SHOWN_BYTES_MAX: Final = 256 * 1024
_REASON: Final = "nobody can compute whether the tool keeps to the specification of its name"


class SurfaceQuestions:
    def __init__(self, inbox: Inbox, rulings: Rulings) -> None:
        self._inbox = inbox
        self._rulings = rulings
        self._work = BackgroundTasks()
        self._asking: set[tuple[str, str]] = set()

    async def open(self) -> None:
        """Questions of former runs are in the inbox."""

    async def close(self) -> None:
        await self._work.finish()

    def is_accepted(self, tool: str, digest: str) -> bool:
        ruling = self._rulings.maybe(tool, digest)
        return ruling is not None and ruling.says == ACCEPT

    def ask(self, pair: UndecidedPair) -> None:
        key = pair.tool, pair.digest
        if key in self._asking or self._rulings.maybe(*key) is not None:
            return
        if self._inbox.find_definition(pair.tool, pair.digest) is not None:
            return
        self._asking.add(key)
        self._work.begin(self._raise(pair), name=f"surface question {pair.tool}")

    async def _raise(self, pair: UndecidedPair) -> None:
        try:
            await self._void_outdated(pair)
            waiting = sum(one.target == pair.segment for one in self._inbox.waiting_definitions())
            params = _shown(pair)
            if waiting >= WAITING_MAX or len(params) > SHOWN_BYTES_MAX:
                log.warning("link %s: %s is undecided, and nobody can be asked now", pair.segment, pair.tool)
                return
            draft = self._inbox.draft(
                Kind.DEFINITION,
                Source.AX,
                requested_by=NODE,
                tool=pair.tool,
                digest=pair.digest,
                tool_digest=pair.digest,
                target=pair.segment,
                params=Raw(params),
                reason=_REASON,
                factors=(SURFACE,),
            )
            raised = await self._inbox.raise_(draft)
            if isinstance(raised, Fault):
                log.error("link %s: %s is undecided, and cannot be put into the inbox", pair.segment, pair.tool)
            else:
                log.warning("link %s: is %s what %s means? interlock approvals show %.8s", *_words(pair), raised.id)
        finally:
            self._asking.discard((pair.tool, pair.digest))

    async def _void_outdated(self, pair: UndecidedPair) -> None:
        """A newer pair takes the place of an older one, so that no server can fill the inbox."""

        def is_outdated(approval: Approval) -> bool:
            is_ours = approval.status is Status.PENDING and SURFACE in approval.factors
            return is_ours and approval.tool == pair.tool and approval.digest != pair.digest

        await self._inbox.void_where("superseded: the tool or its specification is another by now", is_outdated)


def _words(pair: UndecidedPair) -> tuple[str, str, str]:
    return pair.segment, pair.tool, pair.name


def _shown(pair: UndecidedPair) -> bytes:
    shown = {
        "name": pair.name,
        "registered": _schemas(pair.registered),
        "offered": _schemas(pair.offered),
        "differences": [str(each) for each in pair.differences],
    }
    return msgspec.json.encode({"surface": shown})


def _schemas(pair: SchemaPair) -> dict[str, Any]:
    return {"argument": pair.argument} | ({} if pair.returned is None else {"return": pair.returned})
