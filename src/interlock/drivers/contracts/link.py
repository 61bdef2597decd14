"""The contract link: offers the contracts of one segment as if one server had them all.

To the catalog, the guard and the clients it is a link that is always there. At its other end is no server: a call that
was admitted here chooses its driver and goes over a link that it leases. The guard checks its input before the gate is
asked: the input depends on no driver, and no person approves what cannot be sent.
"""

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import msgspec

from interlock.catalog.routes import Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, CallFactory, Outcome
from interlock.core.calls.check import RELISTED, Admitted
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState, Outlook
from interlock.core.recorder import Recorder
from interlock.drivers.contracts.call import ContractCall, maybe_denied
from interlock.drivers.contracts.contract import CompiledContract
from interlock.drivers.contracts.leased_call import UNREACHABLE, LeasedCall, unreachable
from interlock.drivers.contracts.unbound_items import ExposedItems
from interlock.drivers.interfaces import Provider
from interlock.drivers.protocol.binding.results import error_result
from interlock.drivers.protocol.binding.uri_access import (
    REFERENCE_PREFIX,
    ResourceKind,
    matches_template,
    parse_reference,
)
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.guard.guard import Guard
from interlock.links.connected_link import ServerLink
from interlock.links.handshake import modern_head
from interlock.links.link import Link, LinkEvents, ServerFacts
from interlock.mcp import methods
from interlock.mcp.headers import encode_header
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import LATEST_MODERN, TOOLS_CALL, Era
from interlock.wire.jsonrpc.codec import CodecError, Response, decode_value
from interlock.wire.refusal import INVALID_PARAMS, Refusal

# A request that goes to one driver's server as it is: a tool without a contract, a prompt, a resource, a completion.
#
# Nothing is resolved and nothing is read: the server's answer is the answer. A resource's URI is compared with the
# server's sandbox first (AIP-security-6), and with the digest that a reference carries afterwards.


