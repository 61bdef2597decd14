"""Failures inside the node while a call waits: the call is answered with an internal error instead of never.

The answer names a reference, under which the log has the exception.
"""

import logging
import secrets
from collections.abc import Coroutine
from typing import Any, Final

from interlock.core.calls.call import Call, Outcome, internal

_log: Final = logging.getLogger("interlock.calls")


async def answer_failures(call: Call, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` on behalf of `call`; any exception ends the call."""
    try:
        await work
    except Exception:
        ref = secrets.token_hex(6)
        _log.exception("%s: a call of it failed inside the node (ref %s)", call.target, ref)
        call.on_failed(internal(ref), Outcome.ERROR)
