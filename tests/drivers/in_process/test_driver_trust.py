"""What does trust in a driver cover besides its files?"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.drivers.driver_workspace import Workspace, codes, driver, secret

from interlock.drivers.driver_state import DriverState
from interlock.drivers.registry.operations import declared_facts


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
def test_trust_covers_the_definition_of_a_workspace_secret(workspace: Workspace, later: Any) -> None:
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
def test_a_driver_accepted_later_does_not_redirect_the_secrets_of_an_earlier_driver(workspace: Workspace) -> None:
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


@pytest.mark.req("AIP-security-13", "AIP-security-5")
@pytest.mark.parametrize(
    "opening",
    [
        {"sandbox": {"fs": {"write": ["../../out"]}}},
        {"sandbox": {"fs": {"read": ["../../out/deep"]}}},
        {"sandbox": {"fs": {"write": ["./way"]}}},
        {"auth": {"state": {"paths": ["../../out"]}}},
        {"server": {"kind": "docker", "image": "a/b:1", "volumes": ["OUT:/data"]}},
    ],
    ids=["write", "read", "in its folder", "state", "volume"],
)
def test_a_link_out_of_where_a_path_was_declared_is_refused(workspace: Workspace, opening: Any, tmp_path: Path) -> None:
    keys = tmp_path / "home" / ".ssh"
    (keys / "deep").mkdir(parents=True)
    out = workspace.path / "out"
    if "server" in opening:
        opening["server"]["volumes"] = [f"{out}:/data"]
    (out / "deep").mkdir(parents=True)
    folder = workspace.driver(driver(**opening))
    (folder / "way").mkdir()
    workspace.trust()
    assert workspace.one().trusted
    assert "path_escape" not in codes(workspace.one().problems)
    path = folder / "way" if "way" in str(opening) else out
    shutil.rmtree(path)
    path.symlink_to(keys)
    found = workspace.one()
    assert found.state is DriverState.REJECTED
    assert "out of the folder" in str(found.reason) or str(keys) in str(found.reason)


@pytest.mark.req("AIP-security-13", "AIP-security-5")
def test_trust_covers_the_target_of_a_declared_path(workspace: Workspace) -> None:
    out, one, other = (workspace.path / name for name in ("out", "one", "other"))
    one.mkdir()
    other.mkdir()
    workspace.driver(driver(sandbox={"fs": {"write": ["../../out"]}}))
    bare = workspace.one()
    out.symlink_to("one")
    found = workspace.one()
    assert found.digest != bare.digest
    assert found.covered[f"links://{out}"] == str(one)
    assert found.real_paths == {out: one}
    workspace.trust()
    assert workspace.one().trusted
    out.unlink()
    out.symlink_to("other")
    assert not workspace.one().trusted
    out.unlink()
    out.mkdir()
    assert not workspace.one().trusted
    out.rmdir()
    out.symlink_to("one")
    assert workspace.one().trusted


@pytest.mark.req("AIP-security-13")
def test_the_real_paths_are_what_is_shown(workspace: Workspace) -> None:
    out, one = workspace.path / "out", workspace.path / "one"
    one.mkdir()
    out.symlink_to("one")
    workspace.driver(driver(sandbox={"fs": {"write": ["../../out"], "deny": ["~/.ssh"]}}))
    found = workspace.one()
    assert found.driver is not None
    shown = declared_facts(found, found.driver)["sandbox"]
    assert shown["fs"] == {"write": [str(one)], "deny": [str(Path("~/.ssh").expanduser())]}
    server = {"kind": "binary", "path": "/usr/bin/true", "args": [str(out), "/none"]}
    workspace.driver(driver(server=server, auth={"state": {"paths": ["~/.cache/login"]}}))
    found = workspace.one()
    assert found.driver is not None
    shown = declared_facts(found, found.driver)["sandbox"]
    assert shown == {"fs": {"write": [str(Path("~/.cache/login").expanduser()), str(one)]}}
