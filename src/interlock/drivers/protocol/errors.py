"""How a call through a driver fails (AIP-30 errors, SURFACE 4), as a value.

Whose fault it is: input_*, ref_invalid, resource_uri_denied - the caller's; contract_mismatch, output_parse_failed,
upstream_error - the server's; auth_*, access_denied, policy_violation, region_mismatch, egress_denied, no_route,
pinned_provider_unavailable, tool_unavailable - the operator's to settle; rate_limited - no fault, it may be tried
again; internal - ours.
"""

from collections.abc import Mapping
from typing import Any

from interlock.wire.refusal import Refusal


class DriverRefusal(Refusal, frozen=True, kw_only=True):
    """The failure of a call through a driver.

    The client gets `message` and `retryable`; `cause` is for the operator alone and holds no secret.
    """

    retryable: bool = False
    cause: Mapping[str, Any] = {}
