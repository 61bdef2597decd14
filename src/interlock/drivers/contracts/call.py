"""A call of a contract: tries one driver after another until one answers, within the time that the contract allows.

Input: a call that the guard admitted, whose arguments satisfy the contract. Output: one result in the form that the
contract defines, whichever server produced it, or one error.

Theory of operation. Before the guard admits the call, it asks for `argument_refusal` and `availability_refusal`, so
that no person approves a call that cannot be sent. `send_admitted` gets the ranked drivers from the resolver and tries
the first one (`_try`). A try leases the link of the driver, maps the arguments (with the hooks in its driver.py, if
there are any), checks the URIs in them and sends the call. The result is mapped back to the contract. After a failure
`_retry` decides whether to repeat the call with the same driver, as its retry rule allows, or with the next one. A call
is sent a second time only if it cannot take effect twice: either it was never sent, or the contract is idempotent, the
failure is temporary and no person approved this very call (AIP-30.resolve-7, AIP-14.rules-2).

A call leaves one audit row when its driver is chosen, and one for each time that it was sent.

`LeasedCall` is a call that leases the link of a driver's server when it is sent, and releases it when it ends. It
behaves like any other call of a client: its result, cancellation and questions from the server use the leased link. The
guard admits it, `send_admitted` chooses a provider, `lease_link` leases the provider's link (and starts the server if
it sleeps), `on_leased` prepares the request for the server, and `send_over` sends it. The guard derives the permit for
the leased link from the permit of the original call. `ContractCall` chooses among drivers; `PassthroughCall` belongs to
one driver.
"""

import asyncio
import base64
import binascii
import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from interlock.config.plan import Dial, ServerPlan
from interlock.core.calls.call import OK, Call, Outcome
from interlock.core.calls.check import Admitted, CheckRefusal
from interlock.core.link_state import RETRY_AFTER_MS
from interlock.drivers.contracts import contract
from interlock.drivers.protocol.binding import results
from interlock.drivers.protocol.binding.results import error_result
from interlock.drivers.protocol.binding.uri_access import Reach, denial, schemes_of
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.protocol.server_name import server_name
from interlock.drivers.provider.keeper import InstanceLease
from interlock.drivers.provider.provider import DriverProvider
from interlock.drivers.registry.service import ContractParts
from interlock.gate.protocol.reserved_claims import without_claims
from interlock.links.connected_link import ServerLink
from interlock.links.server_messages import LostRefusal
from interlock.mcp.meta import RAW_EMPTY, may_be_asked
from interlock.mcp.methods import META_CAPABILITIES, MODERN, NAMED_BY, TOOLS_CALL, Era
from interlock.mcp.modern_requests import mirror_headers
from interlock.mcp.mrtr import read_input_required
from interlock.mcp.results import result_to_legacy
from interlock.mcp.tasks import declares_tasks, without_tasks
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import CodecError, Notification, Response
from interlock.wire.refusal import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    RESULT_TOO_LARGE,
    TOOL_DEGRADED,
    URL_ELICITATION_REQUIRED,
    Refusal,
    find_code,
)

log = logging.getLogger("interlock.drivers")

Result = TypeVar("Result")

MESSAGE_CHARS_MAX: Final = 4096  # of a server's own words


# Errors that a client sees as a lost link if they may pass.
UNREACHABLE: Final = frozenset(("tool_unavailable", "upstream_error"))


INTERNAL: Final = DriverRefusal("internal", "something failed inside the node; its log says more")


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
        reach = Reach(roots=("/",), egress=declared, schemes=schemes)
    else:
        roots = [*sandbox.read, *sandbox.write, sandbox.home]
        if sandbox.from_arguments:
            roots += [Path(each) for each in plan.reach.command[1:] if each.startswith("/")]
        real_roots, denied = (tuple(map(os.path.realpath, paths)) for paths in (roots, sandbox.deny))
        reach = Reach(roots=real_roots, denied=denied, egress=sandbox.egress, schemes=schemes)
    denials = (denial(uri, reach, os.path.realpath) for uri in uris)
    return next((each for each in denials if each is not None), None)


