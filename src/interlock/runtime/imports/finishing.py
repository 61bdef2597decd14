"""A draft and the list of its server's tools become a driver with contracts; the draft is gone then (AIP-import-9).

`finish` is the same step for an import that asked the server and for `interlock add ID` later. What the source said
about tools is kept: tools it left out are not bound, and a tool it asked about is asked about here before each call.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from interlock.protocol.drivers.drafting import DraftedContract, DraftedDriver, draft_contracts, draft_driver
from interlock.protocol.drivers.driver_file import DRIVER_FILE
from interlock.protocol.drivers.frontmatter import read_frontmatter
from interlock.protocol.drivers.tool_file import TOOL_FILE
from interlock.protocol.drivers.writing import frontmatter_text
from interlock.runtime.drivers.looking import DRAFT_FILE
from interlock.runtime.drivers.looking import TOOLS as CONTRACTS
from interlock.runtime.imports.folders import Folder, read_folder, write_files

ASKED: Final = "always"


class NotFinished(Exception):
    """No driver can be made of the draft; the text says why."""


def finish(workspace: Path, path: Path, tools: Sequence[Mapping[str, Any]]) -> tuple[Path, ...]:
    """`tools`: decoded items of tools/list. Gives what was written. Contracts that are there already stay."""
    folder = read_folder(path)
    if folder.file != DRAFT_FILE or not folder.data:
        raise NotFinished(f"{path.name} is no draft")
    hints = folder.record.hints if folder.record is not None else {}
    wanted = [tool for tool in tools if _wanted(str(tool.get("name")), hints)]
    contracts = draft_contracts(wanted, path.name)
    if not contracts.drafted:
        first = f": {contracts.problems[0].message}" if contracts.problems else ""
        raise NotFinished(f"the server has no tool that can be bound{first}")
    driver = _driver(folder, contracts.drafted)
    files = [
        (workspace / CONTRACTS / each.contract.id / TOOL_FILE, _contract_text(each, hints))
        for each in contracts.drafted
        if not (workspace / CONTRACTS / each.contract.id / TOOL_FILE).exists()
    ]
    files.append((path / DRIVER_FILE, driver.text))
    write_files(workspace, files)
    (path / DRAFT_FILE).unlink()
    return tuple(path for path, _ in files)


def _wanted(name: str, hints: Mapping[str, Any]) -> bool:
    only = hints.get("only_tools")
    return (not only or name in only) and name not in hints.get("without_tools", ())


def _driver(folder: Folder, contracts: Sequence[DraftedContract]) -> DraftedDriver:
    data = {**folder.data, "implements": [each.binding() for each in contracts]}
    drafted = draft_driver(data, f"# {folder.data.get('name')}")
    if isinstance(drafted, DraftedDriver):
        return drafted
    first = drafted[0]
    raise NotFinished(f"{first.field or DRIVER_FILE}: {first.message}; {first.hint}")


def _contract_text(contract: DraftedContract, hints: Mapping[str, Any]) -> str:
    """Asked about before each call, where the source did."""
    if not hints.get("asks") and contract.tool_name not in hints.get("asks_tools", ()):
        return contract.text
    front = read_frontmatter(contract.text.encode(), TOOL_FILE).value
    return contract.text if front is None else frontmatter_text({**front.data, "approval": ASKED})
