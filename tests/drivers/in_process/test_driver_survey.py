"""Which drivers does a workspace declare, and what is said of each that cannot be used?"""

import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.drivers.driver_workspace import MACHINE, Workspace, binding, codes, contract, driver, remote, secret, text

from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.files.driver import runner_limits
from interlock.drivers.workspace.declaration import Remembered
from interlock.drivers.workspace.folder import DriverFolder, read_folder
from interlock.drivers.workspace.scan import FoundFolder, scan_workspace
from interlock.drivers.workspace.survey import Surveyor


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.mark.req("AIP-file-1")
def test_a_folder_with_driver_md_is_one_driver_and_nothing_else_is(workspace: Workspace) -> None:
    assert workspace.declared().drivers == ()
    (workspace.path / ".drivers").mkdir()
    assert workspace.declared() == Workspace(workspace.path.parent).declared()
    workspace.driver(driver("filesystem-mcp"))
    workspace.write(".drivers/empty-mcp/README.md", b"nothing here")
    workspace.write(".drivers/older-mcp/MCP.md", driver("older-mcp"))
    workspace.write(".drivers/lower-mcp/driver.md", driver("lower-mcp"))
    workspace.write(".drivers/DRIVER.md", driver("loose-mcp"))
    workspace.write(".drivers/draft-mcp/DRIVER.draft.md", driver("draft-mcp", implements=[]))
    declaration = workspace.declared()
    assert [one.key for one in declaration.drivers] == ["filesystem-mcp@1"]
    assert declaration.problems == ()
    only = declaration.drivers[0]
    assert (only.state, only.problems, only.trusted) == (None, (), False)
    assert only.contracts[0].id == "fs-read"


@pytest.mark.req("AIP-file-1")
def test_a_driver_beside_a_contract_below_tools_is_found_at_any_depth(workspace: Workspace) -> None:
    workspace.write(".tools/a/b/c/DRIVER.md", driver("deep-mcp", implements=[binding("fs-read")]))
    workspace.write(".tools/a/b/c/TOOL.md", contract())
    workspace.write(".tools/alone/DRIVER.md", driver("alone-mcp"))
    only = workspace.one()
    assert (only.key, only.folder) == ("deep-mcp@1", workspace.path / ".tools/a/b/c")
    assert only.contracts[0].id == "fs-read"


@pytest.mark.req("AIP-file-1")
def test_the_earlier_root_wins_and_names_the_root_that_it_hides(tmp_path: Path) -> None:
    further = tmp_path / "further"
    workspace = Workspace(tmp_path, paths=(further,))
    mine = workspace.driver(driver())
    own = workspace.driver(driver(description="Of the person."), root=workspace.own)
    last = workspace.driver(driver(description="Of the company."), root=further)
    only = workspace.one("files-mcp@1")
    assert only.folder == mine
    (warning,) = only.problems
    assert (warning.code, warning.severity) == ("driver_shadowed", "warning")
    assert str(own) in warning.message
    assert str(last) in warning.message
    (mine / "DRIVER.md").unlink()
    assert workspace.one("files-mcp@1").folder == own


@pytest.mark.req("AIP-file-1")
def test_a_duplicate_id_in_a_root_refuses_both_in_any_order(workspace: Workspace) -> None:
    first = workspace.driver(driver(), folder="files-mcp")
    second = workspace.driver(driver(), folder="a-copy")
    found = workspace.declared().drivers
    assert len(found) == 2
    for one in found:
        assert one.state is DriverState.REJECTED
        (problem,) = [each for each in one.problems if each.code == "duplicate_id"]
        assert str(first) in problem.message
        assert str(second) in problem.message


@pytest.mark.req("AIP-file-1")
def test_two_drivers_with_one_id_in_drivers_and_below_tools_are_both_rejected(workspace: Workspace) -> None:
    workspace.driver(driver())
    workspace.write(".tools/fs-read/DRIVER.md", driver(implements=[binding("fs-read")]))
    workspace.write(".tools/fs-read/TOOL.md", contract())
    assert [one.state for one in workspace.declared().drivers] == [DriverState.REJECTED] * 2


@pytest.mark.req("AIP-file-2")
def test_a_folder_of_another_name_is_warned_of(workspace: Workspace) -> None:
    workspace.driver(driver("filesystem-mcp"), folder="fs")
    (warning,) = workspace.one().problems
    assert (warning.code, warning.severity) == ("folder_name", "warning")
    assert "fs" in warning.message
    assert "filesystem-mcp" in warning.message
    assert workspace.one().state is None


@pytest.mark.req("AIP-30.identity-1")
def test_two_majors_of_one_id_are_two_drivers(workspace: Workspace) -> None:
    workspace.driver(driver("filesystem-mcp", version="1.2.0"), folder="one")
    workspace.driver(driver("filesystem-mcp", version="2.0.0"), folder="two")
    found = workspace.declared().drivers
    assert [one.key for one in found] == ["filesystem-mcp@1", "filesystem-mcp@2"]
    assert [one.state for one in found] == [None, None]


