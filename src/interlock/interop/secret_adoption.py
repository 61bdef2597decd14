"""Implementation of `interlock secrets adopt`: moves the credentials of a driver folder to the store. Blocks on file
access.

Placeholders replace the credentials in the files. The store is written first, then the inventory, then the driver file.
So an interrupted adoption can be repeated, and no secret is lost. If the store has a different value under the same
name, the adoption ends before any file is changed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from interlock.config.plan import Plan
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.files.inventory import SECRETS_FILE, default_slug
from interlock.drivers.workspace.folder import FolderUnreadable, inventory_slugs, read_file, write_whole
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
    # The names that already identify a secret in the inventory.
    slugs = inventory_slugs(inventory)
    taken = [default_slug(slug.rpartition("/")[2]).upper().replace("-", "_") for slug in slugs]
    extracted = extract_secrets(front.data, front.data["id"], taken)
    for each in extracted.secrets:
        if keep(each.slug, each.value or "") == "differs":
            raise NotAdopted(
                f"another value is kept as {each.slug} already",
                f"interlock secrets remove {each.slug}, or write the placeholder into the file yourself",
            )
    if extracted.secrets:
        described = with_secrets(inventory, extracted.secrets) if inventory else secrets_text(extracted.secrets)
        write_whole(inventory_path, described.encode(), None if inventory_path.exists() else 0o644)
        write_whole(folder / DRIVER_FILE, with_fields(text, extracted.data, extracted.changed).encode())
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


def _read(path: Path) -> str:
    try:
        return read_file(path)[0].decode("utf-8")
    except (FolderUnreadable, UnicodeDecodeError) as fault:
        raise NotAdopted(f"{path} cannot be read: {fault}", "interlock check shows what is wrong with it") from None
