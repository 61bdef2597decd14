"""Reaching a server: launch its program or dial its address, and greet it.

In: a link and how to reach its server. Out: the link with an open pipe and the facts of a greeted server, or
ConnectFailed with a reason for people. Whether and when to try again is the keeper's decision.

`greet` finds out which era the server speaks. It asks in one era, and, if the server refuses or does not answer within
a while, in the other one as well. The first answer that is a greeting decides; a late answer to the first question
still counts. The era that a server spoke last is tried first (`EraMemory`), and then the server gets more time, because
it may only be slow to start. The decision does not depend on one error code: servers refuse an unknown method in many
ways, and some do not answer at all.

`ProcessLimit` bounds the processes that belong to one principal, session or tenant, over all servers of the node. Each
server's processes are a pool with a limit of its own; all pools share the node's limit, and when it is reached, the
process that has been idle longest ends.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec
from msgspec import Raw

from interlock.config.plan import Dial, Spawn
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Inquiry
from interlock.core.clock import Clock
from interlock.credentials.secret_references import SecretResolver, Unobtainable
from interlock.credentials.token import TokenHolder
from interlock.drivers.protocol.server_name import server_name
from interlock.links.connected_link import MODERN_META, OUR_INFO, ConnectedLink
from interlock.links.link import ServerFacts
from interlock.links.pipes import HttpPipe, SsePipe, StdioPipe, Trouble, Undelivered
from interlock.links.server_messages import LostRefusal
from interlock.mcp import methods
from interlock.mcp.methods import Era
from interlock.mcp.modern_requests import modern_head
from interlock.mcp.tasks import TAKEN_AS_TASK
from interlock.net.http.connection import header
from interlock.process.child import Child, ChildStartFailed, child_environment
from interlock.process.limits import StartLimits
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.packages.package_store import PackageFolders
from interlock.process.packages.programs import PackageUnavailable
from interlock.process.sandbox.host_paths import SandboxFailed
from interlock.process.sandbox.sandbox import SandboxedCommand, Sandboxes
from interlock.process.stderr import StderrRing
from interlock.store.ports import KeyValue, StoreError
from interlock.wire.jsonrpc.codec import CodecError, Response, decode_object, decode_value, find_string
from interlock.wire.jsonrpc.oversized import Oversized
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
    """Configured settings of the handshake with one server: protocol versions, eras, transports, and time limits."""

    capabilities: Mapping[str, Any] = msgspec.field(default_factory=lambda: LEGACY_CAPABILITIES)
    versions: tuple[str, ...] = ()  # the only ones it may speak; empty: whichever we know
    first: Era | None = None  # asked in this one first, where none is remembered
    patience_s: float | None = None  # for its start, its greeting and each list; None: what is usual for each
    either_transport: bool = False  # the other one of HTTP is tried when it refuses the one that is written

    def within(self, usual_s: float) -> float:
        """Return the configured time limit for this server, or `usual_s` if none is configured."""
        return usual_s if self.patience_s is None else self.patience_s

    def allows(self, version: str) -> bool:
        """Return whether the configuration allows this protocol version."""
        return not self.versions or version in self.versions

    @property
    def offered(self) -> str | None:
        """Return the newest version to offer in `initialize`, or None if no legacy version is allowed."""
        return next(filter(self.allows, reversed(methods.LEGACY_VERSIONS)), None)

    def order(self, remembered: Era | None) -> list[Era]:
        """Return the eras to try, in order. `remembered` is the era that the server spoke last, or None."""
        order = [Era.LEGACY, Era.MODERN] if (remembered or self.first) is Era.LEGACY else [Era.MODERN, Era.LEGACY]
        speaks = {Era.LEGACY: self.offered is not None, Era.MODERN: any(map(self.allows, methods.MODERN_VERSIONS))}
        return [era for era in order if speaks[era]]


USUAL: Final = Manner()


class ConnectFailed(Exception):
    """Error: the server could not be reached or did not complete the handshake. The message gives the reason."""

    def __init__(
        self,
        reason: str,
        what: Undelivered | None = None,
        *,
        again: bool = False,
        unauthorised: bool = False,
        code: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.what = what  # why a message of the handshake was not delivered or not answered
        self.again = again  # asking the same once more may help
        self.code = code  # sandbox_unavailable, sandbox_invalid: nothing was started; protocol_unsupported
        # Set if the server refused our credential.
        self.refusal = what if what is not None and what.trouble is Trouble.UNAUTHORISED else None
        self.unauthorised = unauthorised or self.refusal is not None  # or we have no credential


async def greet(
    link: ConnectedLink, remembered: Era | None, say: Callable[[str], None], manner: Manner = USUAL
) -> ServerFacts:
    """Perform the handshake with a server and return the facts that the server reports about itself.

    `say` is called with a text about what is being waited for. Raise ConnectFailed if no era leads to a greeting.
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
                    if isinstance(facts := _read(spoken, inquiry.future.result(), manner), ServerFacts):
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
                    if facts.what is not None and facts.what.trouble in _FINAL_TROUBLES:
                        raise facts
                if era not in inquiries:
                    break
        raise ConnectFailed(reasons[-1] if reasons else "it did not answer", last, code=code)
    finally:
        for inquiry in inquiries.values():
            link.in_flight.pop(inquiry.upstream_id, None)


