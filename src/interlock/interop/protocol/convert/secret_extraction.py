"""A driver file that holds credentials in clear, and the same file with placeholders in their place (AIP-19.plain-2).

In: the frontmatter of a DRIVER.md. Out: what it is to say, and the secrets that stood in it, for the store. What stands
where no placeholder may (a url, a path) is named and left: only a person can move it.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.server_block import is_plaintext, plaintext_arguments
from interlock.interop.protocol.convert.entry import SecretNames, place_name
from interlock.interop.protocol.model import Finding

REF: Final = "./SECRETS.md"
_SCHEMES: Final = ("bearer ", "basic ", "token ")
_FIXED: Final = ("path", "package", "image", "url", "version", "entry", "cwd")


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    data: Mapping[str, Any]
    changed: tuple[str, ...]  # pointers
    secrets: tuple[Finding, ...]
    left: tuple[str, ...] = ()  # places a person has to see to

    def __repr__(self) -> str:
        return f"Adopted({len(self.secrets)} secrets)"


def extract_secrets(data: Mapping[str, Any], driver_id: str, taken: Collection[str] = ()) -> Adopted:
    """Replace the plaintext secrets of a driver by placeholders. `taken` are names of other existing secrets."""
    copy = {key: _copy(value) for key, value in data.items()}
    server = copy.get("server")
    work = _Work(driver_id, taken)
    if not isinstance(server, dict):
        return Adopted(data=data, changed=(), secrets=())
    not_secret = _not_secret(copy)
    for key in ("env", "headers", "query"):
        table = server.get(key)
        if not isinstance(table, dict):
            continue
        for name, text in table.items():
            if isinstance(text, str) and name not in not_secret and is_plaintext(name, text):
                table[name] = work.moved(place_name(key, name), name, text)
                work.changed[f"/server/{key}"] = None
    _arguments(server, not_secret, work)
    left = [key for key in _FIXED if key not in not_secret and is_plaintext("", _text(server.get(key)))]
    if work.secrets.found[work.before :]:
        auth = copy.setdefault("auth", {})
        if isinstance(auth, dict) and "ref" not in auth:
            auth["ref"] = REF
            work.changed["/auth"] = None
    return Adopted(
        data=copy,
        changed=tuple(work.changed),
        secrets=tuple(work.secrets.found[work.before :]),
        left=tuple(f"server.{key}" for key in left),
    )


class _Work:
    def __init__(self, driver_id: str, taken: Collection[str]) -> None:
        self.secrets = SecretNames(driver_id)
        self.secrets.found += [Finding(place="", name=name, slug="", description="") for name in taken]
        self.before = len(taken)
        self.changed: dict[str, None] = {}

    def moved(self, place: str, name: str, text: str) -> str:
        """Return a placeholder for a value, after the scheme if it is an Authorization header."""
        scheme = next((text[: len(each)] for each in _SCHEMES if text.lower().startswith(each)), "")
        return scheme + self.secrets.keep(place, name, f"For server.{place} of the driver.", text[len(scheme) :])


def _arguments(server: dict[str, Any], not_secret: Collection[str], work: _Work) -> None:
    args = server.get("args")
    if not isinstance(args, list) or not all(isinstance(each, str) for each in args):
        return
    for index, name in plaintext_arguments(tuple(args)):
        if name in not_secret or f"--{name}" in not_secret:
            continue
        text: str = args[index]
        for mark in ("=", ":"):
            before, separator, value = text.partition(mark)
            if separator and before.lstrip("-") == name:
                blank = value[: len(value) - len(value.lstrip())]
                args[index] = before + mark + blank + work.moved(place_name("args", name), name, value.lstrip())
                break
        else:
            args[index] = work.moved(place_name("args", name or str(index)), name or "ARGUMENT", text)
        work.changed["/server/args"] = None


def _not_secret(data: Mapping[str, Any]) -> Collection[str]:
    metadata = data.get("metadata")
    ours = metadata.get("interlock") if isinstance(metadata, Mapping) else None
    named = ours.get("not_secret") if isinstance(ours, Mapping) else None
    return [each for each in named if isinstance(each, str)] if isinstance(named, list) else ()


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list) else value


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
