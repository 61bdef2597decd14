"""Can a person see what a driver is before trusting it, find its mistakes, and get rid of it?"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.program import Inline, Interlock
from tests.drivers.driver_files import contract, driver, text, write

from interlock.drivers.protocol.files.schemas import EXTENSION_KEYS


@pytest.fixture
def workspace(interlock: Interlock) -> Path:
    (interlock.folder / "interlock.toml").write_text("")
    return interlock.folder


def states(inline: Inline) -> dict[str, str]:
    return {one["id"]: one["state"] for one in inline("drivers", "list", "--json").json["drivers"]}


@pytest.mark.req("AIP-security-13", "AIP-front-4")
def test_a_driver_is_shown_with_all_that_matters_trusted_and_asked_about_again(inline: Inline, workspace: Path) -> None:
    folder = write(
        workspace,
        driver(
            network={"egress": ["api.example.com"]},
            sandbox={"fs": {"write": ["/srv/data"]}, "exec": {"spawn": ["git"]}},
            policy_tags=["pii-safe"],
            auth={"state": {"env": ["TOKEN"]}},
        ),
    )
    (folder / "SECRETS.md").write_text(
        text({"secrets": [{"slug": "token", "name": "Token", "description": "For it."}]})
    )
    assert states(inline) == {"files-mcp": "untrusted"}
    shown = inline("drivers", "show", "files-mcp").out
    for word in ("untrusted", "/usr/bin/true --root /srv", "LEVEL=info", "write /srv/data", "starts git", "MCP latest"):
        assert word in shown
    for word in ("api.example.com", "TOKEN = token", "pii-safe", "fs-read@1.0.0 by read_file", str(folder)):
        assert word in shown
    asked = inline("drivers", "trust", "files-mcp")
    assert (asked.code, "nothing was done" in asked.err) == (1, True)
    assert states(inline) == {"files-mcp": "untrusted"}
    done = inline("drivers", "trust", "files-mcp", "--yes")
    assert (done.code, "api.example.com" in done.out, "is trusted" in done.out) == (0, True, True)
    assert states(inline) == {"files-mcp": "stopped"}
    (folder / "tools/fs-read/TOOL.md").write_text(text(contract(description="Reads two files.")))
    changed = inline("drivers", "show", "files-mcp")
    assert "-description: Reads one file." in changed.out
    assert "+description: Reads two files." in changed.out
    assert states(inline) == {"files-mcp": "untrusted"}
    trail = inline("audit", "export").out
    assert '"method":"drivers/trust","tool":"files"' in trail and '"driver":"files-mcp@1"' in trail
    assert '"policy_tags":["pii-safe"]' in trail


@pytest.mark.req("AIP-security-12")
def test_a_tag_that_is_added_later_needs_trust_again(inline: Inline, workspace: Path) -> None:
    write(workspace, driver(policy_tags=["pii-safe"]))
    assert inline("drivers", "trust", "files-mcp", "--yes").code == 0
    write(workspace, driver(policy_tags=["pii-safe", "hipaa"]))
    assert states(inline) == {"files-mcp": "untrusted"}
    assert inline("drivers", "show", "files-mcp", "--json").json["accepted"]["policy_tags"] == ["pii-safe"]


def test_trusting_a_folder_shows_that_its_hooks_are_run(inline: Inline, workspace: Path) -> None:
    folder = write(workspace, driver())
    assert "driver.py" not in inline("drivers", "show", "files-mcp").out
    (folder / "driver.py").write_text("")
    assert "driver.py is run" in " ".join(inline("drivers", "show", "files-mcp").out.split())


def test_a_folder_that_changed_while_it_was_read_is_not_trusted(inline: Inline, workspace: Path) -> None:
    from interlock.cli.client.offline import OfflineNode
    from interlock.config.load import load
    from interlock.drivers.api import GET_DRIVER, TRUST_DRIVER, TrustDriver
    from interlock.wire.refusal import Refused

    folder = write(workspace, driver())
    node = OfflineNode(load(None, {"HOME": str(workspace)}, {}).plan, workspace / "data")
    digest = node.call(GET_DRIVER, name="files-mcp").value["digest"]
    (folder / "added").write_text("")
    with pytest.raises(Refused) as refused:
        node.call(TRUST_DRIVER, name="files-mcp", body=TrustDriver(digest=digest))
    assert refused.value.code == "changed"
    assert states(inline) == {"files-mcp": "untrusted"}


def test_a_driver_that_cannot_be_used_is_not_trusted(inline: Inline, workspace: Path) -> None:
    write(workspace, driver(transport="ws"))
    done = inline("drivers", "trust", "files-mcp", "--yes", "--json")
    assert (done.code, done.json["error"]) == (1, "rejected")


@pytest.mark.req("AIP-import-11")
def test_a_host_is_allowed_and_taken_back_without_a_file_being_changed(inline: Inline, workspace: Path) -> None:
    folder = write(workspace, driver(network={"egress": ["a.example.com"]}))
    before = (folder / "DRIVER.md").read_bytes()
    inline("drivers", "trust", "files-mcp", "--yes")
    assert inline("drivers", "allow", "files-mcp", "B.example.com").code == 0
    shown = inline("drivers", "show", "files-mcp", "--json").json
    assert (shown["egress"], shown["trusted"]) == (["a.example.com", "b.example.com"], True)
    assert inline("drivers", "allow", "files-mcp", "b.example.com", "--revoke").code == 0
    assert inline("drivers", "show", "files-mcp", "--json").json["egress"] == ["a.example.com"]
    for bad in ("https://x.com", "x.com:0", "10.0.0.0/8", "a b", ""):
        assert inline("drivers", "allow", "files-mcp", bad).code == 1
    assert inline("drivers", "allow", "files-mcp", "c.example.com", "--revoke").code == 1
    assert (folder / "DRIVER.md").read_bytes() == before


def test_a_driver_is_removed_with_its_folder_and_an_unknown_driver_is_not_found(
    inline: Inline, workspace: Path
) -> None:
    folder = write(workspace, driver())
    inline("drivers", "trust", "files-mcp", "--yes")
    assert inline("drivers", "remove", "files-mcp").code == 1
    assert folder.exists()
    assert inline("drivers", "remove", "files-mcp", "--yes").code == 0
    assert not folder.exists()
    assert states(inline) == {}
    gone = inline("drivers", "show", "files-mcp", "--json")
    assert (gone.code, gone.json["error"]) == (1, "not_found")
    write(workspace, driver())
    assert states(inline) == {"files-mcp": "untrusted"}


def test_removing_a_folder_that_holds_a_link_leaves_what_it_leads_to(inline: Inline, workspace: Path) -> None:
    folder = write(workspace, driver())
    kept = workspace / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (folder / "out").symlink_to(kept)
    inline("drivers", "remove", "files-mcp", "--yes")
    assert not folder.exists()
    assert (kept / "file").exists()


def test_removing_a_driver_beside_a_contract_leaves_the_contract(inline: Inline, workspace: Path) -> None:
    folder = workspace / ".tools" / "fs-read"
    folder.mkdir(parents=True)
    entry = {"tool": "fs-read", "version": "^1.0.0", "metadata": {"mcp": {"tool_name": "read_file"}}}
    (folder / "DRIVER.md").write_text(text(driver(implements=[entry])))
    (folder / "TOOL.md").write_text(text(contract()))
    done = inline("drivers", "remove", "files-mcp", "--yes", "--json")
    assert (done.code, done.json["removed"]) == (0, str(folder / "DRIVER.md"))
    assert [one.name for one in folder.iterdir()] == ["TOOL.md"]


def test_drafts_and_drivers_of_two_majors_are_distinguished(inline: Inline, workspace: Path) -> None:
    write(workspace, driver())
    folder = write(workspace, driver("other-mcp"))
    (folder / "DRIVER.md").write_text(text(driver(version="2.0.0")))
    draft = workspace / ".drivers" / "draft-mcp"
    draft.mkdir()
    (draft / "DRIVER.draft.md").write_text("---\n---\n")
    listed = inline("drivers", "list")
    assert "draft-mcp" in listed.out
    assert "interlock add draft finishes it" in listed.out
    done = inline("drivers", "show", "files-mcp", "--json")
    assert (done.code, done.json["error"]) == (1, "ambiguous")
    assert inline("drivers", "show", "files-mcp@2", "--json").json["version"] == "2.0.0"


def test_words_of_a_file_cannot_move_the_cursor(inline: Inline, workspace: Path) -> None:
    write(workspace, driver(description="nice \x1b[2J tool", server={"kind": "binary", "path": "/bin/\x1b[31mx"}))
    assert "\x1b" not in inline("drivers", "show", "files-mcp").out


@pytest.mark.req("AIP-front-11", "AIP-server-10")
def test_the_extension_keys_shown_are_those_documented(inline: Inline, workspace: Path) -> None:
    shared: dict[str, Any] = {
        "metadata": {
            "interlock": {
                "idle_timeout_ms": 1000,
                "isolation": "user",
                "max_processes": 2,
                "client_capabilities": [],
                "protocol_versions": ["2025-11-25"],
                "expose": "all",
                "not_secret": ["KEY"],
                "redact_results": False,
            }
        },
        "sandbox": {},
        "implements": [
            {
                "tool": "./tools/fs-read/TOOL.md",
                "version": "^1.0.0",
                "metadata": {
                    "mcp": {"tool_name": "read_file"},
                    "interlock": {
                        "result_parse": {},
                        "result_wrap": "content",
                        "text_fallback": False,
                        "argument_defaults": {},
                        "context_arguments": {},
                    },
                },
            }
        ],
    }
    servers: list[dict[str, Any]] = [
        {"server": {"kind": "npm", "package": "x", "version": "1.0.0", "cwd": ".", "entry": "x"}},
        {"server": {"kind": "docker", "image": "x:1", "port": 80, "volumes": ["/a:/b"]}, "transport": "http"},
        {
            "server": {
                "kind": "remote",
                "url": "https://x.example",
                "headers": {},
                "query": {},
                "auth": {"type": "none"},
            },
            "transport": "http",
        },
        {"server": {"kind": "pypi", "package": "x", "runner": "venv"}},
    ]
    seen: set[str] = set()
    for number, server in enumerate(servers):
        folder = write(workspace, driver(f"d{number}-mcp", **shared, **server))
        done = inline("drivers", "show", f"d{number}-mcp", "--json").json
        assert done["state"] == "untrusted", done["problems"]
        seen.update(done["extension_keys"])
        elsewhere = inline("check", str(folder), "--upstream")
        assert elsewhere.code == 0, elsewhere.out
        refused = "/server/kind: other hosts refuse this" in elsewhere.out
        assert refused is (server["server"]["kind"] == "pypi")
    assert seen == set(EXTENSION_KEYS)
    documented = Path(__file__).resolve().parents[3] / "docs" / "driver-files.md"
    page = documented.read_text()
    assert all(f"`{key.rpartition('.')[2]}`" in page for key in EXTENSION_KEYS)


# interlock check


def test_check_finds_mistakes_in_driver_files_with_file_line_and_field(inline: Inline, workspace: Path) -> None:
    assert "driver" not in inline("check").out
    folder = write(workspace, driver())
    done = inline("check")
    assert (done.code, "1 driver" in done.out) == (0, True)
    (folder / "DRIVER.md").write_text(text(driver(transport="ws", id="files-mcp")))
    line = (folder / "DRIVER.md").read_text().splitlines().index("transport: ws") + 1
    for path in ((), (str(folder),), (str(folder / "DRIVER.md"),)):
        done = inline("check", *path)
        assert done.code == 1
        assert f".drivers/files-mcp/DRIVER.md:{line}: error: /transport:" in done.out
        assert "[schema_invalid]" in done.out
        (problem,) = inline("check", *path, "--json").json["problems"]
        assert (problem["key"], problem["line"], problem["code"]) == ("/transport", line, "schema_invalid")


@pytest.mark.req("AIP-file-2", "AIP-file-3")
def test_with_strict_a_warning_is_an_error(inline: Inline, workspace: Path) -> None:
    shutil.move(write(workspace, driver()), workspace / ".drivers" / "files")
    assert inline("check").code == 0
    done = inline("check", "--strict")
    assert (done.code, "[folder_name]" in done.out) == (1, True)
    shutil.rmtree(workspace / ".drivers")
    folder = write(workspace, driver("files"))
    assert inline("check", str(folder)).code == 0
    done = inline("check", str(folder), "--strict")
    assert (done.code, "[id_suffix]" in done.out) == (1, True)
    shutil.rmtree(folder)
    assert inline("check", str(write(workspace, driver())), "--strict").code == 0


@pytest.mark.req("AIP-identity-4")
def test_check_compares_a_driver_with_an_older_version(inline: Inline, workspace: Path) -> None:
    old = workspace / "old"
    shutil.copytree(write(workspace, driver()), old)
    folder = write(workspace, driver(version="1.1.0", protocol_version="2025-06-18"))
    done = inline("check", str(folder), "--against", str(old), "--json")
    assert done.code == 1
    assert [(one["code"], one["key"]) for one in done.json["problems"]] == [
        ("major_bump_required", "/protocol_version")
    ]
    assert inline("check", str(folder), "--against", str(old / "DRIVER.md")).code == 1
    write(workspace, driver(version="2.0.0", protocol_version="2025-06-18"))
    assert inline("check", str(folder), "--against", str(old)).code == 0
    assert inline("check", "--against", str(old)).code == 2
    assert inline("check", str(folder), "--against", str(workspace / "nowhere.md")).code == 1


def test_check_upstream_says_what_other_hosts_refuse(inline: Inline, workspace: Path) -> None:
    folder = write(workspace, driver(server={"kind": "pypi", "package": "mcp-server-git"}))
    assert inline("check", str(folder)).code == 0
    done = inline("check", str(folder), "--upstream")
    assert (done.code, "/server" in done.out) == (0, True)
    assert "other hosts refuse this" in done.out
    assert "interlock export driver files --upstream" in done.out
    assert inline("check", str(folder), "--upstream", "--strict").code == 1


def test_single_contracts_and_inventories_are_checked(inline: Inline, workspace: Path) -> None:
    good = workspace / "TOOL.md"
    good.write_text(text(contract()))
    assert inline("check", str(good)).code == 0
    good.write_text(text(contract(mutates=["fs:/x"])))
    assert inline("check", str(good)).code == 1
    secrets = workspace / "SECRETS.md"
    secrets.write_text(text({"secrets": [{"slug": "a-b", "name": "A", "description": "B", "value": "x"}]}))
    done = inline("check", str(secrets))
    assert (done.code, "[secret_in_manifest]" in done.out) == (1, True)
    assert inline("check", str(workspace / "nothing")).code == 1
    empty = workspace / "empty"
    empty.mkdir()
    assert inline("check", str(empty)).code == 2
    (empty / "DRIVER.md").mkdir()
    assert inline("check", str(empty)).code == 2


def test_a_driver_is_checked_beside_a_configuration_that_is_wrong(inline: Inline, workspace: Path) -> None:
    folder = write(workspace, driver())
    (workspace / "interlock.toml").write_text("nonsense = 1\n")
    assert inline("check", str(folder)).code == 0
    assert inline("check").code == 1
