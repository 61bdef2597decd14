"""A node that dies at one step of an approval's life, as by kill -9. This is run before the program.

MORTAL names the step: `create` or `update`, the status that is being written, `before` or `after` it is on disk; or
`sent` (the call has left), `heard` (its answer has come). `grant` and `before` or `after`: a use of a standing grant.
"""

import os
import signal
from typing import Any, NoReturn

STEP = os.environ.get("MORTAL", "")


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit  # never reached


def watch_the_drawer(name: str, status: str, when: str) -> None:
    from interlock.approvals.inbox import ApprovalStore

    original = getattr(ApprovalStore, name)

    async def watched(self: Any, approval: Any, *rest: Any) -> Any:
        concerned = approval.status.value == status
        if concerned and when == "before":
            die()
        filed = await original(self, approval, *rest)
        if concerned and when == "after":
            die()
        return filed

    setattr(ApprovalStore, name, watched)


def watch_the_grants(when: str) -> None:
    from interlock.approvals.standing_grants import StandingGrants

    original = StandingGrants._write

    async def watched(self: Any, stored: Any, revision: int | None) -> int:
        if stored.used and when == "before":
            die()
        written = await original(self, stored, revision)
        if stored.used:
            die()
        return written

    StandingGrants._write = watched  # type: ignore[method-assign]


def watch_the_link() -> None:
    from interlock.core.calls.call import Call
    from interlock.dispatch import dispatch

    if STEP == "sent":
        dispatch.forbid_resending = lambda call, link: die()
    else:
        heard = Call.on_response

        def on_response(self: Call, response: Any, era: Any) -> None:
            if self.target == "plant.fire":
                die()
            heard(self, response, era)

        Call.on_response = on_response  # type: ignore[method-assign]


if STEP in ("sent", "heard"):
    watch_the_link()
elif STEP.startswith("grant:"):
    watch_the_grants(STEP.partition(":")[2])
elif STEP:
    watch_the_drawer(*STEP.split(":"))
