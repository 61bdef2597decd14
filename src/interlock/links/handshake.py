"""The handshake with a server: find out which era it speaks by asking `server/discover` first, then `initialize`.

`greet` asks in one era, and, if the server refuses or does not answer within a while, in the other one as well. The
first answer that is a greeting decides; a late answer to the first question still counts. The era that a server spoke
last is tried first (`EraMemory`), and then the server gets more time, because it may only be slow to start. The
decision does not depend on one error code: servers refuse an unknown method in many ways, and some do not answer at
all.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Inquiry
from interlock.core.clock import Clock
from interlock.links.connected_link import MODERN_META, OUR_INFO, ConnectedLink
from interlock.links.link import ServerFacts
from interlock.links.link_requests import LostRefusal
from interlock.links.pipes import Trouble, Undelivered
from interlock.mcp.headers import modern_head
from interlock.mcp.methods import (
    DISCOVER,
    INITIALIZE,
    LEGACY_VERSIONS,
    META_SERVER,
    MODERN_VERSIONS,
    Era,
)
from interlock.mcp.tasks import TAKEN_AS_TASK
from interlock.store.ports import KeyValue
from interlock.wire.jsonrpc.codec import CodecError, Response, decode_object, decode_value, find_string
from interlock.wire.refusal import UNSUPPORTED_VERSION, Refusal, find_code

PROBE_S: Final = 3.0  # how long a server may think about `server/discover` before it is also asked the older way
KNOWN_S: Final = 10.0  # the same, if it was greeted in this era before
GREET_S: Final = 30.0
UNSUPPORTED: Final = "protocol_unsupported"  # it speaks MCP, but no version that both may

# The link is shared, so it declares what any client may have; one that lacks it is answered for (`Call.on_request`).
LEGACY_CAPABILITIES: Final = {
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
    "tasks": TAKEN_AS_TASK,
}


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the handshake with one server."""

    capabilities: Mapping[str, Any] = msgspec.field(default_factory=lambda: LEGACY_CAPABILITIES)
    versions: tuple[str, ...] = ()  # the only ones it may speak; empty: whichever we know
    first: Era | None = None  # asked in this one first, where none is remembered
    patience_s: float | None = None  # for its start, its greeting and each list; None: what is usual for each
    either_transport: bool = False  # the other one of HTTP is tried when it refuses the one that is written

    def within(self, usual_s: float) -> float:
        """Return the time limit for this server, which is `usual_s` unless the configuration sets another."""
        return usual_s if self.patience_s is None else self.patience_s

    def allows(self, version: str) -> bool:
        """Return whether the configuration allows this protocol version."""
        return not self.versions or version in self.versions

    @property
    def offered(self) -> str | None:
        """Return the newest version to offer in `initialize`, or None if no legacy version is allowed."""
        return next(filter(self.allows, reversed(LEGACY_VERSIONS)), None)

    def order(self, remembered: Era | None) -> list[Era]:
        """Return the eras to try, in order. `remembered` is the era that the server spoke last, or None."""
        order = [Era.LEGACY, Era.MODERN] if (remembered or self.first) is Era.LEGACY else [Era.MODERN, Era.LEGACY]
        speaks = {Era.LEGACY: self.offered is not None, Era.MODERN: any(map(self.allows, MODERN_VERSIONS))}
        return [era for era in order if speaks[era]]


USUAL: Final = Manner()


