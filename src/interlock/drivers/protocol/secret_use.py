"""The use of secrets by drivers: who may bind one, what to write to get one, expired logins, redaction of values.

A stored value alone gives a driver nothing. A driver gets a secret if an inventory describes the secret and grants it
to the driver (AIP-19.access-1). `find_grant` decides this by the inventory alone, before any value is fetched.
`lines_to_describe` and `lines_to_grant` say what a person has to write for it; the check of a folder, the node and the
store of secrets all print them.

`Detector` is `expiry.detect` of a driver's auth: the sign of an expired login (AIP-30.auth-2).

`Redactor` replaces the values of secrets in a server's output by `[secret:<slug>]` (AIP-19.plain-1). It looks for exact
values of at least eight characters, as they are and as JSON writes them, and for each line of a value with several
lines, because output is often read by lines. A value that the server has changed is not recognised.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from interlock.drivers.protocol.model import Driver, SecretEntry

OWN_INVENTORY: Final = "auth.ref"
USER: Final = "userId"
_KNOWN: Final = frozenset((USER, "role", "cap", "tool", "workflow"))


def find_grant(
    secret: SecretEntry, driver: Driver, contracts: Collection[str], *, is_own: bool, user: str | None = None
) -> str | None:
    """Return the access entry that grants the secret to the driver, or None if no entry does.

    `contracts` are the ids of the contracts that it implements. `is_own` means that the entry is in the SECRETS.md that
    the driver's auth.ref names. `user` is the user of a process that only one user has. Roles, capabilities and
    workflows belong to a caller, and a process has no caller.
    """
    if secret.access is None:  # AIP-19.access-1
        return OWN_INVENTORY if is_own else None
    tools = {driver.id, driver.key, *contracts}
    for grant in secret.access.bind:
        # AIP-19.access-1
        if (grant.kind == "tool" and grant.value in tools) or (grant.kind == USER and grant.value == user):
            return f"{grant.kind}:{grant.value}"
    return None


def is_for_users_alone(secret: SecretEntry) -> bool:
    """Return whether every entry that could grant the secret names a user.

    On a shared process such a secret would be available to all users (AIP-security-8).
    """
    kinds = {grant.kind for grant in secret.access.bind} & _KNOWN if secret.access is not None else set()
    return kinds == {USER}  # AIP-security-8


UNDECLARED: Final = "secret_undeclared"
UNGRANTED: Final = "access_denied"


def lines_to_describe(driver: Driver, name: str, slug: str) -> str:
    """Return what to write so that an inventory describes a secret of the driver."""
    entry = f"- {{slug: {slug}, name: {name}, description: What it is for}}"
    advice = f"add `{entry}` below `secrets:` of SECRETS.md beside DRIVER.md"
    return f"{advice}, and {line}" if (line := _missing_ref_line(driver)) else advice


def lines_to_grant(driver: Driver, *, is_beside: bool | None, has_access: bool) -> str:
    """Return what to write in which file so that the driver receives the secret.

    `is_beside` says whether the entry is in the SECRETS.md beside DRIVER.md; None means unknown.
    """
    by_access = f"`access: {{bind: [{{tool: {driver.id}}}]}}` to its entry in SECRETS.md"
    ref_line = _missing_ref_line(driver)
    if has_access or ref_line is None or is_beside is False:
        return f"add {by_access}"
    where = "" if is_beside else ", where the entry stands beside it"
    return f"{ref_line}{where}, or {by_access}"


def _missing_ref_line(driver: Driver) -> str | None:
    """Return how to add auth.ref to DRIVER.md, which grants all entries of the driver's inventory, or None."""
    if driver.auth is None:
        return "add `auth: {ref: ./SECRETS.md}` to DRIVER.md"
    return "add `ref: ./SECRETS.md` below `auth:` of DRIVER.md" if driver.auth.ref is None else None


_STATUS, _EXIT, _EXCEPTION, _HEADER = "http_status", "exit_code", "exception", "header"


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """A failed exchange with the server. `exception` is the code of our own error."""

    status: int = 0
    exit_code: int | None = None
    exception: str = ""
    headers: Sequence[tuple[bytes, bytes]] = ()


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """The sign by which an expired login is recognised."""

    written: str
    kind: str
    wanted: str

    def is_expired(self, seen: Detected) -> bool:
        match self.kind:
            case "http_status":
                return str(seen.status) == self.wanted  # AIP-30.auth-2
            case "exit_code":
                return str(seen.exit_code) == self.wanted
            case "exception":
                return seen.exception == self.wanted
            case _:
                name, _, value = self.wanted.partition(":")
                return any(
                    key.decode("latin-1").lower() == name.strip().lower() and content.decode("latin-1") == value.strip()
                    for key, content in seen.headers
                )


def find_detector(driver: Driver) -> Detector | None:
    """Return the driver's detector of expired logins, or None if it has none or an unknown one."""
    expiry = driver.auth.expiry if driver.auth is not None else None
    if expiry is None:
        return None
    kind, _, wanted = expiry.detect.partition(":")
    if kind in (_STATUS, _EXIT):
        is_valid = wanted.removeprefix("-").isdecimal() and wanted.isascii()
    elif kind == _HEADER:
        is_valid = all(part.strip() for part in wanted.split(":", 1)) and ":" in wanted
    else:
        is_valid = kind == _EXCEPTION and bool(wanted)
    return Detector(written=expiry.detect, kind=kind, wanted=wanted) if is_valid else None


CHARS_MIN: Final = 8  # AIP-19.plain-1: shorter ones would be found everywhere


class Redactor:
    """A replacement of secret values in output. The values are looked for as bytes."""

    __slots__ = ("_needles",)

    def __init__(self, values: Mapping[str, str]) -> None:
        """Prepare to redact `values`, which are keyed by slug."""
        needles: dict[bytes, bytes] = {}
        for slug, value in values.items():
            mark = f"[secret:{slug}]".encode()
            for text in (value, *value.splitlines()):
                if len(text.strip()) >= CHARS_MIN:  # AIP-19.plain-1
                    needles |= dict.fromkeys(_spellings(text.strip() if text != value else text), mark)
        # The longest first, because one may hold another.
        self._needles = sorted(needles.items(), key=lambda each: -len(each[0]))

    def __bool__(self) -> bool:
        return bool(self._needles)

    def is_in(self, data: bytes) -> bool:
        return any(needle in data for needle, _ in self._needles)

    def redacted(self, data: bytes) -> bytes:
        for needle, mark in self._needles:
            data = data.replace(needle, mark)  # AIP-19.plain-1
        return data

    def cut(self, data: bytes) -> bytes:
        """Redact a text that may end in the middle of a value, including the beginning of that value."""
        data = self.redacted(data)
        for needle, mark in self._needles:
            for length in range(min(len(needle) - 1, len(data)), CHARS_MIN - 1, -1):
                if data.endswith(needle[:length]):
                    return data[:-length] + mark
        return data

    def text(self, text: str) -> str:
        return self.redacted(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


NOTHING: Final = Redactor({})


def _spellings(text: str) -> tuple[bytes, ...]:
    """Return the text as it is and in every way in which JSON writers escape it."""
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    ascii_alone = json.dumps(text)[1:-1]
    forms = (text, plain, ascii_alone, plain.replace("/", "\\/"), ascii_alone.replace("/", "\\/"))
    return tuple(form.encode("utf-8", "surrogatepass") for form in dict.fromkeys(forms))
