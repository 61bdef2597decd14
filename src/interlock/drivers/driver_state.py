"""The states of a driver.

A driver that may run has a provider, whose state changes with its server. A driver that may not run has one of the
states untrusted, rejected, unavailable and kind_unsupported from its files alone (`workspace.survey`).
"""

from enum import Enum
from typing import Final

UNHEALTHY: Final = "health_check_failed"  # the code of a driver that is unavailable because of its own health check


class DriverState(Enum):
    """State of a driver, as `interlock drivers list` shows it."""

    UNTRUSTED = "untrusted"  # no person accepted the folder as it is now: nothing of it is installed or started
    REJECTED = "rejected"  # the file, or what the server offers, does not fit
    UNAVAILABLE = "unavailable"  # install, version, requirement, sandbox or health check failed; may come back
    INSTALLING = "installing"
    CHECKING = "checking"  # the server is started, and its lists are compared with the contracts
    READY = "ready"
    PARTIAL = "partial"  # some contracts do not fit: drivers.on_mismatch = drop_binding
    UNAUTHED = "unauthed"  # a secret is missing, or the server refused it
    KIND_UNSUPPORTED = "kind_unsupported"
