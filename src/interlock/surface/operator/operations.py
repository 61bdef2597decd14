"""What the operator door asks of a running node, and the two ways a node says no.

The runtime implements `Operations`; `app` turns it into HTTP and adds nothing of its own. Every method returns values
that JSON can hold. Methods without `async` answer from memory and must not block. Nothing here authenticates: the
door does.
"""

from typing import TYPE_CHECKING, Any, Literal, Protocol

from interlock.runtime.approvals.views import Window
from interlock.runtime.node.operations import NotFound, Refused
from interlock.runtime.trust.passkeys import PasskeyDesk

if TYPE_CHECKING:
    from interlock.runtime.drivers.registry.operations import DriverDesk

__all__ = ["JsonObject", "NotFound", "Operations", "Refused", "SecretKind", "TokenDoor", "TokenScope"]

JsonObject = dict[str, Any]

TokenDoor = Literal["client", "subserver", "operator"]
TokenScope = Literal["read", "write", "admin"]
SecretKind = Literal["secret", "token", "client"]


class Operations(Protocol):
    @property
    def approvals(self) -> Window:
        """What waits for a decision."""

    @property
    def passkeys(self) -> PasskeyDesk:
        """Where people make passkeys."""

    async def drivers(self) -> "DriverDesk":
        """Where drivers are looked at and decided on. Raises Refused, StoreError."""

    def status(self) -> JsonObject: ...

    def links(self) -> JsonObject: ...

    def link(self, segment: str) -> JsonObject:
        """Raises NotFound."""

    def link_logs(self, segment: str, lines: int) -> JsonObject:
        """The newest `lines` of what the child wrote to stderr, oldest first. Raises NotFound."""

    async def restart_link(self, segment: str) -> JsonObject:
        """Returns when the old connection or process is gone, not when the new one is ready. Raises NotFound."""

    async def release_link(self, segment: str) -> JsonObject:
        """Forget who owns a segment, and what is kept for a subserver that is lost. Raises NotFound."""

    async def authorize_link(self, segment: str) -> JsonObject:
        """The page on which a person agrees to a token for this server. Raises NotFound, Refused."""

    async def oauth_returned(self, parameters: list[tuple[str, str]]) -> JsonObject:
        """What a browser brought back from such a page; gives the status, title and text to show."""

    async def secrets(self) -> JsonObject: ...

    async def set_secret(self, name: str, value: str) -> JsonObject:
        """May raise Refused."""

    async def keep_secret(self, name: str, value: str) -> JsonObject:
        """Unless one is kept already; `state` says new, same or differs. May raise Refused."""

    async def remove_secret(self, kind: SecretKind, name: str) -> JsonObject:
        """Raises NotFound."""

    def tools(self) -> JsonObject: ...

    def tool(self, name: str, caller: str = "local") -> JsonObject:
        """`name` is the qualified name or the alias; the rungs are told for `caller`. Raises NotFound."""

    async def classify_tool(self, name: str) -> JsonObject:
        """Ask what a tool is that does not say it; gives the approval. Raises NotFound, Refused."""

    def routes(self) -> JsonObject: ...

    def skills(self) -> JsonObject:
        """Skills that have blocks of drivers, by name."""

    async def audit(self, after: int, limit: int) -> JsonObject:
        """Records with a sequence above `after`, oldest first, at most `limit`."""

    def config(self) -> JsonObject: ...

    async def tokens(self) -> JsonObject: ...

    async def issue_token(self, name: str, door: TokenDoor, scope: TokenScope | None, days: int | None) -> JsonObject:
        """None means the configured default. A name may be used again. May raise Refused."""

    async def revoke_token(self, ref: str) -> JsonObject:
        """`ref` is an id or a name. Raises NotFound."""

    async def revoke_key(self, ref: str, by: str) -> JsonObject:
        """Of a person: the name of an anchor, or a key's thumbprint. Raises NotFound."""