@pytest.mark.req("AIP-file-4")
def test_a_driver_ts_is_reported_and_not_run(workspace: Workspace) -> None:
    folder = workspace.driver(driver())
    (folder / "driver.ts").write_text("throw new Error('run')")
    only = workspace.one()
    assert only.state is None
    (warning,) = only.problems
    assert (warning.code, "driver.ts" in warning.message) == ("entry_not_run", True)


@pytest.mark.req("AIP-file-5")
def test_a_server_json_can_replace_the_block_and_yields_to_it(workspace: Workspace) -> None:
    folder = workspace.driver(driver(server=None))
    assert codes(workspace.one().problems) == ["schema_invalid"]
    block = {"kind": "binary", "path": "/usr/bin/env"}
    (folder / "server.json").write_bytes(msgspec.json.encode(block))
    inline = workspace.one().driver
    assert inline is not None
    assert msgspec.to_builtins(inline.server)["path"] == "/usr/bin/env"
    workspace.driver(driver())
    both = workspace.one()
    assert codes(both.problems) == ["server_json_ignored"]
    assert both.driver is not None
    assert msgspec.to_builtins(both.driver.server)["path"] == "/usr/bin/true"
    workspace.driver(driver(server=None))
    (folder / "server.json").write_bytes(b'{"neither": true}')
    assert codes(workspace.one().problems, "error")[0] == "server_json_invalid"


@pytest.mark.req("AIP-file-6")
def test_the_inventory_is_looked_for_in_the_drivers_folder(workspace: Workspace) -> None:
    folder = workspace.driver(driver())
    assert workspace.one().state is None
    workspace.driver(driver(auth={"ref": "./SECRETS.md", "state": {"env": ["TOKEN"]}}))
    missing = workspace.one()
    assert missing.state is DriverState.REJECTED
    (problem,) = [each for each in missing.problems if each.severity == "error"]
    assert (problem.code, problem.field) == ("secrets_ref_missing", "/auth/ref")
    assert str(folder / "SECRETS.md") in problem.message
    workspace.write(folder / "SECRETS.md", {"secrets": [secret("token")]})
    found = workspace.one()
    assert (found.state, [each.code for each in found.problems]) == (None, ["state_env_unused"])
    assert found.secrets["TOKEN"].slug == "token"


def test_a_secret_that_no_inventory_describes_is_warned_of(workspace: Workspace) -> None:
    workspace.driver(driver(server={"kind": "binary", "path": "/usr/bin/env", "env": {"A": "${secrets.API_KEY}"}}))
    only = workspace.one()
    assert only.state is None
    (problem,) = only.problems
    assert (problem.code, problem.severity) == ("secret_undeclared", "warning")
    assert "`- {slug: api-key, name: API_KEY, description: What it is for}`" in problem.hint
    assert "`auth: {ref: ./SECRETS.md}`" in problem.hint


def test_a_secret_that_is_described_and_granted_to_nobody_is_warned_of(workspace: Workspace) -> None:
    data = driver(server={"kind": "binary", "path": "/usr/bin/env", "env": {"A": "${secrets.API_KEY}"}})
    folder = workspace.driver(data)
    workspace.write(folder / "SECRETS.md", {"secrets": [secret("api-key")]})
    only = workspace.one()
    assert (only.state, codes(only.problems)) == (None, ["access_denied"])
    assert "`auth: {ref: ./SECRETS.md}`" in only.problems[0].hint
    for bind in ([{"userId": "ann"}, {"tool": "files-mcp"}], [{"tool": "files-mcp"}]):
        workspace.write(folder / "SECRETS.md", {"secrets": [secret("api-key") | {"access": {"bind": bind}}]})
        assert workspace.one().problems == ()
    workspace.write(folder / "SECRETS.md", {"secrets": [secret("api-key") | {"access": {"bind": [{"tool": "other"}]}}]})
    assert "auth" not in workspace.one().problems[0].hint
    workspace.write(folder / "SECRETS.md", {"secrets": [secret("api-key")]})
    workspace.driver(data | {"auth": {"ref": "./SECRETS.md"}})
    assert workspace.one().problems == ()


@pytest.mark.req("AIP-30.front-2")
def test_another_kind_of_driver_is_listed_and_disturbs_nothing(workspace: Workspace) -> None:
    workspace.driver(driver())
    for kind in ("cli", "http", "sdk"):
        data = driver(
            f"some-{kind}", kind=kind, server=None, transport=None, implements=[{"tool": "x", "version": "1"}]
        )
        workspace.driver(data)
        assert workspace.one(f"some-{kind}").state is DriverState.KIND_UNSUPPORTED
    workspace.driver(driver("odd-mcp", kind="magic"))
    assert codes(workspace.one("odd-mcp").problems, "error") == ["schema_invalid"]
    assert workspace.one("files-mcp@1").state is None