_METHOD: Final = {Era.MODERN: methods.DISCOVER, Era.LEGACY: methods.INITIALIZE}
_FINAL_TROUBLES: Final = (Trouble.UNREACHABLE, Trouble.UNAUTHORISED)


def _ask(link: ConnectedLink, era: Era, manner: Manner) -> Inquiry:
    if era is Era.MODERN:
        return link.ask(methods.DISCOVER, {"_meta": MODERN_META}, modern_head(methods.DISCOVER))
    params = {"protocolVersion": manner.offered, "capabilities": manner.capabilities, "clientInfo": OUR_INFO}
    return link.ask(methods.INITIALIZE, params)


def _read(era: Era, reply: Response | Refusal, manner: Manner) -> ServerFacts | ConnectFailed:
    """Return the facts from the server's answer, or the reason why the answer is not a valid greeting."""
    if isinstance(reply, Refusal):
        what = reply.what if isinstance(reply, LostRefusal) else None
        return ConnectFailed(reply.detail if isinstance(reply, LostRefusal) else reply.message, what)
    if reply.error:
        return _read_refusal(era, reply.error)
    if (result := decode_object(reply.result)) is None:
        return ConnectFailed("its greeting is not an object")
    version: str | None
    info: dict[str, Raw] | None
    if era is Era.MODERN:
        try:
            versions = decode_value(result.get("supportedVersions", Raw(b"[]")))
        except CodecError:
            versions = []
        offered = versions if isinstance(versions, list) else []
        version = next((candidate for candidate in reversed(methods.MODERN_VERSIONS) if candidate in offered), None)
        if version is None:
            return ConnectFailed("it speaks no modern MCP version of ours", code=UNSUPPORTED)
        meta = decode_object(result["_meta"]) if "_meta" in result else None
        info = decode_object((meta or {}).get(methods.META_SERVER, Raw(b"{}")))
    else:
        version = find_string(result.get("protocolVersion"))
        if version not in methods.LEGACY_VERSIONS:
            return ConnectFailed(f"it speaks MCP {str(version)[:40]}, which we do not", code=UNSUPPORTED)
        info = decode_object(result.get("serverInfo", Raw(b"{}")))
    if not manner.allows(version):
        return ConnectFailed(f"it speaks MCP {version}, which it is not to", code=UNSUPPORTED)
    return ServerFacts(
        era=era,
        version=version,
        name=find_string((info or {}).get("name")) or "",
        server_version=find_string((info or {}).get("version")) or "",
        capabilities=decode_object(result.get("capabilities", Raw(b"{}"))) or {},
        instructions=find_string(result.get("instructions")),
    )


def _read_refusal(era: Era, error: Raw) -> ConnectFailed:
    """Return the failure of a handshake that the server answered with an error.

    Asking again may help if the error -32022 lists a version that this node supports.
    """
    try:
        body = decode_value(error)
        code, message = body.get("code"), str(body.get("message", ""))[:200]
    except (CodecError, AttributeError):
        return ConnectFailed(f"it refused {_METHOD[era]}")
    if find_code(code) != UNSUPPORTED_VERSION:
        return ConnectFailed(f"it refused {_METHOD[era]}: {message} ({code})")
    try:
        again = any(version in body["data"]["supported"] for version in methods.MODERN_VERSIONS)
    except (KeyError, TypeError):
        again = False
    return ConnectFailed(f"it speaks none of our MCP versions ({', '.join(methods.MODERN_VERSIONS)})", again=again)


Fact = TypeVar("Fact")
log = logging.getLogger("interlock.node")


