"""Paths as text: whether one lies below a folder, judged without a file system.

What is not the same path to every reader lies below no folder: `..`, percent-encoding, backslashes, variables and
patterns, characters that are invisible or that normalise to a separator or a dot. Upper and lower case are different.
Only the text is judged: a symbolic link below the folder may lead out of it, which a sandbox prevents and this cannot.
"""

import unicodedata
from typing import Final

PATH_CHARS_MAX: Final = 4096
_EXPANDED: Final = frozenset("\\%$`*?{}")  # what a server, its shell or a URI decoder may turn into something else
_SEPARATING: Final = frozenset("./\\%~:")


def maybe_folder(text: str) -> str | None:
    """The folder as it is signed, without a `/` at its end; None where it is none or too wide to be one."""
    parts = _maybe_parts(text)
    return None if parts is None or not any(parts) else "/".join(parts)


def maybe_parent(path: str) -> str | None:
    """The folder in which a path lies, where that is one that can be signed."""
    parts = _maybe_parts(path)
    return None if parts is None else maybe_folder("/".join(parts[:-1]))


def is_below(path: str, folder: str) -> bool:
    """Whether the path lies inside the folder, and is not the folder itself. `folder`: from `maybe_folder`."""
    parts, above = _maybe_parts(path), folder.split("/")
    return parts is not None and len(parts) > len(above) and parts[: len(above)] == above


def _maybe_parts(text: str) -> list[str] | None:
    """The names on the way, the first one empty where the path is absolute; None: readers may take it differently."""
    if not text or len(text) > PATH_CHARS_MAX or text.startswith(("//", "~")) or ".." in text or "://" in text:
        return None
    if not _EXPANDED.isdisjoint(text) or not all(map(_is_plain, text)):
        return None
    first, *rest = text.split("/")
    parts = [first, *(part for part in rest if part not in ("", "."))]
    if first == "." and len(parts) > 1:
        parts = parts[1:]
    # Some systems drop dots and spaces at the end of a name: ". " would be the folder itself.
    if any(not part.strip(". ") for part in parts[0 if parts[0] else 1 :]):
        return None
    return parts


def _is_plain(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    if unicodedata.category(character)[0] in "CZ":  # invisible, private, unassigned, a space of another kind
        return False
    return _SEPARATING.isdisjoint(unicodedata.normalize("NFKC", character))
