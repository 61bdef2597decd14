"""Initial contents that say where they come from, and a later revision of the draft that is only compared."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.node_process import RunningNode, running_node

DRAFT = "draft-morrison-mcp-tool-surface-names-registry"
LATER = f"{DRAFT}-02"
NAMES = ("org_alter_enforcement_gates", "org_alter_handbook", "org_alter_ingest", "org_alter_sop_registry")
HEAD = (
    "Surface Name,Specification Reference,Authentication Scope,Vendor Prefix,Change Controller,Status,First Registered"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[RunningNode]:
    with running_node(folder, {}) as running:
        yield running


def later(folder: Path, active: str, *more: str) -> str:
    """Write a registry with the shape of the later revision: one entry is Active, and the others are Provisional."""
    controller = "Alter Meridian Pty Ltd"
    rows = [
        f"{name},draft-morrison-org-alter-policy-provision-00,member-recognition,org_alter_,{controller},"
        f"{'Active' if name == active else 'Provisional'},2026-05-15"
        for name in NAMES
    ]
    path = folder / "later.csv"
    path.write_text("\r\n".join([HEAD, *rows, *more, ""]))
    return str(path)


def shown(node: RunningNode, name: str) -> Any:
    finished = node.cli("names", "show", name, "--json")
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def beside(node: RunningNode, path: str) -> None:
    imported = node.cli("names", "import", path, "--source", LATER, "--beside")
    assert imported.returncode == 0, imported.stderr
    assert "only compared" in imported.stdout


@pytest.mark.req("REG-6-6")
def test_initial_entries_say_from_which_draft_they_come(node: RunningNode) -> None:
    origin = f"{DRAFT}-00, initial contents"
    listed = json.loads(node.cli("names", "list", "--json").stdout)["names"]
    assert {(each["surface_name"], each["status"], each["origin"]) for each in listed} == {
        (name, "Active", origin) for name in NAMES
    }
    assert {(each["surface_name"], each["origin"]) for each in node.admin("/admin/names")["names"]} == {
        (name, origin) for name in NAMES
    }
    assert node.cli("names", "list", env={**os.environ, "COLUMNS": "200"}).stdout.count(origin) == 4
    for name in NAMES:
        assert shown(node, name)["origin"] == origin
        assert f"comes from              {origin}\n" in node.cli("names", "show", name).stdout


@pytest.mark.req("REG-6-7")
@pytest.mark.parametrize("active", NAMES)
def test_a_later_revision_is_compared_and_changes_nothing(node: RunningNode, folder: Path, active: str) -> None:
    published = node.cli("names", "publish").stdout
    path = later(folder, active)
    refused = node.cli("names", "import", path, "--source", LATER)
    assert refused.returncode == 1 and "--beside" in refused.stderr
    beside(node, path)
    assert node.cli("names", "publish").stdout == published
    listed = json.loads(node.cli("names", "list", "--json").stdout)
    assert {each["status"] for each in listed["names"]} == {"Active"}
    (compared,) = listed["compared"]
    assert (compared["source"], compared["entries"], compared["differing"]) == (LATER, 4, 3)
    assert f"compared with {LATER}, entries that differ: 3 of 4" in node.cli("names", "list").stderr
    for name in NAMES:
        (comparison,) = shown(node, name)["comparisons"]
        is_same = name == active
        expected = [] if is_same else ["status: Active here, Provisional there"]
        assert (comparison["source"], comparison["differences"]) == (LATER, expected)
        assert comparison["status"] == ("Active" if is_same else "Provisional")
        words = "no difference" if is_same else "status: Active here, Provisional there"
        assert f"  {words}\n" in node.cli("names", "show", name).stdout


@pytest.mark.req("REG-6-7")
def test_other_fields_and_missing_names_are_told_as_well(node: RunningNode, folder: Path) -> None:
    new = "org_alter_membership_add,draft-x-y-01,public,org_alter_,Alter Meridian Pty Ltd,Provisional,2026-10-09"
    path = Path(later(folder, NAMES[1], new))
    text = path.read_text().replace(f"{NAMES[2]},draft-morrison-org-alter-policy-provision-00,member-recognition", "")
    lines = [line for line in text.splitlines() if not line.startswith(",org_alter_")]
    lines[1] = lines[1].replace("provision-00", "provision-05").replace("2026-05-15", "2026-06-16")
    path.write_text("\r\n".join([*lines, ""]))
    beside(node, str(path))
    (changed,) = shown(node, NAMES[0])["comparisons"]
    assert changed["differences"] == [
        "specification reference: draft-morrison-org-alter-policy-provision-00 here, "
        "draft-morrison-org-alter-policy-provision-05 there",
        "status: Active here, Provisional there",
        "first registered: 2026-05-15 here, 2026-06-16 there",
    ]
    (gone,) = shown(node, NAMES[2])["comparisons"]
    assert (gone["status"], gone["differences"]) == (None, ["it has no entry of this name"])
    added = shown(node, "org_alter_membership_add")
    assert (added["entry"], added["origin"]) == (None, None)
    assert added["comparisons"][0]["differences"] == ["there is no entry here; there it is Provisional"]


@pytest.mark.req("REG-6-7")
def test_a_compared_registry_cannot_be_trusted_and_ends_with_an_empty_import(node: RunningNode, folder: Path) -> None:
    path = later(folder, NAMES[0])
    trusted = node.cli("names", "import", path, "--source", LATER, "--beside", "--trusted")
    assert trusted.returncode == 1 and "cannot be trusted" in trusted.stderr
    beside(node, path)
    later_trust = node.cli("names", "trust", LATER)
    assert later_trust.returncode == 1 and "cannot be trusted" in later_trust.stderr
    empty = folder / "empty.csv"
    empty.write_text(HEAD + "\r\n")
    beside(node, str(empty))
    (gone,) = shown(node, NAMES[1])["comparisons"]
    assert gone["differences"] == ["it has no entry of this name"]
    ended = node.cli("names", "import", str(empty), "--source", LATER)
    assert ended.returncode == 0, ended.stderr
    assert shown(node, NAMES[1])["comparisons"] == []
    verified = node.cli("audit", "verify", "--json")
    assert json.loads(verified.stdout)["names"]["intact"] is True