class GreetingFailed(Exception):
    """Error: the handshake with a server failed. The message gives the reason for people."""

    def __init__(
        self, reason: str, what: Undelivered | None = None, *, again: bool = False, code: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.what = what
        self.again = again  # asking the same once more may help
        self.code = code


async def greet(
    link: ConnectedLink, remembered: Era | None, say: Callable[[str], None], manner: Manner = USUAL
) -> ServerFacts:
    """Perform the handshake with a server and return the facts that the server reports about itself.

    `say` is called with a text about what is being waited for. Raise GreetingFailed if no era leads to a greeting.
    """
    inquiries: dict[Era, Inquiry] = {}
    order = manner.order(remembered)
    greet_s = manner.within(GREET_S)
    deadline = asyncio.get_running_loop().time() + greet_s
    reasons: list[str] = []
    last: Undelivered | None = None
    code: str | None = None
    insisted = False
    try:
        for step, era in enumerate(order):
            inquiries[era] = _ask(link, era, manner)
            # A server that was greeted so before may only be slow to start, and end when asked in the other tongue.
            probe_s = min(PROBE_S if remembered is not era else KNOWN_S, greet_s)
            patience = probe_s if step < len(order) - 1 else greet_s
            while pending := [inquiry.future for inquiry in inquiries.values() if not inquiry.future.done()]:
                left = min(patience, deadline - asyncio.get_running_loop().time())
                done, _ = await asyncio.wait(pending, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    reasons.append(f"no answer to {_METHOD[era]} within {patience:g} s")
                    if step < len(order) - 1:
                        say(f"{reasons[-1]}; asking {_METHOD[order[1]]}")
                    break
                for spoken, inquiry in list(inquiries.items()):
                    if not inquiry.future.done():
                        continue
                    facts = _read(spoken, inquiry.future.result(), manner)
                    if isinstance(facts, ServerFacts):
                        return facts
                    del inquiries[spoken]
                    if facts.again and not insisted:  # it refused the version it says it speaks: once more
                        insisted = True
                        inquiries[spoken] = _ask(link, spoken, manner)
                        continue
                    reasons.append(facts.reason)
                    last = facts.what or last
                    code = code or facts.code
                    # Greeting the server in the other era cannot help if it is not there or refuses the credential.
                    is_final = facts.what is not None and facts.what.trouble in _FINAL_TROUBLES
                    if is_final:
                        raise facts
                if era not in inquiries:
                    break
        raise GreetingFailed(reasons[-1] if reasons else "it did not answer", last, code=code)
    finally:
        for inquiry in inquiries.values():
            link.in_flight.pop(inquiry.upstream_id, None)


_METHOD: Final = {Era.MODERN: DISCOVER, Era.LEGACY: INITIALIZE}
_FINAL_TROUBLES: Final = (Trouble.UNREACHABLE, Trouble.UNAUTHORISED)


def _ask(link: ConnectedLink, era: Era, manner: Manner) -> Inquiry:
    if era is Era.MODERN:
        return link.ask(DISCOVER, {"_meta": MODERN_META}, modern_head(DISCOVER))
    params = {"protocolVersion": manner.offered, "capabilities": manner.capabilities, "clientInfo": OUR_INFO}
    return link.ask(INITIALIZE, params)


def _read(era: Era, reply: Response | Refusal, manner: Manner) -> ServerFacts | GreetingFailed:
    """Return the facts from the server's answer, or the reason why the answer is not a valid greeting."""
    if isinstance(reply, Refusal):
        what = reply.what if isinstance(reply, LostRefusal) else None
        return GreetingFailed(reply.detail if isinstance(reply, LostRefusal) else reply.message, what)
    if reply.error:
        return GreetingFailed(_refusal(era, reply.error), again=_lists_our_version(reply.error))
    result = decode_object(reply.result)
    if result is None:
        return GreetingFailed("its greeting is not an object")
    version: str | None
    info: dict[str, Raw] | None
    if era is Era.MODERN:
        try:
            versions = decode_value(result.get("supportedVersions", Raw(b"[]")))
        except CodecError:
            versions = []
        offered = versions if isinstance(versions, list) else []
        version = next((candidate for candidate in reversed(MODERN_VERSIONS) if candidate in offered), None)
        if version is None:
            return GreetingFailed("it speaks no modern MCP version of ours", code=UNSUPPORTED)
        meta = decode_object(result["_meta"]) if "_meta" in result else None
        info = decode_object((meta or {}).get(META_SERVER, Raw(b"{}")))
    else:
        version = find_string(result.get("protocolVersion"))
        if version not in LEGACY_VERSIONS:
            return GreetingFailed(f"it speaks MCP {str(version)[:40]}, which we do not", code=UNSUPPORTED)
        info = decode_object(result.get("serverInfo", Raw(b"{}")))
    if not manner.allows(version):
        return GreetingFailed(f"it speaks MCP {version}, which it is not to", code=UNSUPPORTED)
    return ServerFacts(
        era=era,
        version=version,
        name=find_string((info or {}).get("name")) or "",
        server_version=find_string((info or {}).get("version")) or "",
        capabilities=decode_object(result.get("capabilities", Raw(b"{}"))) or {},
        instructions=find_string(result.get("instructions")),
    )


def _lists_our_version(error: Raw) -> bool:
    """Return whether an error -32022 lists a version that this node supports."""
    try:
        body = decode_value(error)
        if find_code(body["code"]) != UNSUPPORTED_VERSION:
            return False
        return any(version in body["data"]["supported"] for version in MODERN_VERSIONS)
    except (CodecError, KeyError, TypeError):
        return False


def _refusal(era: Era, error: Raw) -> str:
    try:
        body = decode_value(error)
        code, message = body.get("code"), str(body.get("message", ""))[:200]
    except (CodecError, AttributeError):
        return f"it refused {_METHOD[era]}"
    if find_code(code) == UNSUPPORTED_VERSION:
        return f"it speaks none of our MCP versions ({', '.join(MODERN_VERSIONS)})"
    return f"it refused {_METHOD[era]}: {message} ({code})"


log = logging.getLogger("interlock.node")

BUCKET: Final = "eras"


class EraMemory:
    """Memory of the era that each server spoke last, so that the next handshake tries that era first."""

    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock
        self._known: dict[str, Era] = {}
        self._tasks = BackgroundTasks()

    async def open(self) -> None:
        """Load the remembered eras. Raise StoreError if the store cannot be read."""
        for entry in await self._kv.entries(BUCKET, self._clock.wall()):
            with contextlib.suppress(ValueError):
                self._known[entry.key] = Era(entry.value.decode())

    async def close(self) -> None:
        await self._tasks.finish()

    def get(self, server: str) -> Era | None:
        return self._known.get(server)

    def put(self, server: str, era: Era) -> None:
        if self._known.get(server) is not era:
            self._known[server] = era
            self._tasks.begin(self._save(server, era))

    async def _save(self, server: str, era: Era) -> None:
        try:
            await self._kv.put(BUCKET, server, era.value.encode(), self._clock.wall())
        except Exception as error:
            log.warning("the era of %s could not be remembered: %s", server, error)
