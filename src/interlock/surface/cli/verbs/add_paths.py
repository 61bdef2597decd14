"""The paths of `interlock add`: a server is started elsewhere, so that what names something here is made absolute."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from interlock.surface.cli.terminal.errors import BadUsage

PATH_CHARS_MAX = 4096


def as_command(reference: str, args: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The reference, or None where it is the first word of a command; paths of here, made absolute."""
    here = tuple(absolute(each) for each in args)
    is_kind = reference.partition(":")[0] in ("npm", "pypi", "docker", "http", "https") and ":" in reference
    if is_kind:
        return reference, here
    if "/" in reference:
        return None, (str(Path(reference).expanduser().absolute()), *here)
    if args or shutil.which(reference):
        return None, (reference, *here)
    return reference, here


def absolute(text: str) -> str:
    """A server is started somewhere else: what names something here is made to name it there."""
    if text in (".", "..") or text.startswith(("./", "../", "~/")):
        return str(Path(os.path.abspath(Path(text).expanduser())))  # noqa: PTH100  (without following links)
    looks = not text.startswith(("-", "/")) and ("/" in text or "." in text) and ":" not in text and "@" not in text
    return str(Path(text).absolute()) if looks and Path(text).exists() else text


def absolute_value(text: str) -> str:
    return absolute(text) if text.startswith(("./", "../", "~/")) else text


def fresh(texts: Sequence[str]) -> dict[str, str]:
    """What names a file that is not there yet, with the folder it would be made in."""
    found = {}
    for text in (each.partition("=")[2] if each.startswith("-") else each for each in texts):
        is_path = text.startswith("/") and len(text) < PATH_CHARS_MAX and "\0" not in text
        if is_path and not os.path.lexists(text) and Path(text).parent.is_dir():
            found[text] = str(Path(text).parent)
    return found


def writable(text: str) -> str:
    path = Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100  (without following links)
    if not path.is_dir():
        raise BadUsage("usage", f"--write {text}: there is no such folder", hint="make it first")
    return str(path)
