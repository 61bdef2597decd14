"""The link of a driver's server: removes the secrets it was given from what it says, before any other part reads it.

It also notices by what the driver's file calls an expired login (`expiry.detect`), and says so once per connection.
"""

from collections.abc import Callable

from interlock.config.plan import ServerPlan
from interlock.core.calls.call import Pending
from interlock.core.clock import Clock
from interlock.drivers.protocol.selection.login_expiry import Detected, Detector
from interlock.drivers.secrets.vault import DriverRevealer
from interlock.links.connected_link import ServerLink
from interlock.links.link import LinkEvents
from interlock.links.pipes import StdioPipe, Trouble, Undelivered
from interlock.wire.jsonrpc.codec import Response, decode_untrusted
from interlock.wire.jsonrpc.errors import CodecError

_NAMES = {
    Trouble.UNREACHABLE: "tool_unavailable",
    Trouble.LOST: "upstream_error",
    Trouble.BUSY: "rate_limited",
    Trouble.UNAUTHORISED: "auth_failed",
    Trouble.SESSION_LOST: "upstream_error",
    Trouble.REFUSED: "upstream_error",
    Trouble.MALFORMED: "upstream_error",
}


class DriverLink(ServerLink):
    def __init__(
        self,
        plan: ServerPlan,
        events: LinkEvents,
        clock: Clock,
        *,
        vendor_meta: bool,
        revealer: DriverRevealer,
        redacts_results: bool,
        detector: Detector | None,
        on_expired: Callable[[str], None],
        owner: str | None = None,
    ) -> None:
        super().__init__(plan, events, clock, vendor_meta=vendor_meta, owner=owner)
        self._revealer = revealer
        self._redacts_results = redacts_results
        self._detector = detector
        self._on_expired = on_expired

    def on_message(self, data: bytes, origin: Pending | None) -> bool:
        redactor = self._revealer.redactor
        if redactor and redactor.is_in(data) and (self._redacts_results or not _is_result(data)):
            data = redactor.redacted(data)
        return super().on_message(data, origin)

    def on_undelivered(self, origin: Pending | None, what: Undelivered) -> None:
        # An OAuth login may get another token: it has not expired before its holder says so.
        if self._detector is not None and not (
            self.failed.can_renew_credential and what.trouble is Trouble.UNAUTHORISED
        ):
            headers = (*what.headers, *((b"www-authenticate", said) for said in what.challenges))
            self._look(Detected(status=what.status, headers=headers, exception=_NAMES[what.trouble]))
        super().on_undelivered(origin, what)

    def on_pipe_lost(self, reason: str) -> None:
        child = self.pipe.child if isinstance(self.pipe, StdioPipe) else None
        if self._detector is not None:
            exit_code = child.returncode if child is not None else None
            self._look(Detected(exit_code=exit_code, exception="upstream_error"))
        super().on_pipe_lost(reason)

    def _look(self, seen: Detected) -> None:
        if self._detector is not None and self._detector.is_expired(seen):
            self._on_expired(f"its login has expired ({self._detector.written})")


def _is_result(data: bytes) -> bool:
    try:
        message = decode_untrusted(data)
    except CodecError:
        return False
    return isinstance(message, Response) and not message.error
