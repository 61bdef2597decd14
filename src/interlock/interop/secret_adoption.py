"""Implementation of `interlock secrets adopt`: moves the credentials of a driver folder to the store. Blocks on file
access.

Placeholders replace the credentials in the files. The store is written first, then the inventory, then the driver file.
So an interrupted adoption can be repeated, and no secret is lost. If the store has a different value under the same
name, the adoption ends before any file is changed.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from interlock.config.plan import Plan
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.files.inventory import SECRETS_FILE, default_slug
from interlock.drivers.workspace.folder import FolderUnreadable, read_file
from interlock.drivers.workspace.scan import scan_workspace
from interlock.interop.protocol.drafts import secrets_text
from interlock.interop.protocol.driver_edits import with_fields, with_secrets
from interlock.interop.protocol.translation import extract_secrets

Keep = Callable[[str, str], Literal["new", "same", "differs"]]


class NotAdopted(Exception):
    """Error for a driver whose files were not changed. The message says why."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class AdoptedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was moved to the store, described without its value."""

    place: str
    slug: str


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an adoption. `left` lists the places of secrets that the user has to move by hand."""

    driver: str
    folder: str
    adopted: tuple[AdoptedSecret, ...]
    left: tuple[str, ...]


def adopt(plan: Plan, wanted: str, keep: Keep) -> Adoption:
    """Move the plaintext secrets in a driver's files to the store.

    Raise NotAdopted if this is impossible, or OSError if a file cannot be written.
    """
    folder = _folder(plan, wanted)
    text = _read(folder / DRIVER_FILE)
    front = read_frontmatter(text.encode(), DRIVER_FILE).value
    if front is None or not isinstance(front.data.get("id"), str):
        raise NotAdopted(f"{folder / DRIVER_FILE} cannot be read", "interlock check shows what is wrong with it")
    inventory_path = folder / SECRETS_FILE
    inventory = _read(inventory_path) if inventory_path.exists() else ""
    extracted = extract_secrets(front.data, front.data["id"], _taken_names(inventory))
    for each in extracted.secrets:
        if keep(each.slug, each.value or "") == "differs":
            raise NotAdopted(
                f"another value is kept as {each.slug} already",
                f"interlock secrets remove {each.slug}, or write the placeholder into the file yourself",
            )
    if extracted.secrets:
        described = with_secrets(inventory, extracted.secrets) if inventory else secrets_text(extracted.secrets)
        _write(inventory_path, described)
        _write(folder / DRIVER_FILE, with_fields(text, extracted.data, extracted.changed))
    return Adoption(
        driver=front.data["id"],
        folder=str(folder),
        adopted=tuple(AdoptedSecret(place=f"server.{each.place}", slug=each.slug) for each in extracted.secrets),
        left=extracted.left,
    )


def _folder(plan: Plan, wanted: str) -> Path:
    folders = [each.path for each in scan_workspace(plan).folders]
    for path in folders:
        if path.name == wanted:
            return path
    for path in folders:
        try:
            front = read_frontmatter(read_file(path / DRIVER_FILE)[0], "").value
        except FolderUnreadable:
            continue
        if front is not None and front.data.get("id") == wanted:
            return path
    raise NotAdopted(f"there is no driver {wanted}", "interlock drivers list shows them")


def _taken_names(inventory: str) -> list[str]:
    """Return the names that already identify a secret in the inventory."""
    front = read_frontmatter(inventory.encode(), "").value if inventory else None
    entries = front.data.get("secrets") if front is not None else None
    slugs = [each.get("slug") for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    valid_slugs = [slug for slug in slugs if isinstance(slug, str)]
    return [default_slug(slug.rpartition("/")[2]).upper().replace("-", "_") for slug in valid_slugs]


def _read(path: Path) -> str:
    try:
        return read_file(path)[0].decode("utf-8")
    except (FolderUnreadable, UnicodeDecodeError) as fault:
        raise NotAdopted(f"{path} cannot be read: {fault}", "interlock check shows what is wrong with it") from None


def _write(path: Path, text: str) -> None:
    """Replace the file atomically and keep its permissions."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    fresh = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
