"""What a link asks of whoever knows which task is whose."""

from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw

from interlock.protocol.jsonrpc.messages import Request
from interlock.runtime.calls.call import Pending
from interlock.runtime.calls.caller import Asked, Caller

if TYPE_CHECKING:
    from interlock.runtime.links.link import Link


class Asking(Protocol):
    """On whose behalf a server asks: a call under way, or a task that goes on without one."""

    asking: int
    progressed: bool

    @property
    def caller(self) -> Caller: ...

    def on_request(self, link: Asked, request: Request) -> None: ...


class TaskWatcher(Protocol):
    """Whoever knows which task is whose."""

    def on_task_status(self, link: "Link", params: Raw) -> None: ...

    def on_task_progress(self, link: "Link", progress_id: int, params: dict[str, Raw]) -> None:
        """Progress that belongs to no call under way."""

    def on_task_log(self, link: "Link", params: Raw) -> bool:
        """True when the message is about a task, and seen to."""

    def on_task_request(self, link: "Link", request: Request, origin: Pending | None) -> bool:
        """True when the request is about a task, and seen to."""

    def on_task_answer(self, link: "Link", upstream_id: bytes, payload: bytes) -> bytes:
        """A client's answer to a server's request, as the server is to hear it."""

    def named_for(self, link: "Link", caller: Caller, related: Raw) -> Any:
        """The task a client's request says it belongs to, as the server knows it; None if it does not."""

    def of_others(self, link: "Link", principals: set[str]) -> bool:
        """Whether tasks of anybody else may still run at this server."""