@pytest.mark.req("AIP-30.front-5")
@pytest.mark.parametrize(
    ("requires", "fits"),
    [
        ({"os": ["windows"]}, False),
        ({"os": ["windows", "linux"]}, True),
        ({"arch": ["arm64"]}, False),
        ({"arch": ["x64"]}, True),
        ({"min_disk_mb": 10_001}, False),
        ({"min_memory_mb": 8_001}, False),
        ({"min_disk_mb": 10_000, "min_memory_mb": 8_000, "os": ["linux"], "arch": ["x64"]}, True),
    ],
)
def test_a_machine_that_lacks_something_makes_the_driver_unavailable(
    workspace: Workspace, requires: dict[str, Any], fits: bool
) -> None:
    workspace.driver(driver(requires=requires))
    only = workspace.one()
    assert only.state is (None if fits else DriverState.UNAVAILABLE)
    assert codes(only.problems) == ([] if fits else ["requirement_unmet"])


def test_unknown_facts_about_a_machine_meet_no_requirement(workspace: Workspace) -> None:
    workspace.driver(driver(requires={"os": ["linux"], "min_memory_mb": 1}))
    nothing = msgspec.structs.replace(MACHINE, os=None, memory_mb=None)
    workspace.surveyor = Surveyor(workspace.plan, nothing)
    assert codes(workspace.one().problems) == ["requirement_unmet"] * 2


@pytest.mark.req("AIP-30.implements-2")
def test_a_contract_is_looked_for_in_the_folder_then_the_workspace_then_tools(workspace: Workspace) -> None:
    folder = workspace.driver(driver())
    workspace.write("tools/fs-read/TOOL.md", contract(description="Of the workspace."))
    workspace.write(".tools/fs-read/TOOL.md", contract(description="Of the tools."))
    assert workspace.one().contracts[0].description == "Reads one file."
    (folder / "tools/fs-read/TOOL.md").unlink()
    assert workspace.one().contracts[0].description == "Of the workspace."
    (workspace.path / "tools/fs-read/TOOL.md").unlink()
    assert workspace.one().contracts[0].description == "Of the tools."
    (workspace.path / ".tools/fs-read/TOOL.md").unlink()
    refused = workspace.one()
    assert refused.state is DriverState.REJECTED
    (problem,) = refused.problems
    assert (problem.code, problem.field) == ("tool_unavailable", "/implements/0/tool")
    for place in (folder / "tools", workspace.path / "tools", workspace.path / ".tools"):
        assert str(place / "fs-read" / "TOOL.md") in problem.message


@pytest.mark.req("AIP-30.implements-2")
def test_a_contract_is_found_by_its_id(workspace: Workspace) -> None:
    workspace.driver(driver(implements=[binding("fs.stat")]))
    (problem,) = workspace.one().problems
    assert problem.code == "tool_unavailable"
    assert str(workspace.path / ".tools") in problem.message
    workspace.write(".tools/any/where/TOOL.md", contract("fs.stat"))
    assert workspace.one().contracts[0].id == "fs.stat"
    other = workspace.driver(driver("other-mcp"))
    workspace.write(other / "tools/x/TOOL.md", contract("only-there"))
    workspace.driver(driver(implements=[binding("only-there")]))
    borrowed = workspace.one("files-mcp@1")
    assert borrowed.contracts[0].id == "only-there"
    assert str(other / "tools/x/TOOL.md") in borrowed.files


