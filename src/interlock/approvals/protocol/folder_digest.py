"""One digest for all files that a driver consists of: what trust in it is about."""

import hashlib
from collections.abc import Mapping


def folder_digest(files: Mapping[str, str]) -> str:
    """`files`: the digest of each, by its name; whatever the order. SHA-256 in hex."""
    made = hashlib.sha256()
    for name in sorted(files):
        made.update(f"{name}\0{files[name]}\n".encode("utf-8", "surrogateescape"))
    return made.hexdigest()
