"""Calls that lease the link of a driver's server when they are sent, and release it when they end.

A leased call behaves like any other call of a client: its result, cancellation and questions from the server use the
leased link. `ContractCall` (in `call`) chooses among drivers; `PassthroughCall` belongs to one driver.

The life of a leased call: the guard admits it, `send_admitted` chooses a provider, `lease_link` leases the provider's
link (and starts the server if it sleeps), `on_leased` prepares the request for the server, and `send_over` sends it.
The guard derives the permit for the leased link from the permit of the original call. However the call ends, the lease
is released.
"""

import asyncio
import base64
import binascii
import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from msgspec import Raw

from interlock.catalog.routes import Route
from interlock.config.plan import Dial, ServerPlan
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.check import Admitted, Refused
from interlock.core.clock import Clock
from interlock.core.link_state import RETRY_AFTER_MS
from interlock.core.recorder import Recorder
from interlock.drivers.protocol.binding.results import error_result
from interlock.drivers.protocol.binding.uri_access import Reach, denial, schemes_of
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.provider.provider import DriverProvider
from interlock.drivers.provider.tenant_processes import InstanceLease
from interlock.guard.guard import Guard
from interlock.links.connected_link import ServerLink
from interlock.mcp.methods import META_CAPABILITIES, NAMED_BY, TOOLS_CALL, Era
from interlock.mcp.results import result_to_legacy
from interlock.mcp.tasks import declares_tasks, without_tasks
from interlock.wire.jsonrpc.codec import CodecError, Response, decode_value, encode_result
from interlock.wire.refusal import INVALID_PARAMS, TOOL_DEGRADED, Refusal

log = logging.getLogger("interlock.drivers")

Result = TypeVar("Result")

MESSAGE_CHARS_MAX: Final = 4096  # of a server's own words


# Errors that a client sees as a lost link if they may pass.
UNREACHABLE: Final = frozenset(("tool_unavailable", "upstream_error"))


INTERNAL: Final = DriverRefusal("internal", "something failed inside the node; its log says more")


@dataclass(frozen=True, slots=True)
class CallServices:
    """Parts of the node that leased calls use. `tasks` runs steps that take time."""

    guard: Guard[Route]
    clock: Clock
    recorder: Recorder
    tasks: BackgroundTasks = field(default_factory=BackgroundTasks)


ANYWHERE = ("/",)


def find_denied_uri(uris: Iterable[str], plan: ServerPlan, driver: Driver) -> DriverRefusal | None:
    """Return the refusal for the first URI that the server's sandbox does not allow, or None if all are allowed
    (AIP-security-6).

    `plan` is the plan with which the server runs; its sandbox applies. Blocks while it reads the file system.
    """
    schemes = schemes_of(resource.uri_template for resource in driver.resources)
    declared = driver.network.egress if driver.network is not None else ()
    if isinstance(plan.reach, Dial):
        host = urlsplit(plan.reach.url).hostname
        reach = Reach(egress=(*declared, *((host,) if host else ())), schemes=schemes)
    elif (sandbox := plan.reach.sandbox) is None:  # a container is a sandbox of its own, or the operator wants none
        reach = Reach(roots=ANYWHERE, egress=declared, schemes=schemes)
    else:
        roots = [*sandbox.read, *sandbox.write, sandbox.home]
        if sandbox.from_arguments:
            roots += [Path(each) for each in plan.reach.command[1:] if each.startswith("/")]
        reach = Reach(
            roots=tuple(map(os.path.realpath, roots)),
            denied=tuple(map(os.path.realpath, sandbox.deny)),
            egress=sandbox.egress,
            schemes=schemes,
        )
    denials = (denial(uri, reach, os.path.realpath) for uri in uris)
    return next((each for each in denials if each is not None), None)