class PassthroughCall(LeasedCall, eq=False, kw_only=True):
    provider: Provider
    says: dict[str, Any]  # the members of its params that the server calls otherwise
    uri: str | None = None  # of a resource
    sha256: str | None = None  # what its content must hash to

    def depart(self, admitted: Admitted[Call]) -> None:
        self.admitted = admitted
        self.borrow(self.provider)

    def on_leased(self, provider: Provider, link: ServerLink) -> None:
        if self.uri is None:
            self._forward(link)
        else:
            self.begin(self._send_if_permitted(self.uri, link))

    async def _send_if_permitted(self, uri: str, link: ServerLink) -> None:
        denied = await asyncio.to_thread(maybe_denied, (uri,), link.plan, self.provider.driver)
        if denied is not None and not self.done:
            self.fail(denied)
        elif not self.done:
            self._forward(link)

    def _forward(self, link: ServerLink) -> None:
        refused = self.send_over(link, {**self.asked, **self.says}, self.head)
        if refused is not None:
            self.on_failed(refused.refusal, Outcome.REFUSED)

    def on_lease_failed(self, provider: Provider, error: DriverRefusal) -> None:
        self.fail(error)

    def on_response(self, response: Response, era: Era) -> None:
        if self.done:
            return
        if self.sha256 is not None and not response.error and not _hashes_to(response, self.sha256):
            self.fail(DriverRefusal(code="ref_invalid", message="the content is not what the reference says"))
            return
        super().on_response(response, era)

    def fail(self, error: DriverRefusal) -> None:
        """End the call with the error, as the result of a tool or as a JSON-RPC error.

        Results of prompts and resources cannot report an error.
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
    try:
        (content,) = decode_value(response.result)["contents"]
        data = base64.b64decode(content["blob"], validate=True) if "blob" in content else content["text"].encode()
    except (CodecError, KeyError, TypeError, ValueError, AttributeError, binascii.Error):
        return False
    return hashlib.sha256(data).hexdigest() == digest


_NO_RESOURCE: Final = Refusal(INVALID_PARAMS, "Resource not found", {"reason": "resource_unavailable"})
_METHOD: Final = Call.__struct_fields__.index("method")
_PARAMS: Final = Call.__struct_fields__.index("params")


class ContractLink(Link):
    checks_input = True

    def __init__(self, segment: str, events: LinkEvents, clock: Clock, guard: Guard[Route], recorder: Recorder) -> None:
        super().__init__(segment, events, clock, kind="contracts", transport="none")
        self.guard = guard
        self.clock = clock
        self.recorder = recorder
        self.contracts: Mapping[str, CompiledContract] = {}  # by their local names
        self.shown = ExposedItems()  # what drivers offer here besides
        self.kinds: Mapping[str, ResourceKind] = {}  # of references to resources, of all drivers
        self.providers: Mapping[str, Provider] = {}  # by the drivers' keys
        self._work = BackgroundTasks()
        self.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN))
        self.set_state(LinkState.READY, None)

    def offers(self, capability: str, has: bool) -> None:
        """Add or remove a capability that clients see when they initialize."""
        assert self.facts is not None  # noqa: S101  (greeted above)
        capabilities = {name: raw for name, raw in self.facts.capabilities.items() if name != capability}
        self.facts = msgspec.structs.replace(
            self.facts, capabilities=capabilities | ({capability: RAW_EMPTY} if has else {})
        )

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._work.begin(work)

    def send(self, admitted: Admitted[Call]) -> None:
        call = admitted.command
        self.calls += 1
        assert isinstance(call, LeasedCall)  # noqa: S101  (the guard refuses a withdrawn tool)
        call.depart(admitted)

    def find_outlook(self, tool: str) -> Outlook | None:
        served = self.contracts.get(tool)
        return None if served is None else served.outlook(self.clock)

    @property
    def call_type(self) -> CallFactory:  # type: ignore[override]
        return self._new_tool_call

    def _new_tool_call(self, *fields: Any) -> Call:
        """Create the call of a tool. `fields` are those of a plain call; the last one is the route."""
        route: Route = fields[-1]
        params: dict[str, Any] = fields[_PARAMS]
        approved = route.is_held
        served = self.contracts.get(route.original)
        if served is not None:
            call = ContractCall(*fields, services=self, asked=dict(params), served=served, approved=approved)
            call.timeout_s = served.timeout_s
            return call
        exposed = self.shown.tools.get(route.original)
        if exposed is None:
            return _WithdrawnToolCall(*fields)
        says = {"name": route.wire_name}
        return PassthroughCall(
            *fields, services=self, asked=dict(params), provider=exposed.provider, says=says, approved=approved
        )

    def new_request(self, what: str, *fields: Any) -> Call:
        method = fields[_METHOD]
        if method == methods.RESOURCES_READ:
            return self._read(what, *fields)
        shown = self.shown.prompts.get(what)
        if method == methods.COMPLETE and shown is None:
            shown = self.shown.templates.get(what) or self.shown.resources.get(what)
        if shown is None:
            return _refuse(Call(*fields), RELISTED)
        params: dict[str, Any] = fields[_PARAMS]
        if method == methods.COMPLETE:
            member = "name" if what in self.shown.prompts else "uri"
            return self._new_raw_call(shown.provider, {"ref": {**params["ref"], member: shown.theirs}}, *fields)
        call = self._new_raw_call(shown.provider, {"name": shown.theirs}, *fields)
        call.head = modern_head(methods.PROMPTS_GET) + b"mcp-name: %b\r\n" % encode_header(shown.theirs)
        return call

    def _read(self, uri: str, *fields: Any) -> Call:
        """Create the call that reads a reference, a listed resource, or a resource that a listed template matches."""
        sha256 = None
        if uri.startswith(REFERENCE_PREFIX):
            ref = parse_reference(uri, self.kinds)
            if isinstance(ref, DriverRefusal):
                refusal = Refusal(INVALID_PARAMS, f"{ref.code}: {ref.message}", {"reason": ref.code})
                return _refuse(Call(*fields), refusal)
            provider = self.providers.get(self.kinds[ref.kind].driver)
            uri, sha256 = ref.uri, ref.sha256
        else:
            shown = self.shown.resources.get(uri) or next(
                (item for template, item in self.shown.templates.items() if matches_template(template, uri)), None
            )
            provider = shown.provider if shown is not None else None
        if provider is None:
            return _refuse(Call(*fields), _NO_RESOURCE)
        call = self._new_raw_call(provider, {"uri": uri}, *fields)
        call.uri, call.sha256 = uri, sha256
        call.head = modern_head(methods.RESOURCES_READ) + b"mcp-name: %b\r\n" % encode_header(uri)
        if provider.listing is not None and not provider.listing.resources.digest:
            call.fail(DriverRefusal(code="resource_unavailable", message="the server has no resources"))
        return call

    def _new_raw_call(self, provider: Provider, says: dict[str, Any], *fields: Any) -> PassthroughCall:
        return PassthroughCall(*fields, services=self, asked=dict(fields[_PARAMS]), provider=provider, says=says)


class _WithdrawnToolCall(Call, eq=False):
    """Call of a tool that was listed and is no longer offered."""

    def argument_refusal(self) -> Refusal:
        return RELISTED


def _refuse(call: Call, refusal: Refusal) -> Call:
    call.refuse(refusal, 200)
    return call
