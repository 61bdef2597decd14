"""SECRETS.md: turns the bytes of the file into an inventory of secrets, or into the problems of the file (AIP-19).

An inventory describes secrets and never contains a value. Everything that looks like a value is refused before the
schema is applied, and no message repeats it. `merge_inventories` combines the inventories of all drivers and of the
workspace. `secret_for` finds the entry that ${secrets.NAME} in a driver refers to.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.files.plaintext import holds_token
from interlock.drivers.protocol.files.schemas import check_schema
from interlock.drivers.protocol.model import SecretEntry, SecretInventory
from interlock.drivers.protocol.problems import FileFindings, FileProblem, ParsedFile, Places
from interlock.wire.jsontext.canonical import pointer_step, quoted

SECRETS_FILE: Final = "SECRETS.md"
VALUE_KEYS: Final = ("value", "plaintext", "ciphertext", "secret", "data", "key", "token")  # AIP-19.file-2
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
        for key in VALUE_KEYS:
            if key in entry:  # AIP-19.file-2
                findings.add(f"/secrets/{index}/{key}", IN_MANIFEST, f"the key {key} would hold a value", hint)
        if _has_token(entry):  # AIP-19.file-2
            message = "a text of this entry looks like a secret's value"
            findings.add(f"/secrets/{index}", IN_MANIFEST, message, hint)
    if findings.refused:
        return ParsedFile(problems=tuple(findings.problems))
    refused = check_schema(front, "AIP-19")
    if refused:
        return ParsedFile(problems=refused)
    inventory = SecretInventory(entries=tuple(map(_convert, front.data["secrets"])), places=front.places)
    _, problems = merge_inventories((inventory,))
    if problems:
        return ParsedFile(problems=problems)
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
    """Merge the inventories of all files (AIP-19.file-3).

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
                message = (
                    f"{quoted(entry.slug)} is described differently in {other[1].file} and {inventory.places.file}"
                )
                hint = "give one of the two another slug, or make them equal"
                pointer = f"/secrets/{index}/slug"
                problems.append(inventory.places.problem(pointer, "duplicate_slug", message, hint))
    return tuple(entry for slug, (entry, _) in entries.items() if slug not in refused), tuple(problems)


def entry_text(secret: SecretEntry) -> str:
    """Return, on one line, the fields of an entry that decide which value it means and who may receive it.

    An operator who trusts a driver also accepts this text for each entry outside the driver's folder.
    """
    return msgspec.json.encode({"slug": secret.slug, "backend": secret.backend, "access": secret.access}).decode()


def default_slug(name: str) -> str:
    """Return the slug for a name, such as stripe-api-key for STRIPE_API_KEY (AIP-19.bind-1)."""
    return name.lower().replace("_", "-")


def secret_for(
    name: str, driver_id: str, own: SecretInventory | None, workspace: tuple[SecretEntry, ...]
) -> SecretEntry | None:
    """Return the entry that ${secrets.NAME} in a driver refers to, or None if there is none.

    `own` is the driver's SECRETS.md and is searched before the workspace's entries. Each is searched by bound variable
    name, then for <driver id>/slug, then for slug. In `own`, a slug also matches without its namespace.
    """
    slug = default_slug(name)
    for entries in ((own.entries if own is not None else ()), workspace):
        bound = next((entry for entry in entries if name in entry.env), None)  # AIP-19.bind-1
        if bound is not None:
            return bound
        by_slug = {entry.slug: entry for entry in reversed(entries)}
        if own is not None and entries is own.entries:
            by_slug = {entry.slug.rpartition("/")[2]: entry for entry in reversed(entries)} | by_slug
        match = by_slug.get(f"{driver_id}/{slug}") or by_slug.get(slug)  # AIP-19.bind-1
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
    """Convert an entry that passed the schema. Its metadata.bindings.env is a name or a list of names."""
    bound = entry.get("metadata", {}).get("bindings", {}).get("env", ())
    fields: dict[str, Any] = {**entry, "env": (bound,) if isinstance(bound, str) else tuple(bound)}
    if "access" in entry:
        fields["access"] = {
            use: [{"kind": kind, "value": value} for grant in grants for kind, value in grant.items()]
            for use, grants in entry["access"].items()
        }
    return msgspec.convert(fields, SecretEntry)
