"""Frontmatter edits: change fields of a driver file and leave its comments, order and body as the person wrote them."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from interlock.drivers.protocol.files.frontmatter import FENCE, frontmatter_text, read_frontmatter
from interlock.interop.protocol.convert.draft import secret_entries, secrets_text
from interlock.interop.protocol.model import Finding


def with_fields(text: str, data: Mapping[str, Any], changed: Sequence[str]) -> str:
    """Return a text with changed frontmatter.

    `data` is the new content and `changed` are pointers to what differs. If the editor cannot produce exactly `data`,
    the frontmatter is rewritten: its comments are lost, its meaning is not.
    """
    head, body = _cut(text)
    edited = _edit(head, data, changed)
    if edited is not None:
        whole = f"{FENCE}\n{edited}{FENCE}\n{body}"
        front = read_frontmatter(whole.encode(), "").value
        if front is not None and front.data == data:
            return whole
    return frontmatter_text(data, body)


def with_secrets(text: str, added: Sequence[Finding]) -> str:
    """Add entries to the text of an inventory and leave the existing entries unchanged."""
    front = read_frontmatter(text.encode(), "").value
    entries = front.data.get("secrets") if front is not None else None
    if front is None or not isinstance(entries, list):
        return secrets_text(added)
    data = {**front.data, "secrets": [*entries, *secret_entries(added)]}
    return with_fields(text, data, ["/secrets"])


def _cut(text: str) -> tuple[str, str]:
    """Split a text into its frontmatter and its body."""
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    end = next((index for index, line in enumerate(lines) if index and line.rstrip() == FENCE), len(lines))
    return "".join(lines[1:end]), "".join(lines[end + 1 :])


def _edit(head: str, data: Mapping[str, Any], changed: Sequence[str]) -> str | None:
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 4096
    try:
        document = yaml.load(head)
        for pointer in changed:
            steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
            _set(document, data, steps)
        out = io.StringIO()
        yaml.dump(document, out)
    except Exception:  # whatever it trips over: the other way is always open
        return None
    return out.getvalue()


def _set(document: Any, data: Any, steps: list[str]) -> None:
    """Set the value at the end of the steps from `data`, or removed where it has none."""
    *before, last = steps
    for step in before:
        data = data[step]
        document = document.setdefault(step, {})
    if last in data:
        document[last] = data[last]
    else:
        document.pop(last, None)
