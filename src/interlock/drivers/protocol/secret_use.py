"""The use of secrets by drivers: grants, hints for missing grants, detection of expired logins, redaction of values.

A driver receives a secret only if an inventory describes the secret and grants it to the driver (AIP-19.access-1). That
the value is stored is not enough. `find_grant` decides from the inventory alone, before any value is fetched.
`lines_to_describe` and `lines_to_grant` return what a person must write to describe or grant a secret. The check of a
folder, the node and the secret store print these lines.

`Detector` implements `expiry.detect` of a driver's auth block: it recognises an expired login (AIP-30.auth-2).

`Redactor` replaces the values of secrets in a server's output with `[secret:<slug>]` (AIP-19.plain-1). It searches for
exact values of at least eight characters, both plain and as JSON escapes them. It also searches for each line of a
value with several lines, because output is often read by lines. A value that the server has changed is not recognised.
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

    `contracts` are the ids of the contracts that the driver implements. `is_own` tells whether the secret is described
    in the SECRETS.md that the driver's auth.ref names; this grants a secret that has no access block. `user` is set if
    the driver's process serves a single user. Entries for roles, capabilities and workflows are ignored: they apply to
    callers, and a process has no caller.
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
    """Return whether the secret is bound to users and to no other known kind of holder.

    On a shared process, a secret that is granted only to users would be available to all users (AIP-security-8).
    """
    kinds = {grant.kind for grant in secret.access.bind} & _KNOWN if secret.access is not None else set()
    return kinds == {USER}  # AIP-security-8


UNDECLARED: Final = "secret_undeclared"
UNGRANTED: Final = "access_denied"


def lines_to_describe(driver: Driver, name: str, slug: str) -> str:
    """Return the lines that a person must add to an inventory so that it describes a secret of the driver."""
    entry = f"- {{slug: {slug}, name: {name}, description: What it is for}}"
    advice = f"add `{entry}` below `secrets:` of SECRETS.md beside DRIVER.md"
    return f"{advice}, and {line}" if (line := _missing_ref_line(driver)) else advice


def lines_to_grant(driver: Driver, *, is_beside: bool | None, has_access: bool) -> str:
    """Return which lines a person must add to which file so that the driver receives the secret.

    `is_beside` tells whether the secret is described in the SECRETS.md in the driver's folder; None means unknown.
    `has_access` tells whether its entry already has an access block.
    """
    by_access = f"`access: {{bind: [{{tool: {driver.id}}}]}}` to its entry in SECRETS.md"
    ref_line = _missing_ref_line(driver)
    if has_access or ref_line is None or is_beside is False:
        return f"add {by_access}"
    where = "" if is_beside else ", where the entry stands beside it"
    return f"{ref_line}{where}, or {by_access}"


def _missing_ref_line(driver: Driver) -> str | None:
    """Return how to add auth.ref to DRIVER.md, or None if it is already there.

    With auth.ref, the driver is granted all entries of its inventory.
    """
    if driver.auth is None:
        return "add `auth: {ref: ./SECRETS.md}` to DRIVER.md"
    return "add `ref: ./SECRETS.md` below `auth:` of DRIVER.md" if driver.auth.ref is None else None


_STATUS, _EXIT, _EXCEPTION, _HEADER = "http_status", "exit_code", "exception", "header"


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """A failed request to the server. `exception` is the code of the error that Interlock raised."""

    status: int = 0
    exit_code: int | None = None
    exception: str = ""
    headers: Sequence[tuple[bytes, bytes]] = ()


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """Rule that recognises an expired login by a status, an exit code, an error code or a header."""

    written: str
    kind: str
    wanted: str

    def is_expired(self, seen: Detected) -> bool:
        """Return whether a failed request shows that the login has expired."""
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
    """Return the rule by which the driver recognises an expired login, or None if it has no rule or an unknown one."""
    expiry = driver.auth.expiry if driver.auth is not None else None
    if expiry is None or expiry.detect is None:
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
    """Replacement of secret values in output by `[secret:<slug>]`. The values are searched for as bytes."""

    __slots__ = ("_needles",)

    def __init__(self, values: Mapping[str, str]) -> None:
        """Prepare to redact `values`, which maps slugs to the values of secrets."""
        needles: dict[bytes, bytes] = {}
        for slug, value in values.items():
            mark = f"[secret:{slug}]".encode()
            for text in (value, *value.splitlines()):
                if len(text.strip()) >= CHARS_MIN:  # AIP-19.plain-1
                    needles |= dict.fromkeys(_spellings(text.strip() if text != value else text), mark)
        # The longest first, because one may hold another.
        self._needles = sorted(needles.items(), key=lambda each: -len(each[0]))

    def __bool__(self) -> bool:
        """Return whether there is any value to redact."""
        return bool(self._needles)

    def is_in(self, data: bytes) -> bool:
        """Return whether the data contain a secret value."""
        return any(needle in data for needle, _ in self._needles)

    def redacted(self, data: bytes) -> bytes:
        """Return the data with every secret value replaced by its mark."""
        for needle, mark in self._needles:
            data = data.replace(needle, mark)  # AIP-19.plain-1
        return data

    def cut(self, data: bytes) -> bytes:
        """Redact a text that may end in the middle of a secret value.

        The beginning of a value at the end of the text is replaced too if it has at least CHARS_MIN bytes.
        """
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
    """Return the text unchanged and in the usual forms in which JSON encoders escape it."""
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    ascii_alone = json.dumps(text)[1:-1]
    forms = (text, plain, ascii_alone, plain.replace("/", "\\/"), ascii_alone.replace("/", "\\/"))
    return tuple(form.encode("utf-8", "surrogatepass") for form in dict.fromkeys(forms))
