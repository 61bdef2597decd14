"""Which lines let a driver have a secret that it names: said by check, by the node and where a secret is kept.

A value in the store grants nothing: a driver is given what an inventory describes and grants (AIP-19.access-1).
"""

from typing import Final

from interlock.drivers.protocol.model import Driver

UNDECLARED: Final = "secret_undeclared"
UNGRANTED: Final = "access_denied"


def lines_to_describe(driver: Driver, name: str, slug: str) -> str:
    entry = f"- {{slug: {slug}, name: {name}, description: What it is for}}"
    said = f"add `{entry}` below `secrets:` of SECRETS.md beside DRIVER.md"
    return said if _has_ref(driver) else f"{said}, and {_line_of_ref(driver)}"


def lines_to_grant(driver: Driver, *, is_beside: bool | None, has_access: bool) -> str:
    """`is_beside`: the entry stands in the SECRETS.md beside DRIVER.md; None: that is not known."""
    by_access = f"`access: {{bind: [{{tool: {driver.id}}}]}}` to its entry in SECRETS.md"
    if has_access or _has_ref(driver) or is_beside is False:
        return f"add {by_access}"
    where = "" if is_beside else ", where the entry stands beside it"
    return f"{_line_of_ref(driver)}{where}, or {by_access}"


def _has_ref(driver: Driver) -> bool:
    return driver.auth is not None and driver.auth.ref is not None


def _line_of_ref(driver: Driver) -> str:
    if driver.auth is None:
        return "add `auth: {ref: ./SECRETS.md}` to DRIVER.md"
    return "add `ref: ./SECRETS.md` below `auth:` of DRIVER.md"