class LeasedCall(Call, eq=False, kw_only=True):
    """A client's call that leases the link of a server when it is sent.

    `params` are the parameters for the current server. `client_params` are the parameters as the client sent them; they
    are recorded, and each retry starts from them.
    """

    services: CallServices
    client_params: dict[str, Any]
    lease: InstanceLease | None = None
    admitted: Admitted[Call] | None = None  # the permit to send, for as long as the call may have to be sent
    since: float | None = None  # when the call was first sent: its time began
    approved: bool = False  # a person released this very call: once a server has had it, it is never sent again

    def send_admitted(self, admitted: Admitted[Call]) -> None:
        """Choose a server for the admitted call and send it."""
        raise NotImplementedError

    def on_leased(self, provider: DriverProvider, link: ServerLink) -> None:
        """Send the call over `link`, which stays leased until the call ends or releases it."""
        raise NotImplementedError

    def on_lease_failed(self, provider: DriverProvider, error: DriverRefusal) -> None:
        """End the call, or try another provider, because no link could be leased. Nothing was sent to the server."""
        self.fail(error)

    def fail(self, error: DriverRefusal) -> None:
        """End the call with this error."""
        raise NotImplementedError

    def refuse(self, refusal: Refusal, status: int) -> None:
        if isinstance(refusal, DriverRefusal):
            self.fail(refusal)
        else:
            super().refuse(refusal, status)

    def begin(self, work: Coroutine[Any, Any, Result], then: Callable[[Result], None]) -> None:
        """Run a slow step of the call in a task, and pass its result to `then` unless the call has ended meanwhile.

        An exception in the step ends the call, not only the task.
        """

        async def run_to_end() -> None:
            try:
                result = await work
                if not self.done:
                    then(result)
            except Exception:
                log.exception("%s: a call of it failed inside the node", self.target)
                if not self.done:
                    self.fail(INTERNAL)

        self.services.tasks.begin(run_to_end())

    def check_uris(
        self, uris: Iterable[str], provider: DriverProvider, link: ServerLink, forward: Callable[[], None]
    ) -> None:
        """Forward the call if the server's sandbox allows all URIs (AIP-security-6), or else end it."""

        def on_checked(denied: DriverRefusal | None) -> None:
            if denied is None:  # AIP-security-6: else nothing is sent
                forward()
            else:
                self.fail(denied)

        self.begin(asyncio.to_thread(find_denied_uri, uris, link.plan, provider.driver), on_checked)

    def lease_link(self, provider: DriverProvider) -> None:
        """Lease the provider's link, immediately if the provider is ready and otherwise as soon as it becomes ready."""
        ready = provider.find_ready_lease(self.caller)
        if ready is not None:
            self._on_lease(provider, ready)
            return
        if self.since is None:
            self.deadline = inf  # the provider limits the time that it takes to start a server

        async def acquire_lease() -> InstanceLease | DriverRefusal:
            lease = await provider.acquire(self.caller, self.timeout_s or 0.0)
            if self.done and not isinstance(lease, DriverRefusal):
                lease.release()  # the client left meanwhile; the server that was started for it stays
            return lease

        self.begin(acquire_lease(), partial(self._on_lease, provider))

    def _on_lease(self, provider: DriverProvider, lease: InstanceLease | DriverRefusal) -> None:
        if isinstance(lease, DriverRefusal):
            self.on_lease_failed(provider, lease)
        else:
            self.lease = lease
            self.on_leased(provider, lease.link)

    def send_over(self, link: ServerLink, params: dict[str, Any], head: bytes) -> Refused | None:
        """Send the request over the leased link. Return a refusal if the link is closed, or None if the request was
        sent or will be sent as soon as the server is prepared for it.
        """
        assert self.admitted is not None  # noqa: S101  (it departed, and has not ended)
        verdict = self.services.guard.derive(self.admitted, link)
        if isinstance(verdict, Refused):
            self.release_lease()
            return verdict
        self.params = params
        self.head = head
        if self.since is None:
            self.since = self.started if self.forwarded is None else self.forwarded
            if self.deadline == inf:
                self.since = self.forwarded = self.services.clock.now()
        if self.timeout_s is not None:
            self.deadline = self.since + self.timeout_s
        if link.modern:
            # The tasks capability is withheld: one request has one result, and no client could ask about a task.
            capabilities = self.meta.get(META_CAPABILITIES) if link.tasks else None
            if capabilities is not None and declares_tasks(capabilities):
                self.meta = {**self.meta, META_CAPABILITIES: without_tasks(capabilities)}
                params["_meta"] = self.meta
        elif self.caller.era is Era.MODERN:
            params.pop("inputResponses", None)  # they belong to no round that this server knows
            params.pop("requestState", None)
            self.link = link
            self.wished = self.client_params.get(NAMED_BY[self.method])
            first = self.handler.prepare_server(self)
            if first is not None:
                self.begin(asyncio.wait((first,)), lambda _: self._send(link, verdict))
                return None
        self._send(link, verdict)
        return None

    def _send(self, link: ServerLink, verdict: Admitted[Call]) -> None:
        lease = self.lease
        link.send(verdict)
        if self.approved and self.lease is lease and not self.done:
            if link.modern:
                self.renewed = True  # the ticket stays for the next round of a question
            else:
                self.ticket = None

    def log_failure(self, driver: str, error: DriverRefusal) -> str:
        """Log the failure and return a reference to it. The log entry has details that the client does not receive."""
        ref = secrets.token_hex(6)
        message = error.message[:MESSAGE_CHARS_MAX]
        level = logging.DEBUG if error.code == "input_invalid" else logging.WARNING  # which the caller can correct
        log.log(level, "%s by %s (ref %s): %s: %s %s", self.target, driver, ref, error.code, message, error.cause or "")
        return ref

    def answer_result(self, result: bytes, outcome: Outcome) -> None:
        """End the call with a tool result in the form of MCP 2026-07-28, converted to the protocol version of the
        client.
        """
        if self.caller.era is not Era.MODERN:
            legacy_result = result_to_legacy(Raw(result))
            result = result if isinstance(legacy_result, Refusal) else legacy_result
        if self.handler.timing is not None:
            result = self.handler.timing(self, result)
        self._end(encode_result(self.client_id, result), outcome, 200)

    def release_lease(self) -> None:
        """Release the lease, if the call has one."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()

    def send_only(self, params: dict[str, Any], meta: dict[str, Raw]) -> None:
        super().send_only(params, meta)
        self.client_params = {**params, "name": self.client_params["name"]}

    def as_wished(self) -> dict[str, Any]:
        return self.client_params

    def _let_go(self) -> None:
        super()._let_go()
        self.admitted = None
        self.params = self.client_params
        self.release_lease()


def unreachable(ref: str) -> Refusal:
    """Return the refusal for a call whose server cannot be reached. `ref` is the reference that
    `log_failure` returned.
    """
    data = {
        "reason": "subserver_unreachable",
        "outcome": "not_sent",
        "retry_after_ms": RETRY_AFTER_MS,
        "mcpax_code": -32002,
        "ref": ref,
    }
    return Refusal(TOOL_DEGRADED, "tool_degraded", data)


class PassthroughCall(LeasedCall, eq=False, kw_only=True):
    """A request that is forwarded to one driver's server: for a tool without a contract, a prompt or a resource.

    Only the names in it change to those that the server uses.

    No driver is chosen, and the server's response is returned unchanged. Before a resource is read, its URI is checked
    against the server's sandbox (AIP-security-6). If a reference carries a digest, the content is compared with it.
    """

    provider: DriverProvider
    server_params: dict[str, Any]  # members of the params that have other values at the server
    uri: str | None = None  # of a resource
    sha256: str | None = None  # of its content, if the reference says so

    def send_admitted(self, admitted: Admitted[Call]) -> None:
        self.admitted = admitted
        self.lease_link(self.provider)

    def on_leased(self, provider: DriverProvider, link: ServerLink) -> None:
        if self.uri is None:
            self._forward(link)
        else:
            self.check_uris((self.uri,), provider, link, partial(self._forward, link))

    def _forward(self, link: ServerLink) -> None:
        refused = self.send_over(link, {**self.client_params, **self.server_params}, self.head)
        if refused is not None:
            self.on_failed(refused.refusal, Outcome.REFUSED)

    def on_response(self, response: Response, era: Era) -> None:
        if self.done:
            return
        if self.sha256 is not None and not response.error and not _hashes_to(response, self.sha256):
            self.fail(DriverRefusal("ref_invalid", "the content is not what the reference says"))
            return
        super().on_response(response, era)

    def fail(self, error: DriverRefusal) -> None:
        """End the call with the error: as a tool result for tools, otherwise as a JSON-RPC error.

        Results of prompts and resources cannot report an error. If the server cannot be reached at present, the call
        always ends like one whose link is lost.
        """
        ref = self.log_failure(self.provider.driver.segment, error)
        if error.retryable and error.code in UNREACHABLE:
            self.on_failed(unreachable(ref), Outcome.LOST)
        elif self.method == TOOLS_CALL:
            self.reason = error.code
            self.refund()
            self.answer_result(error_result(error, ref), Outcome.REFUSED)
        else:
            data = {"reason": error.code, "retryable": error.retryable, "ref": ref}
            self.on_failed(Refusal(INVALID_PARAMS, f"{error.code}: {error.message}", data), Outcome.REFUSED)


def _hashes_to(response: Response, digest: str) -> bool:
    """Return whether a resources/read result has exactly one content whose SHA-256 digest is `digest`."""
    try:
        (content,) = decode_value(response.result)["contents"]
        data = base64.b64decode(content["blob"], validate=True) if "blob" in content else content["text"].encode()
    except (CodecError, KeyError, TypeError, ValueError, AttributeError, binascii.Error):
        return False
    return hashlib.sha256(data).hexdigest() == digest
