"""A request that goes to one driver's server as it is: a tool without a contract, a prompt, a resource, a completion.

Nothing is resolved and nothing is read: the server's answer is the answer. A resource's URI is compared with the
server's sandbox first (AIP-security-6), and with the digest that a reference carries afterwards.
"""

import asyncio
import base64
import binascii
import hashlib
from typing import Any

from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.check import Admitted
from interlock.drivers.contracts.leased_call import UNREACHABLE, LeasedCall, unreachable
from interlock.drivers.contracts.uri_check import maybe_denied
from interlock.drivers.interfaces import Provider
from interlock.drivers.protocol.binding.call_result import error_result
from interlock.drivers.protocol.errors import DriverRefusal
from interlock.links.connected_link import ServerLink
from interlock.mcp.methods import TOOLS_CALL, Era
from interlock.wire.jsonrpc.codec import Response, decode_value
from interlock.wire.jsonrpc.errors import CodecError
from interlock.wire.refusal import INVALID_PARAMS, Refusal


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
        """A tool's result says so; a prompt or a resource has none that could: a JSON-RPC error."""
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
