"""SECRETS.md: the inventories of secrets (AIP-19), and how drivers use the secrets.

`read_secrets` turns the bytes of the file into an inventory, or into the problems of the file. An inventory describes
secrets and never contains a value. Everything that looks like a value is refused before the schema is applied, and no
message repeats it. `merge_inventories` combines the inventories of all drivers and of the workspace. `secret_for` finds
the entry that ${secrets.NAME} in a driver refers to.

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
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.files.plaintext import holds_token
from interlock.drivers.protocol.files.schemas import check_schema
from interlock.drivers.protocol.model import Driver, SecretEntry, SecretInventory
from interlock.drivers.protocol.problems import FileFindings, FileProblem, ParsedFile, Places
from interlock.wire.jsontext.canonical import pointer_step, quoted

SECRETS_FILE: Final = "SECRETS.md"
IN_MANIFEST: Final = "secret_in_manifest"
NOT_ENFORCED: Final = "not_enforced"


def read_secrets(data_untrusted: bytes, file: str) -> ParsedFile[SecretInventory]:
    """Parse a SECRETS.md. The file is refused if an entry seems to contain the value of a secret."""
    reading = read_frontmatter(data_untrusted, file)
    if reading.value is None:
        return ParsedFile(problems=reading.problems)
    front = reading.value
    findings = FileFindings(front.places)
    listed = front.data.get("secrets")
    for index, entry in enumerate(listed if isinstance(listed, list) else ()):
        if not isinstance(entry, Mapping):
            continue
        hint = "remove it, replace that secret, and store the new one with `interlock secrets set NAME`"
        for key in ("value", "plaintext", "ciphertext", "secret", "data", "key", "token"):
            if key in entry:  # AIP-19.file-2
                findings.add(f"/secrets/{index}/{key}", IN_MANIFEST, f"the key {key} would hold a value", hint)
        if _has_token(entry):  # AIP-19.file-2
            message = "a text of this entry looks like a secret's value"
            findings.add(f"/secrets/{index}", IN_MANIFEST, message, hint)
    refused = tuple(findings.problems) or check_schema(front, "AIP-19")
    if refused:
        return ParsedFile(problems=refused)
    inventory = SecretInventory(entries=tuple(map(_convert, front.data["secrets"])), places=front.places)
    refused = merge_inventories((inventory,))[1]
    if refused:
        return ParsedFile(problems=refused)
    for index, entry in enumerate(front.data["secrets"]):
        pointer = f"/secrets/{index}"
        if entry.get("exposures"):
            hint = "nothing is exposed by it: name the secret in DRIVER.md, as ${secrets.NAME}"
            findings.add(f"{pointer}/exposures", NOT_ENFORCED, "exposures is read and not used", hint, "note")
        for key in entry.get("audit", {}):
            message = f"{key} is read and not used"
            hint = "every reveal is recorded, and kept for store.audit_days of the configuration"
            findings.add(f"{pointer}/audit/{pointer_step(key)}", NOT_ENFORCED, message, hint, "note")
    return ParsedFile(value=inventory, problems=tuple(findings.problems))


def merge_inventories(
    inventories: Iterable[SecretInventory],
) -> tuple[tuple[SecretEntry, ...], tuple[FileProblem, ...]]:
    """Merge the secrets that several SECRETS.md files describe (AIP-19.file-3).

    Equal entries count once. If entries with the same slug differ, all of them are dropped and reported as a problem.
    """
    entries: dict[str, tuple[SecretEntry, Places]] = {}
    problems: list[FileProblem] = []
    refused: set[str] = set()
    for inventory in inventories:
        for index, entry in enumerate(inventory.entries):
            other = entries.setdefault(entry.slug, (entry, inventory.places))
            if other[0] != entry:  # AIP-19.file-3
                refused.add(entry.slug)
                files = f"{other[1].file} and {inventory.places.file}"
                message = f"{quoted(entry.slug)} is described differently in {files}"
                hint = "give one of the two another slug, or make them equal"
                problems.append(inventory.places.problem(f"/secrets/{index}/slug", "duplicate_slug", message, hint))
    return tuple(entry for slug, (entry, _) in entries.items() if slug not in refused), tuple(problems)


def entry_text(secret: SecretEntry) -> str:
    """Return the fields of a secret that decide where its value is stored and who may receive it, as one line of JSON.

    An operator who trusts a driver also accepts this text for each entry outside the driver's folder.
    """
    return msgspec.json.encode({"slug": secret.slug, "backend": secret.backend, "access": secret.access}).decode()


def default_slug(name: str) -> str:
    """Return the slug under which a variable's secret is stored by default: stripe-api-key for STRIPE_API_KEY
    (AIP-19.bind-1).
    """
    return name.lower().replace("_", "-")


def secret_for(
    name: str, driver_id: str, own: SecretInventory | None, workspace: tuple[SecretEntry, ...]
) -> SecretEntry | None:
    """Return the description of the secret to which ${secrets.NAME} in a driver refers, or None if no SECRETS.md
    describes it.

    `own` is the driver's SECRETS.md and is searched before the workspace's entries. Each is searched by bound variable
    name, then for <driver id>/slug, then for slug. In `own`, a slug also matches without its namespace.
    """
    slug = default_slug(name)
    for entries in ((own.entries if own is not None else ()), workspace):
        by_slug = {entry.slug: entry for entry in reversed(entries)}
        if own is not None and entries is own.entries:
            by_slug = {entry.slug.rpartition("/")[2]: entry for entry in reversed(entries)} | by_slug
        bound = next((entry for entry in entries if name in entry.env), None)  # AIP-19.bind-1
        match = bound or by_slug.get(f"{driver_id}/{slug}") or by_slug.get(slug)  # AIP-19.bind-1
        if match is not None:
            return match
    return None


def _has_token(value: Any) -> bool:
    if isinstance(value, str):
        return holds_token(value)
    if isinstance(value, Mapping):
        return any(_has_token(each) for each in value.values())
    return isinstance(value, list) and any(_has_token(each) for each in value)


def _convert(entry: Mapping[str, Any]) -> SecretEntry:
    """Convert an entry of a SECRETS.md to an object. The entry must have passed the schema."""
    bound = entry.get("metadata", {}).get("bindings", {}).get("env", ())
    fields: dict[str, Any] = {**entry, "env": (bound,) if isinstance(bound, str) else tuple(bound)}
    if "access" in entry:
        fields["access"] = {
            use: [{"kind": kind, "value": value} for grant in grants for kind, value in grant.items()]
            for use, grants in entry["access"].items()
        }
    return msgspec.convert(fields, SecretEntry)


USER: Final = "userId"


def find_grant(
    secret: SecretEntry, driver: Driver, contracts: Collection[str], *, is_own: bool, user: str | None = None
) -> str | None:
    """Return the rule that lets a driver use a secret, such as tool:files-mcp, or None if no rule does.

    `contracts` are the ids of the contracts that the driver implements. `is_own` tells whether the secret is described
    in the SECRETS.md that the driver's auth.ref names; this grants a secret that has no access block. `user` is set if
    the driver's process serves a single user. Entries for roles, capabilities and workflows are ignored: they apply to
    callers, and a process has no caller.
    """
    if secret.access is None:  # AIP-19.access-1
        return "auth.ref" if is_own else None
    holders = {*(("tool", name) for name in (driver.id, driver.key, *contracts)), (USER, user)}
    # AIP-19.access-1
    grants = (f"{each.kind}:{each.value}" for each in secret.access.bind if (each.kind, each.value) in holders)
    return next(grants, None)


def is_for_users_alone(secret: SecretEntry) -> bool:
    """Return whether a secret is granted only to users, and to no other kind of holder.

    On a shared process, a secret that is granted only to users would be available to all users (AIP-security-8).
    """
    kinds = {grant.kind for grant in secret.access.bind} if secret.access is not None else set()
    return kinds & {USER, "role", "cap", "tool", "workflow"} == {USER}  # AIP-security-8


UNDECLARED: Final = "secret_undeclared"
UNGRANTED: Final = "access_denied"


def lines_to_describe(driver: Driver, name: str, slug: str) -> str:
    """Return a text that says what a person must add to SECRETS.md to describe a secret of the driver."""
    entry = f"- {{slug: {slug}, name: {name}, description: What it is for}}"
    advice = f"add `{entry}` below `secrets:` of SECRETS.md beside DRIVER.md"
    return f"{advice}, and {line}" if (line := _missing_ref_line(driver)) else advice


def lines_to_grant(driver: Driver, *, is_beside: bool | None, has_access: bool) -> str:
    """Return a text that says what a person must add to DRIVER.md or SECRETS.md so that the driver may use a secret.

    `is_beside` tells whether the secret is described in the SECRETS.md in the driver's folder; None means unknown.
    `has_access` tells whether its entry already has an access block.
    """
    by_access = f"`access: {{bind: [{{tool: {driver.id}}}]}}` to its entry in SECRETS.md"
    ref_line = _missing_ref_line(driver)
    where = "" if is_beside else ", where the entry stands beside it"
    has_one_way = has_access or ref_line is None or is_beside is False
    return f"add {by_access}" if has_one_way else f"{ref_line}{where}, or {by_access}"


def _missing_ref_line(driver: Driver) -> str | None:
    """Return the line that a person must add to DRIVER.md so that it has auth.ref. Return None if it has auth.ref
    already.

    With auth.ref, the driver is granted all entries of its inventory.
    """
    if driver.auth is None:
        return "add `auth: {ref: ./SECRETS.md}` to DRIVER.md"
    return "add `ref: ./SECRETS.md` below `auth:` of DRIVER.md" if driver.auth.ref is None else None


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """Signs of a failed request to a server: its HTTP status, exit code, headers, and the code of the error in
    Interlock.
    """

    status: int = 0
    exit_code: int | None = None
    exception: str = ""
    headers: Sequence[tuple[bytes, bytes]] = ()


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """Rule of a driver by which an expired login is recognised, for example http_status:401."""

    written: str
    kind: str
    wanted: str

    def is_expired(self, seen: Detected) -> bool:
        """Return whether a failed request shows that the login has expired."""
        if self.kind == "header":
            name, _, value = self.wanted.partition(":")
            header = (name.strip().lower(), value.strip())
            return any((key.decode("latin-1").lower(), each.decode("latin-1")) == header for key, each in seen.headers)
        signs = {"http_status": seen.status, "exit_code": seen.exit_code, "exception": seen.exception}
        return str(signs[self.kind]) == self.wanted  # AIP-30.auth-2


def find_detector(driver: Driver) -> Detector | None:
    """Return the rule by which a driver recognises an expired login. Return None if it has no rule, or an unknown
    one.
    """
    expiry = driver.auth.expiry if driver.auth is not None else None
    if expiry is None or expiry.detect is None:
        return None
    kind, _, wanted = expiry.detect.partition(":")
    if kind in ("http_status", "exit_code"):
        is_valid = wanted.removeprefix("-").isdecimal() and wanted.isascii()
    elif kind == "header":
        is_valid = all(part.strip() for part in wanted.split(":", 1)) and ":" in wanted
    else:
        is_valid = kind == "exception" and bool(wanted)
    return Detector(written=expiry.detect, kind=kind, wanted=wanted) if is_valid else None


CHARS_MIN: Final = 8  # AIP-19.plain-1: shorter ones would be found everywhere


class Redactor:
    """Replacement of secret values in output by marks such as [secret:stripe-key]."""

    __slots__ = ("_needles",)

    def __init__(self, values: Mapping[str, str]) -> None:
        """Prepare to replace secret values. `values` maps the slug of each secret to its value."""
        needles: dict[bytes, bytes] = {}
        for slug, value in values.items():
            mark = f"[secret:{slug}]".encode()
            for text in (value, *value.splitlines()):
                if len(text.strip()) >= CHARS_MIN:  # AIP-19.plain-1
                    needles |= dict.fromkeys(_spellings(text.strip() if text != value else text), mark)
        # The longest first, because one may hold another.
        self._needles = sorted(needles.items(), key=lambda each: -len(each[0]))

    def __bool__(self) -> bool:
        """Return whether there is any secret value to replace."""
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
        """Replace secret values in data that was cut off at its end. The data may therefore end with the beginning of a
        secret value.

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
    """Return the forms in which a text may be written in JSON: as it is, and with the usual escapes."""
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    ascii_alone = json.dumps(text)[1:-1]
    forms = (text, plain, ascii_alone, plain.replace("/", "\\/"), ascii_alone.replace("/", "\\/"))
    return tuple(form.encode("utf-8", "surrogatepass") for form in dict.fromkeys(forms))
