"""Is what makes a driver another one refused until its major version says so?"""

from pathlib import Path
from typing import Any

import pytest
from tests.drivers.driver_workspace import Workspace, codes, driver

from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.identity import manifest_of
from interlock.drivers.workspace.declaration import Remembered

REMOTE = {"kind": "remote", "url": "https://a.example/mcp"}


@pytest.mark.parametrize(
    ("before", "now", "field"),
    [
        pytest.param(
            {"protocol_version": "2025-03"},
            {"protocol_version": "2025-06-18"},
            "/protocol_version",
            marks=pytest.mark.req("AIP-identity-1"),
        ),
        pytest.param(
            {"server": {"kind": "npm", "package": "@x/y@1.9.0"}},
            {"server": {"kind": "npm", "package": "@x/y@2.0.0"}},
            "/server/package",
            marks=pytest.mark.req("AIP-identity-2"),
        ),
        pytest.param(
            {"server": REMOTE, "transport": "sse"},
            {"server": REMOTE, "transport": "http"},
            "/transport",
            marks=pytest.mark.req("AIP-identity-3"),
        ),
    ],
    ids=["protocol version", "source", "transport"],
)
def test_a_change_of_identity_needs_a_major_version(tmp_path: Path, before: Any, now: Any, field: str) -> None:
    workspace = Workspace(tmp_path)
    workspace.driver(driver(**before))
    first = workspace.one().driver
    assert first is not None
    workspace.remembered = Remembered(manifests={first.key: manifest_of(first)})
    workspace.driver(driver(**now, version="1.1.0"))
    refused = workspace.one()
    assert refused.state is DriverState.REJECTED
    assert [(each.code, each.field) for each in refused.problems if each.severity == "error"] == [
        ("major_bump_required", field)
    ]
    workspace.driver(driver(**now, version="2.0.0"))
    distinct = workspace.one()
    assert (distinct.state, distinct.key) == (None, "files-mcp@2")
    workspace.driver(driver(**before, version="1.1.0"))
    assert workspace.one().state is None


@pytest.mark.req("AIP-identity-1")
def test_a_protocol_version_written_out_is_the_same_version(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.driver(driver(protocol_version="2025-03"))
    first = workspace.one().driver
    assert first is not None
    workspace.remembered = Remembered(manifests={first.key: manifest_of(first)})
    workspace.driver(driver(version="1.1.0", protocol_version="2025-03-26"))
    assert workspace.one().state is None


@pytest.mark.req("AIP-identity-4")
def test_the_registered_manifest_is_compared_with_the_present_file(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.driver(driver())
    first = workspace.one().driver
    assert first is not None
    workspace.remembered = Remembered(manifests={first.key: manifest_of(first)})
    workspace.driver(driver(version="1.1.0", protocol_version="2025-06-18"))
    refused = workspace.one()
    assert refused.state is DriverState.REJECTED
    assert [(each.code, each.field) for each in refused.problems] == [("major_bump_required", "/protocol_version")]
    workspace.driver(driver(version="2.0.0", protocol_version="2025-06-18"))
    assert workspace.one().problems == ()
    lenient = Workspace(tmp_path, dev=True)
    lenient.remembered = workspace.remembered
    lenient.driver(driver(version="1.1.0", protocol_version="2025-06-18"))
    assert (lenient.one().state, codes(lenient.one().problems, "warning")) == (None, ["major_bump_required"])