class ServerMemory(Generic[Fact]):
    """Memory of one kind of fact about servers, such as the era, by the segment of the server. It is kept across
    restarts.
    """

    bucket: ClassVar[str]
    subject: ClassVar[str]  # of log messages, with a place for the name of the server

    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock
        self.values: dict[str, Fact] = {}
        self._tasks = BackgroundTasks()

    def encode(self, fact: Fact) -> bytes:
        return msgspec.json.encode(fact)

    def decode(self, value: bytes) -> Fact:
        raise NotImplementedError

    async def open(self) -> None:
        """Load what is remembered. Raise StoreError if the store cannot be read."""
        for entry in await self._kv.entries(self.bucket, self._clock.wall()):
            try:
                self.values[entry.key] = self.decode(entry.value)
            except (ValueError, msgspec.MsgspecError) as error:
                log.warning("%s is not known any more: %s", self.subject.format(entry.key), error)

    async def close(self) -> None:
        await self._tasks.finish()

    def get(self, server: str) -> Fact | None:
        return self.values.get(server)

    def put(self, server: str, fact: Fact) -> None:
        """Remember a fact about a server."""
        if self.values.get(server) != fact:
            self.values[server] = fact
            self._tasks.begin(self._save(server, fact))

    async def _save(self, server: str, fact: Fact) -> None:
        try:
            await self._kv.put(self.bucket, server, self.encode(fact), self._clock.wall())
        except Exception as error:
            log.warning("%s could not be remembered: %s", self.subject.format(server_name(server)), error)


class Eras:
    """Base class of memories of the era that each server spoke last. It remembers nothing."""

    def get(self, server: str) -> Era | None:
        return None

    def put(self, server: str, era: Era) -> None:
        """Remember the era of a server."""


class EraMemory(ServerMemory[Era], Eras):
    """Memory of the era that each server spoke last, so that the next handshake tries that era first."""

    bucket = "eras"
    subject = "the era of {}"

    def encode(self, fact: Era) -> bytes:
        return fact.value.encode()

    def decode(self, value: bytes) -> Era:
        return Era(value.decode())


SETTLED_S: Final = 60.0  # idle for so long, a process makes room for another's


class LimitReached(Exception):
    """Error: the limit on processes or connections is reached, and none of them may be ended."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most


class ProcessPool(Protocol):
    """The processes of one server, each for some of its clients. A full pool ends a process that is idle."""

    def __len__(self) -> int: ...

    def find_idle_since(self) -> float | None:
        """Return when the process that has been idle longest was last used, or None if no process may be ended."""

    def end_longest_idle(self) -> None: ...


class ProcessLimit:
    """Limit on processes that is shared by all process pools of a node."""

    def __init__(self, most: Callable[[], int] = lambda: 1_000_000) -> None:
        """Create the limit. `most` returns the maximum number of processes, which a new configuration may change."""
        self._most = most
        self.pools: set[ProcessPool] = set()

    def free_one(self) -> None:
        """Make room for another process: if the limit is reached, end an idle one.

        Raise LimitReached if none is idle.
        """
        most = self._most()
        if sum(len(pool) for pool in self.pools) < most:
            return
        idle = [(since, pool) for pool in self.pools if (since := pool.find_idle_since()) is not None]
        if not idle:
            raise LimitReached(most)
        min(idle, key=lambda idle_pool: idle_pool[0])[1].end_longest_idle()


class MutePipe(StdioPipe):
    """Standard streams of a child that serves MCP over HTTP, such as a container with a published port. The streams
    carry no messages.

    Lines that the child prints are not messages: they are passed to `printed`.
    """

    def __init__(self, owner: ConnectedLink, printed: Callable[[bytes], None]) -> None:
        super().__init__(owner)
        self._printed = printed

    def on_line(self, data: bytes) -> None:
        self._printed(data + b"\n")

    def on_oversized(self, oversized: Oversized) -> None:
        self._printed(b"(a line longer than %d bytes)\n" % oversized.limit)


class ServedPipe(HttpPipe):
    """HTTP pipe to a child that publishes a port. The child is ended when the pipe is closed."""

    def __init__(self, program: MutePipe, owner: ConnectedLink, url: str, max_bytes: int) -> None:
        super().__init__(owner, url, {}, max_bytes)
        self._program = program

    async def close(self) -> None:
        try:
            await self.hang_up()
        finally:
            await self._program.close()

    async def hang_up(self) -> None:
        """Close the connection only. The child keeps running."""
        await super().close()


LAUNCH_S: Final = 15.0
ASKED_ALIKE: Final = 2  # times that what ends before any answer is asked the same way
ENDS_KEPT: Final = 4  # one round of both ways
MEET_AGAIN_S: Final = 0.2  # a child that does not serve yet is asked again
REDIRECTS_MAX: Final = 5
REDIRECTS: Final = (307, 308)  # the same request, elsewhere; the older ones turn a POST into a GET
UPSTREAM_ERROR: Final = "upstream_error"
LATER: Final = (408, 425, 429)  # statuses after which the same may be tried again


class ConnectorParts(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the node that keepers need to start servers and connect to them."""

    packages: PackageFolders
    may_build_sources: Callable[[], bool] = lambda: False  # whether a package may be built, which runs its code
    message_bytes: int
    reaper: OrphanReaper | None
    eras: Eras
    clock: Clock
    revealer: SecretResolver
    manner: Manner = USUAL
    tls: ssl.SSLContext | None = None  # how certificates of dialled servers are checked; None: as the system does
    sandboxes: Sandboxes | None = None  # None: no server can be started in one
    process_limit: ProcessLimit = msgspec.field(default_factory=ProcessLimit)
    limits: StartLimits = msgspec.field(default_factory=StartLimits)


