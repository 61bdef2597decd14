"""One digest for all files that a driver consists of: what trust in it is about."""

import hashlib
from collections.abc import Mapping


def folder_digest(files: Mapping[str, str]) -> str:
    """Return one SHA-256 digest in hex for all files, from the digest of each file by its name, in any order."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{files[name]}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
