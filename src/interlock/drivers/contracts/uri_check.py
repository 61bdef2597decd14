"""The URI check: whether the sandbox of a server lets it have these URIs, by the plan it runs with (AIP-security-6).

Reads the disk: not for the event loop.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from interlock.config.plan import Dial, ServerPlan
from interlock.drivers.protocol.binding.uri_access import Reach, denial, schemes_of
from interlock.drivers.protocol.errors import DriverRefusal
from interlock.drivers.protocol.model import Driver

ANYWHERE = ("/",)


def maybe_denied(uris: Iterable[str], plan: ServerPlan, driver: Driver) -> DriverRefusal | None:
    reach = reach_of(plan, driver)
    found = (denial(each, reach, os.path.realpath) for each in uris)
    return next((each for each in found if each is not None), None)


def reach_of(plan: ServerPlan, driver: Driver) -> Reach:
    schemes = schemes_of(resource.uri_template for resource in driver.resources)
    declared = driver.network.egress if driver.network is not None else ()
    if isinstance(plan.reach, Dial):
        host = urlsplit(plan.reach.url).hostname
        return Reach(egress=(*declared, *((host,) if host else ())), schemes=schemes)
    sandbox = plan.reach.sandbox
    if sandbox is None:  # a container, which is a sandbox of its own, or one whose operator wants none
        return Reach(roots=ANYWHERE, egress=declared, schemes=schemes)
    roots = [*sandbox.read, *sandbox.write, sandbox.home]
    if sandbox.from_arguments:
        roots += [Path(each) for each in plan.reach.command[1:] if each.startswith("/")]
    return Reach(roots=_real(roots), denied=_real(sandbox.deny), egress=sandbox.egress, schemes=schemes)


def _real(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(os.path.realpath(each) for each in paths)