class Loss(asyncio.Event):
    """Event that is set when a connection is lost. It also holds the reason of the loss."""

    reason = ""

    def declare(self, reason: str) -> None:
        self.reason = reason
        self.set()


@dataclass(eq=False)
class Connector:
    """Connector of one link: starts its server or connects to it, and performs the handshake."""

    _link: ConnectedLink
    _parts: ConnectorParts
    _stderr: StderrRing
    _loss: Loss
    _holder: TokenHolder | None = None
    # The eras that attempts in a row asked in first, and ended before any answer.
    _ended_in: list[Era] = field(default_factory=list)
    _revealer: SecretResolver = field(init=False)

    async def connect(self, start: AsyncExitStack) -> None:
        """Start the server or connect to it, and perform the handshake. Raise ConnectFailed if that fails.

        `start` is closed when the server is up: until then it counts as starting. Everything that was opened is
        attached to the link, also after a failure.
        """
        link, reach = self._link, self._link.reach
        if reach is None:
            raise ConnectFailed("the node does not know where it is")
        if link.unset:
            names = " and ".join(link.unset)
            raise ConnectFailed(f"it needs the environment variable {names}: set it, then start the node again")
        server = (link.shared or link).segment  # all links to a server remember its era together
        # Some servers exit when they are greeted in an era they do not speak, others exit for other reasons. A server
        # that exits is greeted the same way twice before the other era goes first.
        remembered: Era | None
        match self._ended_in[-ASKED_ALIKE:]:
            case [earlier, later] if earlier is later:
                remembered = Era.MODERN if earlier is Era.LEGACY else Era.LEGACY
            case [*_, last]:
                remembered = last
            case _:
                remembered = self._parts.eras.get(server)
        try:
            self._revealer = self._parts.revealer.of_link(server)
            await self._revealer.begin()
            if isinstance(reach, Spawn):
                facts = await self._start(reach, remembered, start)
            else:
                facts = await self._dial(reach, remembered)
        except ConnectFailed as failed:
            if isinstance(link.pipe, StdioPipe) and link.pipe.cell is not None:
                failed.reason += link.pipe.cell.remark
            raise
        except SandboxFailed as failed:
            raise ConnectFailed(str(failed), code=failed.code) from failed
        except (Unobtainable, StoreError) as failed:  # a secret that is not set, or cannot be read
            raise ConnectFailed(str(failed), unauthorised=True) from failed
        except TimeoutError as failed:
            raise ConnectFailed(f"it did not start within {self._launch_s:g} s") from failed
        except (PackageUnavailable, ChildStartFailed, OSError) as failed:
            raise ConnectFailed(str(failed) or "it could not be started") from failed
        # A server that also exited when it was greeted in the older era exited for another reason: that it answered now
        # does not tell which era it speaks.
        if facts.era is Era.MODERN or Era.LEGACY not in self._ended_in:
            self._parts.eras.put(server, facts.era)
        self._ended_in.clear()
        self._welcome(facts)

    async def greet_again(self, pipe: HttpPipe) -> None:
        """Open a new session on the same connection, with a legacy server that forgot the old session.

        Raise ConnectFailed if that fails.
        """
        pipe.forget_session()
        self._link.session = b""
        self._welcome(await greet(self._link, Era.LEGACY, self._say_progress, self._parts.manner))

    def show_credential(self) -> None:
        """Use the newest token for every request to the server from now on."""
        pipe = self._link.pipe
        if self._holder is not None and isinstance(pipe, HttpPipe | SsePipe):
            pipe.adopt_credential(self._holder.line)

    def _welcome(self, facts: ServerFacts) -> None:
        link = self._link
        if facts.era is Era.LEGACY:
            if isinstance(link.pipe, HttpPipe):
                link.pipe.adopt_session(link.session, facts.version)
            if facts.greeted:
                link.notify(methods.INITIALIZED)
            if isinstance(link.pipe, HttpPipe):
                link.pipe.open_stream()
        link.greeted(facts)

    async def _start(self, reach: Spawn, remembered: Era | None, start: AsyncExitStack) -> ServerFacts:
        parts, argv = self._parts, reach.command
        limits = parts.limits
        if reach.package is not None:
            from interlock.process.packages.installer import ensure  # a node without packages does not load it

            program = await ensure(
                reach.package,
                parts.packages,
                self._say_progress,
                reaper=parts.reaper,
                source_builds=parts.may_build_sources(),
                installs=limits.installs,
            )
            argv = (*program, *argv)
        if limits.is_full:
            self._say_progress("it waits until others have started")
        await start.enter_async_context(limits.starting())
        await self._launch(reach, argv)
        if reach.serves is None:
            return await self._greet_or_lose(remembered)
        return await self._greet_served(reach.serves, remembered)

    async def _launch(self, reach: Spawn, argv: tuple[str, ...]) -> None:
        argv = tuple([await self._revealer.text(each) for each in argv])
        env = await self._revealer.table(reach.env)
        pipe = StdioPipe(self._link) if reach.serves is None else MutePipe(self._link, self._stderr.feed)
        self._link.pipe = pipe
        child = partial(
            Child,
            max_message_bytes=self._parts.message_bytes,
            max_line_bytes=self._result_bytes,
            sink=pipe,
            stderr=self._stderr,
            reaper=self._parts.reaper,
        )
        if reach.sandbox is None:
            pipe.child = child(argv, child_environment(env, os.environ), reach.cwd)
        else:
            if (sandboxes := self._parts.sandboxes) is None:
                raise SandboxFailed("sandbox_unavailable", "no sandboxes are made here")
            command = SandboxedCommand(argv=argv, env=env, cwd=reach.cwd or reach.sandbox.home)
            link = self._link
            link.denied.clear()
            denied = link.on_host_denied
            cell = pipe.cell = await sandboxes.make(link.segment, reach.sandbox, command, self._stderr, denied)
            pipe.child = child(cell.argv, cell.env, cell.cwd, handed=cell.handed, terminate=cell.terminate)
        # Not wait_for: in 3.11 it loses a cancellation that comes in the moment the child has started.
        async with asyncio.timeout(self._launch_s):
            await pipe.child.start()
        self._link.pid = pipe.child.pid
        if pipe.cell is not None:
            await pipe.cell.open(pipe.child)

    async def _greet_served(self, url: str, remembered: Era | None) -> ServerFacts:
        """Perform the handshake with a child process that serves MCP over HTTP at `url`, as soon as the child is ready.

        The handshake is repeated, because nothing shows when the child is ready, until it succeeds, the child ends or
        the time for the launch is over. Raise ConnectFailed if it did not succeed.
        """
        link, program = self._link, self._link.pipe
        if not isinstance(program, MutePipe):
            raise TypeError("only a child that was launched to serve can be met")
        deadline = self._parts.clock.now() + self._launch_s
        while True:
            link.session = b""
            pipe = link.pipe = ServedPipe(program, link, url, self._result_bytes)
            link.transport = "http"
            try:
                return await self._greet_or_lose(remembered)
            except ConnectFailed:
                if self._loss.is_set() or self._parts.clock.now() > deadline:
                    raise
            await pipe.hang_up()
            await asyncio.sleep(MEET_AGAIN_S)

    @property
    def _result_bytes(self) -> int:
        return self._link.result_bytes or self._parts.message_bytes

    @property
    def _launch_s(self) -> float:
        return self._parts.manner.within(LAUNCH_S)

    def _say_progress(self, text: str) -> None:
        self._link.set_state(self._link.standing.state, text)

    async def _dial(self, reach: Dial, remembered: Era | None) -> ServerFacts:
        """Connect to a server, and follow redirects within its origin."""
        address = await self._find_address()
        headers = await self._revealer.headers(reach.headers)
        if reach.query:
            query = urlencode(await self._revealer.table(reach.query))
            reach = msgspec.structs.replace(reach, url=f"{reach.url}{'&' if '?' in reach.url else '?'}{query}")
        if self._holder is not None:
            await self._holder.ready()
        for _ in range(REDIRECTS_MAX):
            try:
                return await self._dial_at(reach, headers, address, remembered)
            except ConnectFailed as failed:
                if (moved := _find_redirect(reach.url, failed.what)) is None:
                    raise
                if self._link.pipe is not None:
                    await self._link.pipe.close()
                reach = msgspec.structs.replace(reach, url=moved)
        raise ConnectFailed("it redirects without end", code=UPSTREAM_ERROR)

    async def _dial_at(
        self, reach: Dial, headers: dict[str, str], address: str | None, remembered: Era | None
    ) -> ServerFacts:
        """Connect over the configured or usual HTTP transport, and over the other one if the server refuses it."""
        transports = ("sse", "http") if reach.transport == "sse" else ("http", "sse")
        connect = partial(self._dial_over, reach=reach, headers=headers, address=address, remembered=remembered)
        try:
            return await connect(transports[0])
        except ConnectFailed as failed:
            what = failed.what
            if what is None or what.status in REDIRECTS or what.trouble not in (Trouble.REFUSED, Trouble.MALFORMED):
                raise
            # AIP-transport-10: an answer that is neither an event stream nor one for later.
            is_plain = self._parts.manner.either_transport and what.status < 500 and what.status not in LATER
            if reach.transport != "auto" and not is_plain:
                raise
            if self._link.pipe is not None:
                await self._link.pipe.close()
            return await connect(transports[1], before=failed)

    async def _dial_over(
        self,
        transport: str,
        *,
        reach: Dial,
        headers: dict[str, str],
        address: str | None,
        remembered: Era | None,
        before: ConnectFailed | None = None,
    ) -> ServerFacts:
        """Connect and perform the handshake over streamable HTTP or over HTTP+SSE.

        `before` is the failure of the other transport, if it was tried first.
        """
        link, kind = self._link, HttpPipe if transport == "http" else SsePipe
        link.session = b""
        pipe = kind(link, reach.url, headers, self._result_bytes, address, self._parts.tls)
        link.pipe, link.transport = pipe, transport
        self.show_credential()
        if isinstance(pipe, SsePipe):
            if (trouble := await pipe.open(self._launch_s)) is not None:
                raise before or ConnectFailed(trouble.detail, trouble)
            return await self._greet_or_lose(Era.LEGACY)
        try:
            return await self._greet_or_lose(remembered)
        except ConnectFailed as failed:
            if before is None:
                raise
            raise before from failed

    async def _find_address(self) -> str | None:
        """Return the only IP address to which the node may connect, or None if any address of the host name is
        permitted.

        Raise ConnectFailed if no address is permitted.
        """
        return None

    async def _greet_or_lose(self, remembered: Era | None) -> ServerFacts:
        """Perform the handshake. If the connection is lost meanwhile, fail with the reason of the loss."""
        greeting = asyncio.ensure_future(greet(self._link, remembered, self._say_progress, self._parts.manner))
        lost = asyncio.ensure_future(self._loss.wait())
        try:
            await asyncio.wait((greeting, lost), return_when=asyncio.FIRST_COMPLETED)
            if lost.done() and not (greeting.done() and greeting.exception() is None):
                self._ended_in.append(remembered or self._parts.manner.first or Era.MODERN)
                del self._ended_in[:-ENDS_KEPT]
                raise ConnectFailed(self._loss.reason)
            return await greeting
        finally:
            greeting.cancel()
            lost.cancel()
            await asyncio.gather(greeting, lost, return_exceptions=True)


def _find_redirect(url: str, what: Undelivered | None) -> str | None:
    """Return the URL to which a server's answer redirects within the same origin, or None if the answer is no redirect.

    Raise ConnectFailed for a redirect to another origin, because the headers contain secrets for this server only
    (AIP-security-11).
    """
    location = header(what.headers, b"location") if what is not None and what.status in REDIRECTS else None
    if location is None:
        return None
    target = urljoin(url, location.decode("latin-1"))
    try:
        was, now = urlsplit(url), urlsplit(target)
    except ValueError:
        now = None
    if now is None or (now.scheme, now.netloc) != (was.scheme, was.netloc):
        raise ConnectFailed("it redirects to another origin, which is not followed", code=UPSTREAM_ERROR)
    return now._replace(fragment="").geturl()
