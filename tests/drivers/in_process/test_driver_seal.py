"""Is a folder that was touched since it was trusted noticed, also when everything was put back?"""

from pathlib import Path

import pytest
from tests.drivers.driver_workspace import Workspace, driver

from interlock.drivers.workspace.folder import TamperCheck


def sealed(workspace: Workspace) -> TamperCheck:
    one = workspace.one()
    return TamperCheck(one.root, one.folder, one.files)


@pytest.mark.req("AIP-security-13")
async def test_trusted_files_pass_and_changed_files_do_not(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder = workspace.driver(driver())
    seal = sealed(workspace)
    mark = await seal.mark()
    assert mark is not None
    assert await seal.is_same(mark)
    before = (folder / "DRIVER.md").read_bytes()
    (folder / "DRIVER.md").write_bytes(before + b"more")
    assert await seal.mark() is None
    assert not await seal.is_same(mark)
    (folder / "DRIVER.md").write_bytes(before)
    again = await seal.mark()
    assert again is not None
    assert again != mark
    assert not await seal.is_same(mark)
    (folder / "added").write_bytes(b"")
    assert await seal.mark() is None
    (folder / "added").unlink()
    (folder / "tools" / "fs-read" / "TOOL.md").unlink()
    assert await seal.mark() is None
