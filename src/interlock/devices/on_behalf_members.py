"""Whom the devices of a gateway that registers them one by one are for: everybody but the gateway's own registration.

A parent would otherwise list each tool twice: as the device's, and below the gateway.
"""

from typing import Final

from interlock.wire.refusal import Refusal

PARENT: Final = "parent:"
MARK: Final = "#"  # of a parent on the connection of one device


class _Beside:
    name = "devices"

    def admits(self, principal: str) -> bool:
        return not principal.startswith(PARENT) or MARK in principal

    def maybe_refusal(self, principal: str) -> Refusal | None:
        return None


BESIDE: Final = _Beside()
