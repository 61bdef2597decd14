"""Changes to an imported driver file: a three-way merge, and an edit that keeps the rest of the user's text.

`merge` compares what the last import wrote, what the file contains now, and what the source says now (AIP-import-13). A
field that only one side changed takes that side's value. If both the user and the source changed a field, the user's
value stays and the field is reported. A list is treated as one value. Only digests of the last import are stored,
because a value that was not recognised as a secret may still be one.

`with_fields` writes the result into the file and keeps its comments, order and body.
"""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.files.frontmatter import FENCE, frontmatter_text, read_frontmatter
from interlock.drivers.protocol.identity import changes_of_identity
from interlock.interop.protocol.drafts import PENDING, secret_entries, secrets_text
from interlock.interop.protocol.model import SecretFinding
from interlock.interop.protocol.translation import plain_copy
from interlock.wire.jsontext.canonical import pointer_step

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def fingerprint_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` with each value replaced by a digest. Values that are already digests stay unchanged."""
    result: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            result[key] = fingerprint_values(value)
        else:
            result[key] = value if isinstance(value, str) and _DIGEST.fullmatch(value) else _digest(value)
    return result


def recall_values(base: Mapping[str, Any], *candidates: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with each digest replaced by the matching value at the same place in one of `candidates`.

    A digest without a matching value stays, and is not equal to any value.
    """
    result: dict[str, Any] = {}
    for key, digest in base.items():
        here = [each[key] for each in candidates if key in each]
        if isinstance(digest, Mapping):
            result[key] = recall_values(digest, *(each for each in here if isinstance(each, Mapping)))
        else:
            values = (each for each in here if not isinstance(each, Mapping))
            result[key] = next((each for each in values if digest in (each, _digest(each))), digest)
    return result


def _digest(value: Any) -> str:
    return f"sha256:{hashlib.sha256(msgspec.json.encode(value, order='sorted')).hexdigest()}"


# The folder decides the id, the node the version, and the tools of the server decide implements.
NOT_MERGED: Final = frozenset({"id", "version", "implements"})
_ABSENT: Final = object()


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a three-way merge."""

    data: Mapping[str, Any]
    changed: tuple[str, ...] = ()  # pointers that took the source's value
    conflicts: tuple[str, ...] = ()  # pointers that both changed


def merge(base: Mapping[str, Any], mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Merged:
    """Merge what the last import wrote (`base`), what the file contains now (`mine`) and what the source says now
    (`theirs`).
    """
    changed: list[str] = []
    conflicts: list[str] = []

    def fields(pointer: str, base: Any, mine: Any, theirs: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key in dict.fromkeys([*mine, *theirs]):
            place = f"{pointer}/{pointer_step(str(key))}"
            if not pointer and key in NOT_MERGED:
                value = mine.get(key, theirs.get(key))
            else:
                value = field(place, base.get(key, _ABSENT), mine.get(key, _ABSENT), theirs.get(key, _ABSENT))
            if value is not _ABSENT:
                result[key] = value
        return result

    def field(place: str, base: Any, mine: Any, theirs: Any) -> Any:
        if theirs in (base, mine):
            return mine
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            return fields(place, base if isinstance(base, Mapping) else {}, mine, theirs)
        if mine == base:
            changed.append(place)
            return theirs
        conflicts.append(place)
        return mine

    data = fields("", base, mine, theirs)
    return Merged(data=data, changed=tuple(changed), conflicts=tuple(conflicts))


def with_old(theirs: Mapping[str, Any], base: Mapping[str, Any], pointers: Sequence[str]) -> dict[str, Any]:
    """Return `theirs` with the values at these JSON pointers taken from `base`."""
    result: dict[str, Any] = plain_copy(theirs)
    for pointer in pointers:
        _copy_value(pointer, base, result)
    return result


def _copy_value(pointer: str, source: Mapping[str, Any], target: Any) -> None:
    """Copy the value at a JSON pointer. If `source` has none there, remove that of `target`."""
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    for step in steps:
        source, target = source.get(step, {}), target.setdefault(step, {})
    if last in source:
        target[last] = source[last]
    else:
        target.pop(last, None)


def next_version(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the next version: a new major version if the identity of the driver changed (AIP-identity) or one of the
    two cannot be read, else a new patch. Return 1.0.0 if the old version is invalid.
    """
    written = str(before.get("version", ""))
    match = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", written)
    if match is None:
        return "1.0.0"
    major, minor, patch = (int(each) for each in match.groups())
    texts = (frontmatter_text({**each, "version": written, "implements": [PENDING]}) for each in (before, after))
    old, other = (read_driver(text.encode(), "DRIVER.md").value for text in texts)
    moved = old is None or other is None or any(changes_of_identity(old, other))
    return f"{major + 1}.0.0" if moved else f"{major}.{minor}.{patch + 1}"


def with_fields(text: str, data: Mapping[str, Any], changed: Sequence[str]) -> str:
    """Return the text of a driver file with changed frontmatter.

    `data` is the new frontmatter, and `changed` holds the JSON pointers of the values that differ. If the YAML editor
    cannot produce exactly `data`, the frontmatter is written again without its comments.
    """
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    end = next((index for index, line in enumerate(lines) if index and line.rstrip() == FENCE), len(lines))
    head, body = "".join(lines[1:end]), "".join(lines[end + 1 :])
    edited = _find_edited(head, data, changed)
    if edited is not None:
        whole = f"{FENCE}\n{edited}{FENCE}\n{body}"
        front = read_frontmatter(whole.encode(), "").value
        if front is not None and front.data == data:
            return whole
    return frontmatter_text(data, body)


def with_secrets(text: str, added: Sequence[SecretFinding]) -> str:
    """Return the text of a secret inventory with these entries added. Existing entries stay unchanged.

    If `text` is not a readable inventory, the result contains only the added entries.
    """
    front = read_frontmatter(text.encode(), "").value
    entries = front.data.get("secrets") if front is not None else None
    if front is None or not isinstance(entries, list):
        return secrets_text(added)
    data = {**front.data, "secrets": [*entries, *secret_entries(added)]}
    return with_fields(text, data, ["/secrets"])


def _find_edited(head: str, data: Mapping[str, Any], changed: Sequence[str]) -> str | None:
    """Return the frontmatter with the values at these JSON pointers replaced, or None if the YAML editor fails."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 4096
    try:
        document = yaml.load(head)
        for pointer in changed:
            _copy_value(pointer, data, document)
        out = io.StringIO()
        yaml.dump(document, out)
    except Exception:  # whatever the reason, the caller then rewrites the frontmatter
        return None
    return out.getvalue()