class LeasedCall(Call, eq=False, kw_only=True):
    """Base of calls that need a lease: one process of the server is reserved for the call until the call ends.

    `params` are the parameters for the current server. `client_params` are the parameters as the client sent them; they
    are recorded, and each retry starts from them.
    """

    services: ContractParts
    client_params: dict[str, Any]
    lease: InstanceLease | None = None
    admitted: Admitted[Call] | None = None  # the permit to send, for as long as the call may have to be sent
    since: float | None = None  # when the call was first sent: its time began
    approved: bool = False  # a person released this very call: once a server has had it, it is never sent again

    def send_admitted(self, admitted: Admitted[Call]) -> None:
        """Choose a server for a call that the guard has admitted, and send the call to it."""
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
        """Lease a process of the provider's server, at once if it is ready, otherwise as soon as it becomes ready."""
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

    def send_over(self, link: ServerLink, params: dict[str, Any], head: bytes) -> CheckRefusal | None:
        """Send the request over the leased link. Return a refusal if the link is closed, or None if the request was
        sent or will be sent as soon as the server is prepared for it.
        """
        assert self.admitted is not None  # noqa: S101  (it departed, and has not ended)
        verdict = self.services.guard.derive(self.admitted, link)
        if isinstance(verdict, CheckRefusal):
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
        self._end(codec.encode_result(self.client_id, result), outcome, 200)

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
    data = {"reason": "subserver_unreachable", "outcome": "not_sent", "retry_after_ms": RETRY_AFTER_MS}
    return Refusal(TOOL_DEGRADED, "tool_degraded", {**data, "mcpax_code": -32002, "ref": ref})


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
        (content,) = codec.decode_value(response.result)["contents"]
        data = base64.b64decode(content["blob"], validate=True) if "blob" in content else content["text"].encode()
    except (CodecError, KeyError, TypeError, ValueError, AttributeError, binascii.Error):
        return False
    return hashlib.sha256(data).hexdigest() == digest


_PASSING_CODES: Final = range(-32099, -32000 + 1)  # JSON-RPC's for the server's own troubles


