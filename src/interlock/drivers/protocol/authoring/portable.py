"""A driver and its contracts as other hosts read them: without our extensions, what is lost being said (AIP-export-3).

In and out goes the frontmatter as data. What has an equal without us is written as that; everything else is left out
and named, by its dotted key. Nothing is made laxer: an approval that only this node understands becomes one that asks.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.binding.effects import GATE, UNANNOTATED
from interlock.drivers.protocol.files.schemas.mcp import PUBLISHED_SERVER_KEYS

OWN: Final = "interlock"
UVX: Final = "uvx"

_RISK_IRREVERSIBLE: Final = 3
_PIN = re.compile(r"(?P<name>.+?)==(?P<version>[^=]+)")


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    data: dict[str, Any]
    lost: tuple[str, ...]  # dotted keys: server.cwd, implements[0].metadata.interlock.result_parse
    changed: tuple[str, ...]  # dotted keys that say the same in other words


def driver_upstream(data: Mapping[str, Any]) -> Upstream:
    """`data`: the frontmatter of a DRIVER.md that this node reads, with its server block inline."""
    lost: list[str] = []
    changed: list[str] = []
    found = {key: value for key, value in data.items() if key != "sandbox"}
    found["server"] = _server(data["server"], lost, changed)
    if "sandbox" in data:
        lost.append("sandbox")
    found["implements"] = [
        _without_own(entry, f"implements[{index}].", lost) for index, entry in enumerate(data["implements"])
    ]
    if "install" in data:
        found["install"] = _installs(data["install"], lost)
    return Upstream(data=_without_own(found, "", lost), lost=tuple(lost), changed=tuple(changed))


def contract_upstream(data: Mapping[str, Any]) -> Upstream:
    """`data`: the frontmatter of a TOOL.md."""
    lost: list[str] = []
    changed: list[str] = []
    found = _without_own(data, "", lost)
    approval = data.get("approval")
    if approval in (GATE, UNANNOTATED):
        irreversible = approval == UNANNOTATED or data.get("risk_level", 0) >= _RISK_IRREVERSIBLE
        found["approval"] = "always" if irreversible else "on-mutate"
        changed.append("approval")
    return Upstream(data=found, lost=tuple(lost), changed=tuple(changed))


def _server(block: Mapping[str, Any], lost: list[str], changed: list[str]) -> dict[str, Any]:
    if block["kind"] == "pypi":
        return _pypi(block, lost, changed)
    found = {key: value for key, value in block.items() if key in PUBLISHED_SERVER_KEYS}
    if block["kind"] == "docker":
        found.pop("path", None)  # in a docker block this is the path of a URL, and ours
    lost += [f"server.{key}" for key in block if key not in found and key != "version"]
    version = block.get("version")
    if block["kind"] == "npm" and isinstance(version, str):
        if "@" not in found["package"][1:]:
            found["package"] = f"{found['package']}@{version}"
        changed.append("server.version")
    elif version is not None:
        lost.append("server.version")
    return found


def _pypi(block: Mapping[str, Any], lost: list[str], changed: list[str]) -> dict[str, Any]:
    """There is no Python shape: the program is uvx, and the package one of its arguments."""
    package = str(block["package"])
    pinned = _PIN.fullmatch(package)
    name, version = (pinned["name"], pinned["version"]) if pinned is not None else (package, block.get("version"))
    entry = str(block.get("entry", name.partition("[")[0]))
    program = ["python", *entry.split(" ", 1)] if entry.startswith("-m ") else [entry]
    wanted = name if version is None else f"{name}=={version}"
    changed.append("server.kind")
    lost += [f"server.{key}" for key in ("cwd", "runner") if key in block]
    found: dict[str, Any] = {"kind": "binary", "path": UVX}
    found["args"] = ["--from", wanted, *program, *block.get("args", ())]
    return found | ({"env": block["env"]} if "env" in block else {})


def _installs(entries: list[Any], lost: list[str]) -> list[Any]:
    lost += [f"install[{index}]" for index, each in enumerate(entries) if each.get("method") == "docker"]
    return [each for each in entries if each.get("method") != "docker"]


def _without_own(data: Mapping[str, Any], pointer: str, lost: list[str]) -> dict[str, Any]:
    metadata = data.get("metadata")
    if not isinstance(metadata, Mapping) or OWN not in metadata:
        return dict(data)
    lost += [f"{pointer}metadata.{OWN}.{key}" for key in metadata[OWN]]
    rest = {key: value for key, value in metadata.items() if key != OWN}
    return {key: rest if key == "metadata" else value for key, value in data.items() if key != "metadata" or rest}