@pytest.mark.req("AIP-30.implements-2")
@pytest.mark.parametrize("path", ["../../../outside/TOOL.md", "../../../../../../etc/TOOL.md", "./tools/link/TOOL.md"])
def test_a_contract_outside_of_the_workspace_is_not_read(workspace: Workspace, tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    workspace.write(outside / "TOOL.md", contract())
    workspace.driver(driver(implements=[binding(path)]))
    (workspace.path / "tools").mkdir()
    (workspace.path / "tools" / "link").symlink_to(outside)
    refused = workspace.one()
    assert codes(refused.problems) == ["path_escape"]
    assert refused.contracts == {}


def test_dots_that_stay_in_the_workspace_are_followed(workspace: Workspace) -> None:
    workspace.driver(driver(implements=[binding("../../contracts/read/TOOL.md")]))
    workspace.write("contracts/read/TOOL.md", contract())
    only = workspace.one()
    assert only.contracts[0].id == "fs-read"
    assert str(workspace.path / "contracts/read/TOOL.md") in only.files


@pytest.mark.req("AIP-30.implements-2")
def test_one_contract_bound_by_path_and_by_id_is_bound_twice(workspace: Workspace) -> None:
    workspace.driver(driver(implements=[binding(), binding("fs-read")]))
    (problem,) = workspace.one().problems
    assert (problem.code, problem.field) == ("duplicate_binding", "/implements/1/tool")


@pytest.mark.req("AIP-30.implements-3")
def test_a_contract_of_another_version_is_not_bound(workspace: Workspace) -> None:
    folder = workspace.driver(driver())
    workspace.write(folder / "tools/fs-read/TOOL.md", contract(version="2.0.0"))
    (problem,) = workspace.one().problems
    assert (problem.code, problem.field) == ("tool_unavailable", "/implements/0/version")
    assert "2.0.0" in problem.message
    workspace.write(folder / "tools/fs-read/TOOL.md", contract(version="1.4.0"))
    assert workspace.one().problems == ()


@pytest.mark.parametrize(
    ("changed", "code", "field"),
    [
        ({"schema_narrowing": {"drop_inputs": ["path"]}}, "narrowing_invalid", "schema_narrowing/drop_inputs/0"),
        ({"schema_narrowing": {"drop_inputs": ["nothing"]}}, "narrowing_invalid", "schema_narrowing/drop_inputs/0"),
        ({"timeout_override_ms": 60_000}, "timeout_widened", "timeout_override_ms"),
        ({"schema_narrowing": {"drop_inputs": ["head"]}, "timeout_override_ms": 30_000}, None, ""),
    ],
)
def test_a_binding_keeps_to_its_contract(
    workspace: Workspace, changed: dict[str, Any], code: str | None, field: str
) -> None:
    workspace.driver(driver(implements=[binding(**changed)]))
    found = [(each.code, each.field) for each in workspace.one().problems]
    assert found == ([] if code is None else [(code, f"/implements/0/{field}")])


def test_a_drivers_own_timeout_gives_way_to_the_bindings(workspace: Workspace) -> None:
    workspace.driver(driver(timeout_override_ms=60_000))
    assert codes(workspace.one().problems) == ["timeout_widened"]
    workspace.driver(driver(timeout_override_ms=60_000, implements=[binding(timeout_override_ms=500)]))
    assert workspace.one().problems == ()


@pytest.mark.req("AIP-30.implements-1")
def test_an_unknown_key_of_an_entry_is_refused_with_its_place(workspace: Workspace) -> None:
    workspace.driver(driver(implements=[binding(priority=1)]))
    (problem,) = workspace.one().problems
    assert (problem.code, problem.field) == ("schema_invalid", "/implements/0/priority")


@pytest.mark.req("AIP-security-10")
def test_plain_http_is_for_this_machine_and_for_hosts_an_operator_names(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, insecure_hosts=("MCP.lan", "[fd00::1]"))
    for url in ("http://127.0.0.1:3911/mcp", "http://localhost", "http://[::1]/x", "https://mcp.example.com"):
        workspace.driver(remote(url))
        assert codes(workspace.one().problems) == ["egress_implied"]
    for url in ("http://mcp.lan/mcp", "http://[fd00::1]:80/mcp"):
        workspace.driver(remote(url))
        only = workspace.one()
        assert only.state is None
        assert codes(only.problems, "warning") == ["insecure_url"]
    workspace.driver(remote("http://mcp.example.com"))
    refused = workspace.one()
    assert refused.state is DriverState.REJECTED
    assert codes(refused.problems, "error") == ["insecure_url"]


@pytest.mark.req("AIP-security-4")
def test_the_address_of_a_remote_driver_keeps_to_its_own_list(workspace: Workspace) -> None:
    workspace.driver(remote("https://mcp.example.com", network={"egress": ["api.example.com"]}))
    assert codes(workspace.one().problems) == ["egress_denied"]
    workspace.driver(remote("https://mcp.example.com", network={"egress": ["*.example.com"]}))
    assert workspace.one().problems == ()
    workspace.driver(remote("https://mcp.example.com"))
    only = workspace.one()
    assert (codes(only.problems, "note"), only.state) == (["egress_implied"], None)


@pytest.mark.req("AIP-security-12")
@pytest.mark.parametrize(
    ("url", "is_near"),
    [
        ("https://mcp.example.com", False),
        ("https://8.8.8.8/mcp", False),
        ("https://localhost.example.com", False),
        ("http://127.0.0.1:1/mcp", True),
        ("https://192.168.1.7/mcp", True),
        ("https://nas.local/mcp", True),
        ("https://nas/mcp", True),
    ],
)
def test_a_server_on_a_public_host_is_not_self_hosted(workspace: Workspace, url: str, is_near: bool) -> None:
    workspace.driver(remote(url, policy_tags=["pii-safe"]))
    assert workspace.one().state is None
    workspace.driver(remote(url, policy_tags=["pii-safe", "self-hosted"]))
    only = workspace.one()
    assert only.state is (None if is_near else DriverState.REJECTED)
    errors = [(each.code, each.field) for each in only.problems if each.severity == "error"]
    assert errors == ([] if is_near else [("policy_tag_unverified", "/policy_tags/1")])
    workspace.driver(driver(policy_tags=["self-hosted"]))  # a program of this machine
    assert workspace.one("files-mcp@1").state is None


@pytest.mark.req("AIP-19.file-3")
def test_the_inventories_of_a_workspace_count_as_one_inventory(workspace: Workspace) -> None:
    folder = workspace.driver(driver())
    workspace.write(".secrets/SECRETS.md", {"secrets": [secret("shared"), secret("same")]})
    workspace.write(".secrets/github/SECRETS.md", {"secrets": [secret("github/token"), secret("same")]})
    workspace.write(folder / "SECRETS.md", {"secrets": [secret("files-mcp/key")]})
    workspace.trust()
    declaration = workspace.declared()
    assert [one.slug for one in declaration.secrets] == ["shared", "same", "github/token", "files-mcp/key"]
    assert declaration.problems == ()
    workspace.write(folder / "SECRETS.md", {"secrets": [secret("same", description="Something else.")]})
    workspace.trust()
    refused = workspace.one()
    assert refused.state is DriverState.REJECTED
    (problem,) = [each for each in refused.problems if each.code == "duplicate_slug"]
    assert str(folder / "SECRETS.md") in problem.message
    assert str(workspace.path / ".secrets") in problem.message


@pytest.mark.req("AIP-19.file-3")
def test_two_inventories_of_the_workspace_that_disagree_are_both_named(workspace: Workspace) -> None:
    workspace.driver(driver())
    first = workspace.write(".secrets/SECRETS.md", {"secrets": [secret("key")]})
    second = workspace.write(".secrets/a/SECRETS.md", {"secrets": [secret("key", description="Another.")]})
    declaration = workspace.declared()
    (problem,) = declaration.problems
    assert str(first) in problem.message
    assert str(second) in problem.message
    assert declaration.secrets == ()
    assert workspace.one().state is None


def test_a_driver_that_is_not_trusted_takes_no_slug_or_contract_from_a_trusted_driver(workspace: Workspace) -> None:
    good = workspace.driver(driver())
    workspace.write(good / "SECRETS.md", {"secrets": [secret("key")]})
    workspace.trust()
    evil = workspace.driver(driver("evil-mcp"))
    workspace.write(evil / "SECRETS.md", {"secrets": [secret("key", description="Mine.")]})
    workspace.write(evil / "tools/fs-read/TOOL.md", contract(description="Something else."))
    assert workspace.one("files-mcp@1").state is None
    refused = workspace.one("evil-mcp@1")
    assert refused.state is DriverState.REJECTED
    assert set(codes(refused.problems)) == {"duplicate_slug", "contract_conflict"}
    assert [one.description for one in workspace.declared().secrets] == ["For a test."]


def test_two_texts_of_one_contract_are_settled_by_tools_or_refused(workspace: Workspace) -> None:
    first = workspace.driver(driver("first-mcp"))
    second = workspace.driver(driver("second-mcp"))
    assert [one.state for one in workspace.declared().drivers] == [None, None]
    workspace.write(second / "tools/fs-read/TOOL.md", contract(description="Another."))
    workspace.trust()
    for one in workspace.declared().drivers:
        assert codes(one.problems) == ["contract_conflict"]
    workspace.write(".tools/fs-read/TOOL.md", contract(description="Another."))
    workspace.driver(driver("third-mcp", implements=[binding("../../.tools/fs-read/TOOL.md")]))
    workspace.trust()
    states = {one.key: one.state for one in workspace.declared().drivers}
    assert states == {"first-mcp@1": DriverState.REJECTED, "second-mcp@1": None, "third-mcp@1": None}
    assert first.exists()


@pytest.mark.req("AIP-30.load-1")
def test_nine_broken_drivers_leave_the_tenth_alone_in_any_order(tmp_path: Path) -> None:
    broken: dict[str, Any] = {
        "yaml-mcp": b"---\nname: [\n---\n",
        "fence-mcp": b"no frontmatter",
        "bytes-mcp": b"---\n\xff\xfe\n---\n",
        "schema-mcp": driver("schema-mcp", transport="ws"),
        "tool-mcp": driver("tool-mcp", implements=[binding("nowhere")]),
        "range-mcp": driver("range-mcp", implements=[binding(version="banana")]),
        "secret-mcp": driver(
            "secret-mcp", server={"kind": "binary", "path": "x", "env": {"GITHUB_TOKEN": "ghp_abcdefgh1234"}}
        ),
        "escape-mcp": driver("escape-mcp", server={"kind": "binary", "path": "../../../../bin/sh"}),
        "ref-mcp": driver("ref-mcp", auth={"ref": "./SECRETS.md"}),
    }
    outcomes = []
    for seed in range(3):
        workspace = Workspace(tmp_path / str(seed))
        names = [*broken, "files-mcp"]
        random.Random(seed).shuffle(names)
        for name in names:
            workspace.driver(broken.get(name, driver()), folder=name)
        found = workspace.declared().drivers
        assert len(found) == 10
        assert [one.folder.name for one in found if one.state is None] == ["files-mcp"]
        assert all(one.reason for one in found if one.state is not None)
        outcomes.append({one.folder.name: codes(one.problems) for one in found})
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert outcomes[0]["escape-mcp"] == ["path_escape"]


def test_links_out_of_the_folder_pipes_and_links_as_folders_are_refused(workspace: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    workspace.driver(driver("linked-mcp"), root=outside)
    (workspace.path / ".drivers").mkdir()
    (workspace.path / ".drivers" / "linked-mcp").symlink_to(outside / "linked-mcp")
    assert codes(workspace.one("linked-mcp").problems) == ["path_escape"]
    folder = workspace.driver(driver())
    (folder / "passwd").symlink_to("/etc/passwd")
    (problem,) = workspace.one("files-mcp").problems
    assert (problem.code, "link out of the folder" in problem.message) == ("file_unreadable", True)
    (folder / "passwd").unlink()
    os.mkfifo(folder / "pipe")
    (problem,) = workspace.one("files-mcp").problems
    assert (problem.code, "regular" in problem.message) == ("file_unreadable", True)
    (folder / "pipe").unlink()
    (folder / "inside").symlink_to("DRIVER.md")
    assert workspace.one("files-mcp").problems == ()


@pytest.mark.parametrize("odd", [os.fsdecode(b"\xff\xfe-mcp"), "two\nlines", "\x1b[2J", "gnp.\u202eexe"])
def test_names_that_are_no_text_are_reported_and_nothing_breaks(workspace: Workspace, odd: str) -> None:
    folder = workspace.driver(driver())
    workspace.driver(driver("good-mcp"))
    workspace.write(workspace.path / ".drivers" / odd / "DRIVER.md", driver("odd-mcp"))
    workspace.write(workspace.path / ".tools" / odd / "TOOL.md", contract("odd"))
    (folder / odd).write_bytes(b"")
    declaration = workspace.declared()
    told = {one.folder.name: codes(one.problems) for one in declaration.drivers}
    assert told == {"files-mcp": ["name_invalid"], "good-mcp": []}
    assert codes(declaration.problems) == ["name_invalid"]
    told_of = [*declaration.problems, *workspace.one("files-mcp").problems]
    assert all(repr(odd) in problem.message for problem in told_of)
    assert msgspec.json.encode(told_of)


@pytest.mark.parametrize("what", ["folder", "link", "dangling", "unreadable"])
def test_a_driver_file_that_is_no_file_is_refused(workspace: Workspace, what: str) -> None:
    folder = workspace.driver(driver())
    file = folder / "DRIVER.md"
    data = file.read_bytes()
    file.unlink()
    match what:
        case "folder":
            file.mkdir()
        case "link":
            (folder / "other.md").write_bytes(data)
            file.symlink_to("other.md")
        case "dangling":
            file.symlink_to("nothing.md")
        case "unreadable":
            file.write_bytes(b"\x00" * 100)
    only = workspace.one()
    assert only.state is DriverState.REJECTED
    assert codes(only.problems, "error")


def test_a_root_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, paths=(tmp_path / "workspace" / ".drivers", tmp_path / "more", tmp_path / "more"))
    workspace.driver(driver())
    workspace.driver(driver("more-mcp"), root=tmp_path / "more")
    assert {one.key: one.problems for one in workspace.declared().drivers} == {"files-mcp@1": (), "more-mcp@1": ()}


def test_a_root_that_leads_out_of_the_workspace_is_not_followed(workspace: Workspace, tmp_path: Path) -> None:
    workspace.driver(driver(), root=tmp_path / "outside")
    (workspace.path / ".drivers").symlink_to(tmp_path / "outside")
    declaration = workspace.declared()
    assert declaration.drivers == ()
    assert codes(declaration.problems) == ["path_escape"]


def test_a_folder_beyond_the_limits_is_refused_whole(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workspace.driver(driver())
    for number in range(10):
        (folder / f"{number}.bin").write_bytes(b"x")
    monkeypatch.setattr("interlock.drivers.workspace.scan.FILES_MAX", 5)
    assert codes(workspace.one("files-mcp").problems) == ["folder_too_large"]
    monkeypatch.setattr("interlock.drivers.workspace.scan.FILES_MAX", 100)
    monkeypatch.setattr("interlock.drivers.workspace.folder.FOLDER_BYTES_MAX", 100)
    workspace.surveyor = Surveyor(workspace.plan, MACHINE)
    assert codes(workspace.one("files-mcp").problems) == ["folder_too_large"]


def test_a_driver_file_beyond_the_limit_is_refused(workspace: Workspace) -> None:
    workspace.driver(text(driver()) + b"x" * (4 * 1024 * 1024), folder="files-mcp")
    (problem,) = workspace.one("files-mcp").problems
    assert (problem.code, "4 MiB" in problem.message) == ("frontmatter_invalid", True)


@pytest.mark.req("AIP-security-13")
def test_every_change_in_the_folder_and_of_a_bound_contract_asks_again(workspace: Workspace) -> None:
    folder = workspace.driver(driver(implements=[binding("../../shared/TOOL.md")]))
    shared = workspace.write("shared/TOOL.md", contract())
    (folder / "driver.py").write_text("x = 1\n")
    workspace.write(folder / "SECRETS.md", {"secrets": [secret("key")]})
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o644)
    workspace.trust()
    assert workspace.one().trusted
    changes = {
        folder / "DRIVER.md": text(driver(implements=[binding("../../shared/TOOL.md")]), "More words."),
        folder / "tools/fs-read/TOOL.md": text(contract("other")),
        folder / "SECRETS.md": text({"secrets": [secret("other")]}),
        folder / "driver.py": b"x = 2\n",
        folder / "added": b"",
        shared: text(contract(risk_level=1)),
    }
    for path, data in changes.items():
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(data)
        assert not workspace.one().trusted, path
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
        assert workspace.one().trusted, path
    (folder / "run.sh").chmod(0o755)
    assert not workspace.one().trusted


def test_a_folder_trusted_in_one_place_is_not_trusted_in_another(workspace: Workspace) -> None:
    folder = workspace.driver(driver())
    workspace.trust()
    folder.rename(workspace.path / ".drivers" / "elsewhere")
    assert not workspace.one().trusted


@pytest.mark.req("AIP-security-13")
def test_a_workspace_whose_owner_versions_it_is_trusted_and_other_roots_are_not(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, trust_workspace=True)
    workspace.driver(driver())
    workspace.driver(driver("own-mcp"), root=workspace.own)
    assert {one.key: one.trusted for one in workspace.declared().drivers} == {"files-mcp@1": True, "own-mcp@1": False}


def test_a_host_an_operator_allowed_is_reached_besides_those_of_the_file(workspace: Workspace) -> None:
    workspace.driver(driver(network={"egress": ["a.example.com"]}))
    workspace.remembered = Remembered(allowed={"files-mcp": ("b.example.com", "a.example.com")})
    only = workspace.one().driver
    assert only is not None
    assert only.network is not None
    assert only.network.egress == ("a.example.com", "b.example.com")


@pytest.mark.req("AIP-prompts-3", "AIP-30.front-6")
def test_a_skill_and_a_runner_that_are_named_have_to_be_there(workspace: Workspace, tmp_path: Path) -> None:
    prompt = {"name": "summarize", "integrate_as": "skill_block", "skill_ref": "./skills/s/SKILL.md"}
    folder = workspace.driver(driver(prompts=[prompt], runner="./RUNNER.md"))
    refused = workspace.one()
    assert [(each.code, each.field) for each in refused.problems] == [
        ("runner_missing", "/runner"),
        ("skill_ref_invalid", "/prompts/0/skill_ref"),
    ]
    assert "RUNNER.md" in refused.problems[0].message
    workspace.write(folder / "RUNNER.md", b"---\n---\n")
    workspace.write("skills/s/SKILL.md", b"---\n---\n")
    assert workspace.one().problems == ()


@pytest.mark.req("AIP-30.front-6")
def test_the_limits_of_a_runner_file_are_the_driver_s(workspace: Workspace) -> None:
    folder = workspace.driver(driver(runner="./RUNNER.md"))
    workspace.write(folder / "RUNNER.md", b"---\nengine: subprocess\nlimits: {memory_mb: 64, cpu_ms: 500}\n---\n")
    only = workspace.one().driver
    assert only is not None
    assert runner_limits(only.runner) == {"memory_mb": 64, "cpu_ms": 500}
    workspace.write(folder / "RUNNER.md", b"---\nengine: in-process\nlimits: {memory_mb: 64MB}\n---\n")
    assert [each.message for each in workspace.one().problems] == [
        "./RUNNER.md: an MCP server is a process of its own",
        "./RUNNER.md: memory_mb is a whole number above 0",
    ]


@pytest.mark.req("AIP-30.front-6")
@pytest.mark.parametrize(
    ("block", "pointer"),
    [
        ({"engine": "in-process"}, "/runner/engine"),
        ({"limits": []}, "/runner/limits"),
        ({"limits": {"memory_mb": 0}}, "/runner/limits/memory_mb"),
        ({"limits": {"cpu_ms": "1s"}}, "/runner/limits/cpu_ms"),
        ({"limits": {"cpu_ms": True}}, "/runner/limits/cpu_ms"),
    ],
)
def test_a_runner_that_cannot_be_enforced_is_refused_at_its_place(
    workspace: Workspace, block: dict[str, object], pointer: str
) -> None:
    workspace.driver(driver(runner=block))
    assert [(each.code, each.field) for each in workspace.one().problems] == [("schema_invalid", pointer)]


@pytest.mark.req("AIP-security-13")
def test_a_runner_file_elsewhere_is_part_of_what_is_trusted(workspace: Workspace) -> None:
    workspace.driver(driver(runner="./shared/RUNNER.md"))
    runner = workspace.write("shared/RUNNER.md", {"limits": {"memory_mb": 64}})
    workspace.trust()
    assert workspace.one().trusted
    assert runner in workspace.declared().others
    workspace.write("shared/RUNNER.md", {"limits": {"memory_mb": 64000}})
    assert not workspace.one().trusted


def test_unchanged_folders_are_not_read_again(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.driver(driver("first-mcp"))
    second = workspace.driver(driver("second-mcp"))
    workspace.write(".tools/x/TOOL.md", contract("x"))
    before = workspace.declared()
    read: list[Path] = []

    def watched(found: FoundFolder) -> DriverFolder:
        read.append(found.path)
        return read_folder(found)

    monkeypatch.setattr("interlock.drivers.workspace.survey.read_folder", watched)
    assert workspace.declared() == before
    assert read == []
    workspace.driver(driver("second-mcp", description="Another."))
    assert workspace.declared() != before
    assert read == [second]


def test_a_look_shows_any_change_and_nothing_else(workspace: Workspace) -> None:
    folder = workspace.driver(driver())
    workspace.write(".tools/x/TOOL.md", contract("x"))
    elsewhere = workspace.path / "elsewhere" / "TOOL.md"

    def seen() -> Any:
        return scan_workspace(workspace.plan, [elsewhere])

    last = seen()
    assert seen() == last
    changes: list[Any] = [
        lambda: (folder / "new").write_bytes(b""),
        lambda: (folder / "new").unlink(),
        lambda: os.utime(folder / "DRIVER.md", ns=(1, 1)),
        lambda: workspace.write(".tools/y/TOOL.md", contract("y")),
        lambda: workspace.write(".secrets/SECRETS.md", {"secrets": [secret("key")]}),
        lambda: workspace.write(elsewhere, contract("z")),
        lambda: workspace.driver(driver("more-mcp")),
    ]
    for change in changes:
        change()
        now = seen()
        assert now != last
        assert seen() == now
        last = now
    workspace.write("unrelated.txt", b"x")
    assert seen() == last


@pytest.mark.req("AIP-security-8", "AIP-tenant-1")
@pytest.mark.parametrize(("isolation", "is_refused"), [("driver", True), ("user", False), ("tenant", False)])
@pytest.mark.parametrize(
    "server",
    [
        {"kind": "binary", "path": "/usr/bin/true", "env": {"TOKEN": "${secrets.TOKEN}"}},
        {"kind": "binary", "path": "/usr/bin/true", "args": ["${secrets.TOKEN}"]},
        {"kind": "remote", "url": "https://a.example/mcp", "headers": {"X-Token": "${secrets.TOKEN}"}},
    ],
    ids=["env", "args", "headers"],
)
def test_a_secret_for_single_users_is_not_given_to_a_server_that_all_share(
    workspace: Workspace, server: dict[str, Any], isolation: str, is_refused: bool
) -> None:
    transport = "http" if server["kind"] == "remote" else "stdio"
    folder = workspace.driver(
        driver(server=server, transport=transport, metadata={"interlock": {"isolation": isolation}})
    )
    entry = {**secret("token"), "access": {"bind": [{"userId": "ada"}, {"planet": "mars"}]}}
    workspace.write(folder / "SECRETS.md", {"secrets": [entry]})
    only = workspace.one()
    assert ("user_context_at_spawn" in [problem.code for problem in only.problems]) is is_refused
    assert only.state is (DriverState.REJECTED if is_refused else None)


@pytest.mark.req("AIP-30.auth-1")
def test_a_name_of_the_login_state_without_a_secret_is_reported(workspace: Workspace) -> None:
    folder = workspace.driver(driver(auth={"ref": "./SECRETS.md", "state": {"env": ["TOKEN", "OTHER"]}}))
    workspace.write(folder / "SECRETS.md", {"secrets": [secret("token")]})
    (problem,) = [each for each in workspace.one().problems if each.severity == "warning"]
    assert problem.code == "secret_undeclared"
    assert "OTHER" in problem.message