class ContractCall(LeasedCall, eq=False, kw_only=True):
    """Call of a contract's tool. The drivers that can serve it are tried in order, best first, until one of them
    answers.
    """

    served: contract.CompiledContract
    inputs: dict[str, Any] = msgspec.field(default_factory=dict)  # the arguments, decoded, as the contract has them
    pinned: str | None = None  # the driver that asked for the round this call answers
    state: Raw | None = None  # ... and the state that its server wants back
    decision: contract.ServingDecision = contract.UNDECIDED  # the drivers that can serve the call
    at: int = 0  # the index of the current driver in it
    tries: int = 0  # with the current driver
    prepared: contract.PreparedBinding | None = None  # the binding of the current driver
    sent_at: float | None = None  # while the call is with a server
    left: bool = False  # some server has received the call

    # Before it is admitted

    def argument_refusal(self) -> Refusal | None:
        """Return why no driver can accept the arguments, or None if they are valid.

        The guard asks before it asks for approval, so that no person approves a call that cannot be sent.
        """
        params = self.params
        try:
            self.inputs = codec.decode_value(params["arguments"]) if "arguments" in params else {}
        except CodecError:
            return Refusal(INVALID_PARAMS, "params.arguments cannot be read")
        if "requestState" in params:
            opened = results.open_state_untrusted(params["requestState"])
            if opened is None:
                message = "this requestState was not made here, or was changed"
                return Refusal(INVALID_PARAMS, message, {"reason": "state_invalid"})
            self.pinned, self.state = opened
        return self.served.find_refusal(self.inputs, self.caller)

    def availability_refusal(self) -> Refusal | None:
        """Return why no driver can serve the call at present, or None if one can."""
        decision = self.served.decide(self.inputs, self.pinned, self.services.clock)
        if decision.resolution.error is None:
            return None
        self._record(decision)
        return decision.resolution.error

    def _record(self, decision: contract.ServingDecision) -> None:
        error = decision.resolution.error
        self._add_row(contract.resolution_row, decision.row, None if error is None else error.code)

    def _add_row(self, make: Callable[..., bytes], *facts: Any) -> None:
        services, caller = self.services, self.caller
        row = (make, int(services.clock.wall()), caller.principal.name, caller.via, self.target, self.served.workspace)
        services.recorder.add((*row, *facts))

    def send_only(self, params: dict[str, Any], meta: dict[str, Raw]) -> None:
        super().send_only(params, meta)
        if "requestState" not in params:
            self.state = None  # which driver serves it is the node's affair: that one is still the pinned one

    # Out

    def send_admitted(self, admitted: Admitted[Call]) -> None:
        self.admitted = admitted
        decision = self.served.decide(self.inputs, self.pinned, self.services.clock)
        error = decision.resolution.error
        self._record(decision)
        if error is not None:
            self.fail(error)
            return
        self.decision = decision
        self._try()

    @property
    def provider(self) -> DriverProvider:
        """Return the provider of the driver that is being tried."""
        return self.decision.providers[self.at]

    def _try(self) -> None:
        self.tries += 1
        if self.decision.resolution.ranked[self.at].check_first:
            # AIP-30.resolve-2: its last health check failed too long ago to count
            self.begin(self.provider.health.check(), self._on_health)
        else:
            self.lease_link(self.provider)

    def _on_health(self, why: str | None) -> None:
        """Use the driver if its health check passed, otherwise try the next driver. `why` says why the check failed."""
        if why is None:
            self.lease_link(self.provider)
        else:
            error = DriverRefusal("tool_unavailable", "its health check fails", retryable=True, cause={"reason": why})
            self.on_lease_failed(self.provider, error)

    def on_leased(self, provider: DriverProvider, link: ServerLink) -> None:
        prepared = self.prepared = self.served.prepared(provider)
        if prepared is None:
            self.release_lease()
            error = DriverRefusal("contract_mismatch", "the server behind this tool no longer fits it")
            self.on_lease_failed(provider, error)
            return
        hooks = provider.hooks
        if hooks is None and prepared.is_plain(self.inputs):
            self._on_arguments(prepared, link, self.inputs)
            return
        context = contract.context_of(self.caller, self.served.workspace)
        if hooks is not None and hooks.makes_arguments(prepared.bound):
            work = hooks.arguments(prepared.bound, self.inputs, context)
            self.begin(work, lambda arguments: self._on_arguments(prepared, link, arguments))
            return
        try:
            arguments = prepared.bound.arguments(self.inputs, context)
        except Exception:
            log.exception("%s: its arguments could not be made", self.target)
            arguments = INTERNAL
        self._on_arguments(prepared, link, arguments)

    def _on_arguments(
        self, prepared: contract.PreparedBinding, link: ServerLink, arguments: dict[str, Any] | DriverRefusal
    ) -> None:
        if isinstance(arguments, DriverRefusal):
            self.fail(arguments)
            return
        named = prepared.uris(self.inputs, arguments)
        if named:
            self.check_uris(named, self.provider, link, lambda: self._forward(prepared, link, arguments))
        else:
            self._forward(prepared, link, arguments)

    def _forward(self, prepared: contract.PreparedBinding, link: ServerLink, arguments: dict[str, Any]) -> None:
        self.timeout_s = prepared.timeout_s
        head = prepared.head
        if prepared.mirrored:
            head += mirror_headers(prepared.mirrored, arguments)
        params: dict[str, Any] = {"name": prepared.wire_name, "arguments": Raw(codec.encode_value(arguments))}
        client_params = self.client_params
        for member in ("_meta", "inputResponses"):
            if member in client_params:
                params[member] = client_params[member]
        if self.state is not None:
            params["requestState"] = self.state
        self.sent_at = self.services.clock.now()
        if self.send_over(link, params, head) is not None:
            self.sent_at = None
            self._go_on_unsent(DriverRefusal("tool_unavailable", "the server went away", retryable=True))

    def on_lease_failed(self, provider: DriverProvider, error: DriverRefusal) -> None:
        log.info("%s: %s cannot take a call: %s %s", self.target, provider.driver.segment, error.code, error.message)
        self._go_on_unsent(error)

    def _go_on_unsent(self, error: DriverRefusal) -> None:
        if self._try_next_driver():
            return
        if error.retryable and error.code in UNREACHABLE:
            super().on_failed(unreachable(self._log_ref(error)), Outcome.LOST)
        else:
            self.fail(error)

    def _try_next_driver(self) -> bool:
        """Try the next driver. Return False if no driver is left."""
        if self.at + 1 >= len(self.decision.providers):  # AIP-30.resolve-7
            return False
        self.at += 1
        self.tries = 0
        self._try()
        return True

    # Back

    def on_response(self, response: Response, era: Era) -> None:
        if self.done:
            return
        self.left = True
        if response.error:
            self._on_error_response(response, era)
            return
        try:
            result = codec.decode_value(response.result)
        except CodecError:
            self.fail(DriverRefusal("output_parse_failed", "the server's result cannot be read"))
            return
        if not isinstance(result, dict):
            self.fail(DriverRefusal("upstream_error", "the server's result is no object"))
            return
        kind = result.get("resultType", "complete") if era is MODERN else "complete"
        prepared, hooks = self.prepared, self.provider.hooks
        assert prepared is not None  # noqa: S101  (it was sent)
        if kind != "complete":
            self._on_incomplete_result(kind, response, era)
        elif hooks is not None and hooks.entry.parses:
            work = hooks.value(prepared.bound, result)
            self.begin(work, lambda value: self._answer_value(value, response, era, keeps=False, result=result))
        else:
            try:
                value = prepared.bound.value(result)
            except Exception:
                log.exception("%s: its result could not be read", self.target)
                value = INTERNAL
            self._answer_value(value, response, era, keeps=prepared.keeps_result, result=result)

    def _answer_value(self, value: Any, response: Response, era: Era, *, keeps: bool, result: dict[str, Any]) -> None:
        if isinstance(value, DriverRefusal):
            content: Sequence[Raw] = ()
            if value.code == "upstream_error":  # the server's own words are passed on
                content = (
                    codec.decode_array((codec.decode_object(response.result) or {}).get("content", RAW_EMPTY)) or ()
                )
            self.fail(value, content)
            return
        self._record_invocation(None)
        if not keeps:
            self.answer_result(without_claims(results.value_result(value)), OK)
        elif "structuredContent" in result:
            super().on_response(response, era)
        else:
            whole = Raw(results.with_structured(response.result, value))
            super().on_response(Response(response.id, whole, response.error), era)

    def _on_error_response(self, response: Response, era: Era) -> None:
        members = codec.decode_object(response.error) or {}
        try:
            code = codec.decode_value(members["code"])
        except (KeyError, CodecError):
            code = None
        if find_code(code) == URL_ELICITATION_REQUIRED:  # not a failure: a page has to be visited first
            self._record_invocation("input_required")
            super().on_response(response, era)
            return
        passing = find_code(code) == INTERNAL_ERROR or code in _PASSING_CODES
        message = (codec.find_string(members.get("message")) or "unknown")[:MESSAGE_CHARS_MAX]
        cause = {"code": code if isinstance(code, int) else None}  # AIP-tools-13
        self._on_server_error(DriverRefusal("upstream_error", message, retryable=passing, cause=cause))

    def _on_incomplete_result(self, kind: object, response: Response, era: Era) -> None:
        """Handle a result that is not final: ask the client for the input that the server needs, or fail if the kind of
        result is unknown (AIP-proto-7).
        """
        if kind != "input_required":  # AIP-proto-7: an unknown one
            self.fail(DriverRefusal("upstream_error", "the server's result is of a kind not known here"))
            return
        if self.caller.era is not MODERN:
            if not self.handler.interview_client(self, response.result):
                self.fail(_UNANSWERABLE)
            return
        wanted = read_input_required(response.result)
        able = self.meta.get(META_CAPABILITIES, RAW_EMPTY)
        if (
            wanted is None
            or isinstance(wanted, str)
            # AIP-proto-7
            or not all(may_be_asked(able, each.method, each.params) for each in wanted.questions.values())
        ):
            self.fail(_UNANSWERABLE)
            return
        self._record_invocation("input_required")
        result = results.seal_state(response.result, self.provider.driver.key)
        super().on_response(Response(response.id, result, response.error), era)

    def on_failed(self, refusal: Refusal, outcome: Outcome) -> None:
        if self.done:
            return
        if self.sent_at is None or outcome in (Outcome.TIMEOUT, Outcome.CANCELLED):
            self._record_invocation(outcome.value)
            super().on_failed(refusal, outcome)
            return
        data = refusal.details or {}
        sent = data.get("outcome") != "not_sent"
        self.left = self.left or sent
        if not sent:
            self.sent_at = None
        if data.get("reason") == "unauthorised":
            self.fail(DriverRefusal("auth_failed", "the server behind this tool refuses our credential"))
        elif refusal.code == RESULT_TOO_LARGE:
            limit = f"the server's answer is larger than {data.get('limit_bytes')} bytes, the limit of this driver"
            self.fail(DriverRefusal("result_too_large", f"{limit}; ask for less at a time"))
        elif outcome is Outcome.ERROR:
            needs_input = data.get("reason") in ("input_required", "input_refused")
            self._on_server_error(_UNANSWERABLE if needs_input else _MALFORMED)
        elif not self._retry(sent=sent):
            # The server was lost. Under the ref, the log has more details than the client receives (AIP-transport-13).
            detail = refusal.detail if isinstance(refusal, LostRefusal) else refusal.message
            ref = self._log_ref(DriverRefusal("upstream_error", detail))
            self._record_invocation("upstream_error")
            # AIP-transport-13
            super().on_failed(Refusal(refusal.code, refusal.message, {**data, "ref": ref}), outcome)

    def _on_server_error(self, error: DriverRefusal) -> None:
        if not error.retryable or not self._retry(sent=True):
            self.fail(error)

    def _retry(self, *, sent: bool) -> bool:
        """Repeat a failed call: with the same driver if its retry rule allows that, otherwise with the next driver.
        Return False if the call must not or cannot be repeated.

        Return False if no driver is left, or if the call was sent and its contract is not idempotent or a person
        approved it. `sent`: whether the server may have received it.
        """
        if sent and not self.served.contract.idempotent:  # AIP-14.rules-2, AIP-30.resolve-7
            return False
        if sent and self.approved:  # AIP-14.rules-2
            return False
        self._record_invocation("upstream_error")
        self.release_lease()
        retry = self.prepared.retry if self.prepared is not None else None
        if retry is not None and self.tries < retry.max_attempts:  # AIP-14.rules-2
            delay_s = (retry.initial_ms or 0) / 1000
            if retry.backoff == "exponential":
                delay_s *= 2 ** (self.tries - 1)
            if self.services.clock.now() + delay_s < self.deadline:  # AIP-14.rules-2: inside the contract's time

                def try_again() -> None:
                    if not self.done:
                        self._try()

                asyncio.get_running_loop().call_later(delay_s, try_again)
                return True
        return self._try_next_driver()

    def cancel(self, reason: str) -> None:
        if not self.done:
            self._record_invocation("cancelled")
        super().cancel(reason)  # AIP-30.errors-2

    def on_vendor_notification(self, notification: Notification, era: Era) -> None:
        """Drop a notification that only this server defines. The client knows the contract and not the server."""

    def on_progress(self, params: dict[str, Raw]) -> None:
        """Forward progress to the client without extending the deadline, which covers the entire call
        (AIP-30.implements-5).
        """
        before = self.progressed
        super().on_progress(params)
        self.progressed = before  # AIP-30.implements-5

    # The end

    def fail(self, error: DriverRefusal, content: Sequence[Raw] = ()) -> None:
        ref = self._log_ref(error)
        self._record_invocation(error.code)
        self.reason = error.code
        if not self.left:
            self.refund()
        outcome = Outcome.TOOL_ERROR if self.left else Outcome.REFUSED
        self.answer_result(results.error_result(error, ref, content), outcome)

    def _log_ref(self, error: DriverRefusal) -> str:
        driver = server_name(self.provider.driver.key) if self.decision.providers else "no driver"
        return self.log_failure(driver, error)

    def _record_invocation(self, code: str | None) -> None:
        """Write the audit row of one attempt that was sent to a server. `code` is its error code, or None if it
        succeeded.
        """
        if self.sent_at is None:
            return
        seconds = self.services.clock.now() - self.sent_at
        self._add_row(contract.invoked_row, self.decision.facts[self.at], code, tuple(self.inputs), seconds)
        self.sent_at = None


_MALFORMED: Final = DriverRefusal("upstream_error", "the server's answer cannot be read", retryable=True)
_UNANSWERABLE: Final = DriverRefusal(
    "upstream_error", "input_required: the server asks something that this client cannot answer"
)
