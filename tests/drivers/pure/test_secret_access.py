"""May a driver have a secret? Only what its inventory grants, whoever else is named there."""

from typing import Any

import pytest
from tests.drivers.driver_texts import MISSING, as_driver, as_secrets, driver, secret

from interlock.drivers.protocol.files.inventory import find_grant, is_for_users_alone
from interlock.drivers.protocol.model import SecretEntry

CALLERS = [
    {"role": "filesystem-mcp"},
    {"cap": "cap://filesystem-mcp"},
    {"workflow": "filesystem-mcp"},
    {"planet": "filesystem-mcp"},
]


def described(access: Any) -> SecretEntry:
    read = as_secrets(secret(access=access)).value
    assert read is not None
    return read.entries[0]


@pytest.mark.req("AIP-19.access-1")
@pytest.mark.parametrize(
    ("access", "is_own", "user", "granted_by"),
    [
        (MISSING, True, None, "auth.ref"),
        (MISSING, False, None, None),
        ({"bind": [{"tool": "other"}]}, True, None, None),
        ({"bind": [{"tool": "other"}, {"tool": "filesystem-mcp"}]}, False, None, "tool:filesystem-mcp"),
        ({"bind": [{"tool": "filesystem-mcp@1"}]}, False, None, "tool:filesystem-mcp@1"),
        ({"bind": [{"tool": "fs-read"}]}, False, None, "tool:fs-read"),
        ({"bind": [{"userId": "ada"}]}, True, "ada", "userId:ada"),
        ({"bind": [{"userId": "ada"}]}, True, "bob", None),
        ({"bind": [{"userId": "filesystem-mcp"}, {"tool": "ada"}]}, True, "ada", None),
        ({"bind": CALLERS}, True, "filesystem-mcp", None),
        ({"reveal": [{"tool": "filesystem-mcp"}], "rotate": [{"tool": "filesystem-mcp"}]}, True, None, None),
    ],
)
def test_any_entry_that_fits_grants_it_and_no_other_does(
    access: Any, is_own: bool, user: str | None, granted_by: str | None
) -> None:
    asking = as_driver(driver()).value
    assert asking is not None
    assert find_grant(described(access), asking, {"fs-read"}, is_own=is_own, user=user) == granted_by


@pytest.mark.req("AIP-security-8")
@pytest.mark.parametrize(
    ("access", "is_alone"),
    [
        (MISSING, False),
        ({"bind": [{"userId": "ada"}, {"userId": "bob"}]}, True),
        ({"bind": [{"userId": "ada"}, {"planet": "mars"}]}, True),
        ({"bind": [{"userId": "ada"}, {"tool": "filesystem-mcp"}]}, False),
        ({"bind": [{"planet": "mars"}]}, False),
    ],
)
def test_a_secret_that_only_users_may_have_is_known(access: Any, is_alone: bool) -> None:
    assert is_for_users_alone(described(access)) is is_alone
