"""The text for a missing credential: what a driver in the state `unauthed` waits for, and what to do."""

from typing import Final

from interlock.drivers.protocol.model import Driver
from interlock.drivers.secrets.vault import ACCESS_DENIED, AUTH_REQUIRED, MissingSecret, SecretsMissing
from interlock.links.connector import ConnectFailed

_NEEDS: Final = "the server behind this tool needs a credential first"


def missing_secrets(failure: ConnectFailed) -> tuple[MissingSecret, ...]:
    """The missing secrets, where they are why the server was not reached."""
    return failure.__cause__.lacks if isinstance(failure.__cause__, SecretsMissing) else ()


def code_of(lacks: tuple[MissingSecret, ...]) -> str:
    return ACCESS_DENIED if any(lack.code == ACCESS_DENIED for lack in lacks) else AUTH_REQUIRED


def login_text(driver: Driver, reason: str | None) -> str:
    """The text for the client and the operator alike: slugs, and where one logs in."""
    said = f"{_NEEDS}: {reason}" if reason else _NEEDS
    login = driver.auth.login if driver.auth is not None else None
    if login is not None and login.url is not None:
        said += f"; log in at {login.url}"
    if login is not None and login.cmd is not None:
        said += f"; log in with {login.cmd}"
    return said
