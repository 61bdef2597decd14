"""A driver and its contracts as other hosts read them: without our extensions, what is lost being said (AIP-export-3).

In and out goes the frontmatter as data. What has an equal without us is written as that; everything else is left out
and named, by its dotted key. Nothing is made laxer: an approval that only this node understands becomes one that asks.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.binding.effects import GATE, UNANNOTATED
from interlock.drivers.protocol.kinds import SERVERS

OWN: Final = "interlock"

_RISK_IRREVERSIBLE: Final = 3


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    data: dict[str, Any]
    lost: tuple[str, ...]  # dotted keys: server.cwd, implements[0].metadata.interlock.result_parse
    changed: tuple[str, ...]  # dotted keys that say the same in other words


def driver_upstream(data: Mapping[str, Any]) -> Upstream:
    """`data`: the frontmatter of a DRIVER.md that this node reads, with its server block inline."""
    lost: list[str] = []
    changed: list[str] = []
    found = {key: value for key, value in data.items() if key != "sandbox"}
    found["server"] = SERVERS[data["server"]["kind"]].publish(data["server"], lost, changed)
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
