"""Interfaces between the parts of a driver: providers, which have a server ready, and the calls that go through it.

A provider is one driver (id@major) with everything that brings its server up; it lends a link for one call. Contract
links take calls that the guard admitted, choose a provider and borrow a link from it. Neither knows the other's ways.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Protocol

from interlock.core.calls.caller import Caller
from interlock.drivers.protocol.binding.match import Bound
from interlock.drivers.protocol.model import Driver, ToolBinding
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.links.connected_link import ServerLink
from interlock.links.listing import Listing

UNHEALTHY: Final = "health_check_failed"  # the code of a driver that is unavailable for its own check


class DriverState(Enum):
    """State of a driver, as `interlock drivers list` shows it."""

    UNTRUSTED = "untrusted"  # the folder as it is now is not accepted: nothing of it is installed or started
    REJECTED = "rejected"  # the file, or what the server offers, does not fit
    UNAVAILABLE = "unavailable"  # install, version, requirement, sandbox or health failed; may come back
    INSTALLING = "installing"
    CHECKING = "checking"  # started, its lists are compared with the contracts
    READY = "ready"
    PARTIAL = "partial"  # drivers.on_mismatch = drop_binding
    UNAUTHED = "unauthed"  # a secret is missing, or the server refused it
    KIND_UNSUPPORTED = "kind_unsupported"


class Lease(Protocol):
    """A server's link lent for one call: while it is held the server is neither idle nor taken by another tenant."""

    @property
    def link(self) -> ServerLink: ...

    def release(self) -> None: ...


class Hooks(Protocol):
    """The functions of a driver.py, run in a process of their own, without network."""

    def makes_arguments(self, bound: Bound) -> bool:
        """Check whether a hook (build_arguments or a transform) contributes to the arguments of this binding."""

    async def arguments(
        self, bound: Bound, values: Mapping[str, Any], context: Mapping[str, Any]
    ) -> dict[str, Any] | DriverRefusal:
        """Return the arguments for the server, which `bound.check_arguments` has accepted."""

    def reads_results(self, bound: Bound) -> bool: ...

    async def value(self, bound: Bound, result: Mapping[str, Any]) -> Any:
        """Return the contract's value, which `bound.satisfying` has accepted, or a DriverRefusal."""


class Provider(Protocol):
    driver: Driver
    state: DriverState
    code: str | None  # of the reason
    reason: str | None
    login: str | None  # what it waits for while unauthed, in words a client may read: slugs, a login
    problems: tuple[FileProblem, ...]  # of the last check of what the server offers, errors first
    bindings: Mapping[str, ToolBinding]  # contract id -> its entry of implements[], also before anything was checked
    contract_ids: frozenset[str]  # what it serves now, also asleep, before `bound` is made
    bound: Mapping[str, Bound]  # contract id -> the checked binding; complete while a lease is held
    hooks: Hooks | None  # of its driver.py
    listing: Listing | None  # what its server listed when it was last checked; None before

    @property
    def passed_at(self) -> float | None:
        """Return when the health check last passed, in the time of the clock, or None if it never did."""

    @property
    def failed_at(self) -> float | None: ...

    async def look(self) -> str | None:
        """Make its health check now: what is wrong, or None."""

    def maybe_ready(self, caller: Caller) -> Lease | None:
        """Return the link of this caller's process if it can be used at once, or None if it has to be acquired."""

    async def acquire(self, caller: Caller, timeout_s: float = 30.0) -> Lease | DriverRefusal:
        """Return the link of this caller's process, and start the process if it sleeps.

        Nothing has been sent when this fails. `timeout_s`: how long to wait while other callers use all processes.
        """
