"""What does trust in a driver cover besides its files?"""

from pathlib import Path
from typing import Any

import pytest
from driver_workspace import Workspace, driver, secret


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.mark.req("AIP-security-13")
@pytest.mark.parametrize(
    "later",
    [
        secret("token", backend="file:///etc/hostname"),
        secret("token", access={"bind": [{"tool": "files-mcp"}, {"tool": "other"}]}),
        secret("token", access={"bind": [{"userId": "ada"}]}),
        None,
    ],
    ids=["backend", "access", "other access", "gone"],
)
def test_what_a_secret_of_the_workspace_is_belongs_to_what_is_trusted(workspace: Workspace, later: Any) -> None:
    env = {"TOKEN": "${secrets.TOKEN}"}
    workspace.driver(driver(server={"kind": "binary", "path": "/usr/bin/true", "env": env}))
    bare = workspace.one()
    granted = secret("token", access={"bind": [{"tool": "files-mcp"}]})
    workspace.write(".secrets/SECRETS.md", {"secrets": [granted]})
    found = workspace.one()
    assert found.digest != bare.digest
    assert found.covered["secrets://TOKEN"] == (
        '{"slug":"token","backend":null,"access":{"reveal":[],"bind":[{"kind":"tool","value":"files-mcp"}],"rotate":[]}}'
    )
    workspace.trust()
    assert workspace.one().trusted
    unrelated = secret("unrelated", backend="file:///etc/hostname")
    workspace.write(".secrets/SECRETS.md", {"secrets": [{**granted, "description": "In other words."}, unrelated]})
    assert workspace.one().trusted
    merged = [] if later is None else [{**granted, **later}]
    workspace.write(".secrets/SECRETS.md", {"secrets": [*merged, unrelated]})
    assert not workspace.one().trusted
    workspace.write(".secrets/SECRETS.md", {"secrets": [granted]})
    assert workspace.one().trusted


@pytest.mark.req("AIP-security-13")
def test_another_slug_for_a_name_asks_again(workspace: Workspace) -> None:
    env = {"TOKEN": "${secrets.TOKEN}"}
    workspace.driver(driver(server={"kind": "binary", "path": "/usr/bin/true", "env": env}))
    entries = [secret("token", access={"bind": [{"tool": "files-mcp"}]})]
    workspace.write(".secrets/SECRETS.md", {"secrets": entries})
    workspace.trust()
    nearer = secret("files-mcp/token", access={"bind": [{"tool": "files-mcp"}]})
    workspace.write(".secrets/more/SECRETS.md", {"secrets": [nearer]})
    assert workspace.one().secrets["TOKEN"].slug == "files-mcp/token"
    assert not workspace.one().trusted


@pytest.mark.req("AIP-security-13", "AIP-19.file-3")
def test_a_driver_accepted_later_does_not_redirect_the_secrets_of_an_earlier_one(workspace: Workspace) -> None:
    env = {"TOKEN": "${secrets.TOKEN}"}
    workspace.driver(driver(server={"kind": "binary", "path": "/usr/bin/true", "env": env}))
    workspace.trust()
    other = workspace.driver(driver("other-mcp"))
    entry = secret("token", backend="file:///etc/hostname", access={"bind": [{"tool": "files-mcp"}]})
    workspace.write(other / "SECRETS.md", {"secrets": [entry]})
    assert workspace.one("files-mcp@1").trusted
    workspace.trust(only="other-mcp@1")
    assert workspace.one("other-mcp@1").trusted
    assert workspace.one("files-mcp@1").secrets["TOKEN"].backend == "file:///etc/hostname"
    assert not workspace.one("files-mcp@1").trusted
