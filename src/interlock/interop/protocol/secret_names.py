"""Placeholders and secrets in foreign files and in driver files: what a placeholder means, what a secret is called.

`split_parts` finds the placeholders of other programs in a text (AIP-import-7). `SecretNames` gives each secret of a
driver a name, a slug and a place. `extract_secrets` replaces the credentials that a DRIVER.md holds in clear text by
placeholders (AIP-19.plain-2). A credential where no placeholder is allowed, such as in a url, is named and left: only a
person can move it. The value of a secret leaves this module only in `SecretFinding.value`.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

import msgspec

from interlock.drivers.protocol.files.plaintext import is_plaintext, plaintext_arguments
from interlock.interop.protocol.model import SecretFinding, Style
from interlock.wire.jsontext.canonical import quoted

Kind = Literal["env", "input", "home", "workspace", "folder", "unknown"]
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_BRACED: Final = r"\$\{(?P<braced>[^{}]{1,300})\}"
_FORMS: Final[dict[Style, re.Pattern[str]]] = {
    "common": re.compile(_BRACED),
    "gemini": re.compile(rf"{_BRACED}|\$(?P<bare>{_NAME})"),
    "opencode": re.compile(rf"{_BRACED}|\{{(?P<curly>(?:env|file):[^{{}}]{{1,300}})\}}"),
    "continue": re.compile(rf"\$\{{\{{(?P<double>[^{{}}]{{1,300}})\}}\}}|{_BRACED}"),
    "registry": re.compile(r"\{(?P<curly>[A-Za-z0-9_.-]{1,100})\}"),
    "bundle": re.compile(_BRACED),
    "docker": re.compile(r"\{\{(?P<template>[^{}]{1,300})\}\}"),
    "driver": re.compile(r"\$\{secrets\.(?P<ours>[A-Z][A-Z0-9_]*)\}", re.ASCII),
}
_VARIABLE: Final = re.compile(rf"(?:env:)?(?P<name>{_NAME})(?::-(?P<default>.*))?", re.DOTALL | re.ASCII)
_BUNDLE_FOLDERS: Final = {"DESKTOP": "Desktop", "DOCUMENTS": "Documents", "DOWNLOADS": "Downloads"}


class Placeholder(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    name: str = ""
    default: str | None = None


Part = str | Placeholder


def split_parts(text: str, style: Style) -> list[Part]:
    parts: list[Part] = []
    end = 0
    for match in _FORMS[style].finditer(text):
        parts += [text[end : match.start()], _ref(match, style)]
        end = match.end()
    parts.append(text[end:])
    return [each for each in parts if each != ""]


def _ref(match: re.Match[str], style: Style) -> Part:
    groups = match.groupdict()
    body = next(value for value in groups.values() if value is not None)
    if groups.get("double") is not None:
        body = body.strip()
    if groups.get("bare") is not None:
        return Placeholder(kind="env", name=body)
    if style == "bundle":
        return _of_bundle(body)
    if style in {"registry", "driver"}:
        return Placeholder(kind="input", name=body)
    if style == "docker":  # {{server.parameter|volume|into}}
        return Placeholder(kind="input", name=body.partition("|")[0].strip())
    if groups.get("double") is not None:  # ${{ secrets.NAME }}, ${{ inputs.NAME }}
        place, dot, name = body.partition(".")
        return (
            Placeholder(kind="input", name=name)
            if dot and place in {"secrets", "inputs"}
            else Placeholder(kind="unknown", name=body)
        )
    if body.startswith("input:"):
        return Placeholder(kind="input", name=body.removeprefix("input:"))
    if body in {"workspaceFolder", "workspaceRoot"}:
        return Placeholder(kind="workspace")
    if body == "userHome":
        return Placeholder(kind="home")
    if body in {"pathSeparator", "/"}:
        return "/"
    variable = _VARIABLE.fullmatch(body)
    if variable is None:
        return Placeholder(kind="unknown", name=body)
    if variable["name"] in {"HOME", "USERPROFILE"}:
        return Placeholder(kind="home")  # a server's own HOME is a private folder, and this means the person's
    return Placeholder(kind="env", name=variable["name"], default=variable["default"])


def _of_bundle(body: str) -> Part:
    if body == "__dirname":
        return Placeholder(kind="folder")
    if body in {"/", "pathSeparator"}:
        return "/"
    if body == "HOME":
        return Placeholder(kind="home")
    if body in _BUNDLE_FOLDERS:
        return Placeholder(kind="home", name=_BUNDLE_FOLDERS[body])
    if body.startswith("user_config."):
        return Placeholder(kind="input", name=body.removeprefix("user_config."))
    variable = _VARIABLE.fullmatch(body)
    return (
        Placeholder(kind="env", name=variable["name"])
        if variable is not None
        else Placeholder(kind="unknown", name=body)
    )


_NOT_NAME: Final = re.compile(r"[^A-Z0-9]+")
NAME_CHARS_MAX: Final = 30
DESCRIPTION_CHARS_MAX: Final = 300


class SecretNames:
    def __init__(self, driver_id: str) -> None:
        self._namespace = driver_id.replace(".", "-")
        self.found: list[SecretFinding] = []

    def keep(self, place: str, wanted: str, description: str, value: str) -> str:
        """Return the placeholder for a value that goes to the store. Equal values share one secret."""
        existing = next((each for each in self.found if each.value == value), None)
        return _placeholder(existing or self._add(place, wanted, description, value=value))

    def ask(self, place: str, wanted: str, description: str) -> str:
        """Return the placeholder for a secret whose value is not set yet."""
        existing = next(
            (each for each in self.found if each.name == _name(wanted) and each.value is None and each.backend is None),
            None,
        )
        return _placeholder(existing or self._add(place, wanted, description))

    def from_environment(self, place: str, wanted: str, variable: str) -> str:
        backend = f"env://{variable}"
        existing = next((each for each in self.found if each.backend == backend), None)
        described = f"The environment variable {variable}, for {place}."
        return _placeholder(existing or self._add(place, wanted, described, backend=backend))

    def _add(
        self, place: str, wanted: str, description: str, *, value: str | None = None, backend: str | None = None
    ) -> SecretFinding:
        name = base = _name(wanted)
        number = 2
        taken = {each.name for each in self.found}
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        finding = SecretFinding(
            place=place,
            name=name,
            slug=f"{self._namespace}/{name.lower().replace('_', '-')}",
            description=description[:DESCRIPTION_CHARS_MAX] or f"For {place}.",
            value=value,
            backend=backend,
        )
        self.found.append(finding)
        return finding


def _placeholder(finding: SecretFinding) -> str:
    return f"${{secrets.{finding.name}}}"


def _name(wanted: str) -> str:
    """Return a valid secret name (AIP-19): capitals, digits and single underscores, two characters or more."""
    name = _NOT_NAME.sub("_", wanted.upper()).strip("_")[:NAME_CHARS_MAX].strip("_")
    if not name or not name[0].isalpha():
        name = f"VALUE_{name}".strip("_")
    return name if len(name) > 1 else f"{name}_VALUE"


def place_name(place: str, key: str) -> str:
    """Return the name of a place, such as env.GITHUB_TOKEN. A key with unusual characters is quoted."""
    return f"{place}.{key}" if re.fullmatch(r"[\w.-]{1,60}", key, re.ASCII) else f"{place}.{quoted(key)}"


REF: Final = "./SECRETS.md"
_AUTHORIZATION_SCHEMES: Final = ("bearer ", "basic ", "token ")
_WITHOUT_PLACEHOLDERS: Final = ("path", "package", "image", "url", "version", "entry", "cwd")


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    data: Mapping[str, Any]
    changed: tuple[str, ...]  # pointers
    secrets: tuple[SecretFinding, ...]
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
    _extract_from_arguments(server, not_secret, work)
    left = [
        key
        for key in _WITHOUT_PLACEHOLDERS
        if key not in not_secret and is_plaintext("", _string_or_empty(server.get(key)))
    ]
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
        self.secrets.found += [SecretFinding(place="", name=name, slug="", description="") for name in taken]
        self.before = len(taken)
        self.changed: dict[str, None] = {}

    def moved(self, place: str, name: str, text: str) -> str:
        """Return a placeholder for a value, after the scheme if it is an Authorization header."""
        scheme = next((text[: len(each)] for each in _AUTHORIZATION_SCHEMES if text.lower().startswith(each)), "")
        return scheme + self.secrets.keep(place, name, f"For server.{place} of the driver.", text[len(scheme) :])


def _extract_from_arguments(server: dict[str, Any], not_secret: Collection[str], work: _Work) -> None:
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


def _string_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""
