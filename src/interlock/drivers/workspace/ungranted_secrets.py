"""The secrets that a driver names and would not be given, whatever the store holds; judged by inventories alone."""

from collections.abc import Iterator

import msgspec

from interlock.drivers.protocol.files.inventory import default_slug
from interlock.drivers.protocol.model import Driver, Secret
from interlock.drivers.protocol.problems import Problem
from interlock.drivers.protocol.selection.secret_access import USER, maybe_granted_by
from interlock.drivers.protocol.selection.secret_hints import UNDECLARED, UNGRANTED, lines_to_describe, lines_to_grant
from interlock.drivers.workspace.declaration import Declared


class UngrantedSecret(msgspec.Struct, frozen=True, kw_only=True):
    slug: str
    problem: Problem


def ungranted_secrets(one: Declared) -> Iterator[UngrantedSecret]:
    """The ungranted secrets of a driver whose inventory was looked up; the server is not started while there is any."""
    driver = one.driver
    for name in driver.secret_names if driver is not None else ():
        assert driver is not None  # noqa: S101  (without one there are no names)
        entry = one.secrets.get(name)
        if entry is None:
            slug = default_slug(name)
            message = f"no inventory describes the secret {name}, and the node does not start the server until one does"
            hint = lines_to_describe(driver, name, slug)
            yield UngrantedSecret(slug=slug, problem=_problem(driver, UNDECLARED, message, hint))
        elif not _is_granted(one, driver, entry):
            message = f"no inventory grants the driver the secret {entry.slug}, and the node does not start the server"
            is_beside = one.own_secrets is not None and entry in one.own_secrets.entries
            hint = lines_to_grant(driver, is_beside=is_beside, has_access=entry.access is not None)
            yield UngrantedSecret(slug=entry.slug, problem=_problem(driver, UNGRANTED, message, hint))


def _is_granted(one: Declared, driver: Driver, entry: Secret) -> bool:
    if entry.access is not None and any(grant.kind == USER for grant in entry.access.bind):
        return True  # to somebody's own process, at the least
    contracts = [contract.id for contract in one.contracts.values()]
    return maybe_granted_by(entry, driver, contracts, is_own=entry.slug in one.bound_secrets) is not None


def _problem(driver: Driver, code: str, message: str, hint: str) -> Problem:
    # Of the node's registry a warning: the driver is listed, and waits as one that lacks a credential.
    return driver.places.problem("/server", code, message, hint, severity="warning")
