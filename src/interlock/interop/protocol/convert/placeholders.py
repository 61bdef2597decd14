"""Placeholders of other programs inside a text: what each asks for (AIP-import-7).

`split_parts` cuts a text into literals and `Placeholder`s. What becomes of one depends on where the text stands: see
`draft`.
"""

import re
from typing import Final, Literal

import msgspec

from interlock.interop.protocol.model import Style

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
    for found in _FORMS[style].finditer(text):
        parts += [text[end : found.start()], _ref(found, style)]
        end = found.end()
    parts.append(text[end:])
    return [each for each in parts if each != ""]


def _ref(found: re.Match[str], style: Style) -> Part:
    groups = found.groupdict()
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
