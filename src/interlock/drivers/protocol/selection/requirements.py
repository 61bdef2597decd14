"""What a driver claims or needs that its own files cannot show: the machine it runs on, and tags about where.

`Machine` is what the host found out about itself; nothing is asked of the system here.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import Problem
from interlock.net.protocol.address_scope import Scope, maybe_scope

UNMET: Final = "requirement_unmet"  # AIP-30.front-5
UNVERIFIED: Final = "policy_tag_unverified"  # AIP-security-12
SELF_HOSTED: Final = "self-hosted"

_NEAR: Final = (".local", ".localhost", ".lan", ".internal", ".home.arpa")  # names no public resolver answers for


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """In the words of AIP-30; None is not known, and then nothing that asks for it is met."""

    os: str | None
    arch: str | None
    disk_mb: float | None
    memory_mb: float | None


def unmet(driver: Driver, machine: Machine) -> tuple[Problem, ...]:
    """AIP-30.front-5."""
    return tuple(_unmet(driver, machine))


def _unmet(driver: Driver, machine: Machine) -> Iterator[Problem]:
    requires = driver.requires
    for key, wanted, have in (("os", requires.os, machine.os), ("arch", requires.arch, machine.arch)):
        if wanted and have not in wanted:  # AIP-30.front-5
            yield _problem(driver, key, f"this machine has {have or 'an unknown one'}, not {' or '.join(wanted)}")
    for key, least, found in (
        ("min_disk_mb", requires.min_disk_mb, machine.disk_mb),
        ("min_memory_mb", requires.min_memory_mb, machine.memory_mb),
    ):
        if least is not None and (found is None or found < least):
            has = "an unknown amount" if found is None else f"{found:.0f} MB"
            yield _problem(driver, key, f"this machine has {has}, and {least:.0f} MB are needed")


def _problem(driver: Driver, key: str, message: str) -> Problem:
    return driver.places.problem(f"/requires/{key}", UNMET, message, "use this driver on another machine")


def unverified_tags(driver: Driver) -> tuple[Problem, ...]:
    """AIP-security-12: a server on somebody else's host is not self-hosted, whatever its file says."""
    address = driver.server.address
    if address is None or SELF_HOSTED not in driver.policy_tags:  # AIP-security-12
        return ()
    host = urlsplit(address).hostname or ""
    if is_near(host):  # AIP-security-12
        return ()
    index = driver.policy_tags.index(SELF_HOSTED)
    return (
        driver.places.problem(
            f"/policy_tags/{index}",
            UNVERIFIED,
            f"{host} is a public host, so that this server is not {SELF_HOSTED}",
            "remove the tag",
        ),
    )


def is_near(host: str) -> bool:
    """Judged by the name alone: this machine, a private address, or a name that only a local network knows."""
    host = host.lower().rstrip(".")
    scope = maybe_scope(host)
    if scope is not None:
        return scope > Scope.PUBLIC
    return bool(host) and ("." not in host or host.endswith(_NEAR))
