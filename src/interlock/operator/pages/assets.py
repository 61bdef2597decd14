"""The files of the console: scripts, style and icon, each with the tag by which a browser knows that it has it."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

PREFIX: Final = "/console/"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Asset(msgspec.Struct, frozen=True):
    body: bytes
    media_type: str
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """Read the files of the console, by name. A request reads no other file, so that no path leads out of the
    folder.
    """
    by_name: dict[str, Asset] = {}
    for file in files("interlock.operator.pages").joinpath("static").iterdir():
        ending = file.name[file.name.rfind(".") :]
        if ending in _TYPES:
            body = file.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            by_name[file.name] = Asset(body, f"{_TYPES[ending]}; charset=utf-8", etag)
    return by_name
