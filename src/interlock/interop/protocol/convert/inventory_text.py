"""Driver files of an import as text."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from interlock.drivers.protocol.files.frontmatter_writer import frontmatter_text
from interlock.interop.protocol.model import Finding

PENDING: Final[Mapping[str, Any]] = {  # in the place of bindings that are not known yet, where a reader wants one
    "tool": "pending",
    "version": "^1.0.0",
    "metadata": {"mcp": {"tool_name": "pending"}},
}


def secrets_text(secrets: Sequence[Finding]) -> str:
    """SECRETS.md: slugs, what they are for, where they come from; never a value."""
    return frontmatter_text({"secrets": secret_entries(secrets)})


def secret_entries(secrets: Sequence[Finding]) -> list[dict[str, str]]:
    entries = []
    for each in secrets:
        entry = {"slug": each.slug, "name": each.name, "description": each.description}
        entry |= {"backend": each.backend} if each.backend else {}
        entries.append(entry)
    return entries
