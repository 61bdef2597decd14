"""Does `interlock check` find what would keep a driver from working, and do its hints mend it?"""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.program import Inline, Interlock
from tests.drivers.driver_files import contract, driver, text, write
from tests.names.old_registry import entry, register

from interlock.names.protocol.entry import EntryStatus


@pytest.fixture
def workspace(interlock: Interlock) -> Path:
    (interlock.folder / "interlock.toml").write_text("")
    return interlock.folder


def keep(inline: Inline, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO("a-value-of-it\n"))
    done = inline("secrets", "set", name)
    assert done.code == 0
    return done.err


def needing(**changed: Any) -> dict[str, Any]:
    return driver(
        server={"kind": "binary", "path": "/usr/bin/true", "env": {"A": "${secrets.API_KEY}"}},
        **changed,
    )


@pytest.mark.req("AIP-14.front-1")
@pytest.mark.parametrize("field", ["inputs", "outputs"])
@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"type": "object", "properties": {"sides": {"type": "intger"}}}, "/properties/sides/type"),
        ({"type": "object", "properties": {"sides": {"type": ["integer", "nul"]}}}, "/properties/sides/type"),
        ({"type": "object", "properties": {"sides": {"minimum": "1"}}}, "/properties/sides/minimum"),
        ({"type": "object", "required": "sides"}, "/required"),
        ({"type": "object", "$defs": {"a": {"type": "strng"}}}, "/$defs/a/type"),
    ],
)
def test_an_invalid_json_schema_is_refused_at_its_line(
    inline: Inline, workspace: Path, field: str, wrong: dict[str, Any], place: str
) -> None:
    file = workspace / "TOOL.md"
    file.write_text(text(contract(**{field: wrong})))
    done = inline("check", str(file), "--json")
    (problem,) = done.json["problems"]
    assert (done.code, problem["code"], problem["key"]) == (1, "schema_invalid", f"/{field}{place}")
    last = place.rpartition("/")[2]
    assert file.read_text().splitlines()[problem["line"] - 1].strip().startswith(f"{last}:")


def test_a_property_outside_of_properties_is_warned_of(inline: Inline, workspace: Path) -> None:
    file = workspace / "TOOL.md"
    file.write_text(text(contract(inputs={"type": "object", "sides": {"type": "intger"}})))
    done = inline("check", str(file), "--json")
    (warning,) = done.json["warnings"]
    assert (done.code, warning["code"], warning["key"]) == (0, "unknown_key", "/inputs/sides")
    assert "properties" in warning["hint"]


@pytest.mark.req("REG-7.3-2")
@pytest.mark.parametrize("name", ["read_file", "read_text"])  # the server's own, and the one it is listed under
def test_a_name_that_is_deprecated_is_warned_of_with_its_successor(
    inline: Inline, interlock: Interlock, workspace: Path, name: str
) -> None:
    folder = write(workspace, driver())
    listed = contract(metadata={"interlock": {"name": "files.read_text"}})
    (folder / "tools" / "fs-read" / "TOOL.md").write_text(text(listed))
    register(interlock.data, entry(name))
    assert inline("check", str(folder), "--json").json["warnings"] == []
    old = {"status": EntryStatus.DEPRECATED, "deprecated_on": "2026-11-01"}
    register(interlock.data, entry(name, **old, successor="read_document"))
    for named in ((), (str(folder),)):
        done = inline("check", *named, "--json")
        (warning,) = [one for one in done.json["warnings"] if one.get("code") == "deprecated"]
        assert done.code == 0  # what is bound goes on
        assert warning["message"].endswith(f"{name} is deprecated since 2026-11-01; its successor is read_document")
        assert (warning["key"], warning["hint"]) == ("/implements/0", "offer read_document")
    assert inline("check", str(folder), "--strict").code == 1
    register(interlock.data, entry(name, **old))
    (warning,) = inline("check", str(folder), "--json").json["warnings"]
    assert warning["message"].endswith(f"{name} is deprecated since 2026-11-01")


@pytest.mark.req("AIP-tools-17")
@pytest.mark.parametrize("path", ["$", "$.content", "$.entries"])
def test_a_contract_with_an_array_over_a_server_of_texts_is_named_with_its_fix(
    inline: Inline, workspace: Path, path: str
) -> None:
    def write_driver(**changed: Any) -> Path:
        data = driver()
        data["implements"][0]["metadata"] = {"mcp": {"tool_name": "list_directory", "result_extract": path}, **changed}
        folder = write(workspace, data)
        outputs = {"type": "array", "items": {"type": "string"}}
        (folder / "tools" / "fs-read" / "TOOL.md").write_text(text(contract(outputs=outputs)))
        return folder

    folder = write_driver()
    done = inline("check", str(folder), "--json")
    (note,) = [each for each in done.json["notes"] if each["code"] == "text_unread"]
    assert (done.code, note["key"]) == (0, "/implements/0/metadata/mcp/result_extract")
    assert "'list_directory' answers with text" in note["message"] and "rejected" in note["message"]
    assert "result_parse" in note["hint"] and "result_extract" in note["hint"]
    assert (folder / "DRIVER.md").read_text().splitlines()[note["line"] - 1].strip().startswith("result_extract:")
    shown = inline("check", str(folder))
    assert "result_parse" in shown.out + shown.err
    path = "$"  # the fix that the hint names
    write_driver(interlock={"result_parse": {"as": "lines"}})
    assert "text_unread" not in [each["code"] for each in inline("check", str(folder), "--json").json.get("notes", [])]
    (folder / "tools" / "fs-read" / "TOOL.md").write_text(text(contract()))
    assert "text_unread" not in [each["code"] for each in inline("check", str(folder), "--json").json.get("notes", [])]


def test_a_contract_that_no_driver_binds_is_checked_too(inline: Inline, workspace: Path) -> None:
    wrong = text(contract(inputs={"type": "object", "properties": {"sides": {"type": "intger"}}}))
    below = workspace / ".tools" / "dice" / "TOOL.md"
    below.parent.mkdir(parents=True)
    below.write_text(wrong)
    assert [each["file"] for each in inline("check", "--json").json["problems"]] == [".tools/dice/TOOL.md"]
    below.unlink()
    folder = write(workspace, driver())
    (folder / "tools" / "unbound").mkdir()
    (folder / "tools" / "unbound" / "TOOL.md").write_text(wrong)
    for named in ((), (str(folder),)):
        done = inline("check", *named, "--json")
        assert [each["key"] for each in done.json["problems"]] == ["/inputs/properties/sides/type"]


def test_the_lines_that_check_gives_let_a_driver_have_its_secret(
    inline: Inline, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(workspace, needing())
    (problem,) = inline("check", "--json").json["problems"]
    assert problem["code"] == "secret_undeclared"
    said = keep(inline, monkeypatch, "API_KEY")
    assert "still missing" in said
    entry, reference = re.findall("`([^`]*[}])`", problem["hint"])
    assert entry in said
    (folder / "SECRETS.md").write_text(f"---\nsecrets:\n{entry}\n---\n")
    (problem,) = inline("check", "--json").json["problems"]
    assert (problem["code"], reference in problem["hint"]) == ("access_denied", True)
    assert reference in keep(inline, monkeypatch, "api-key")
    (folder / "DRIVER.md").write_text(text(needing() | yaml.safe_load(reference)))
    done = inline("check", "--json")
    assert (done.code, done.json["problems"]) == (0, [])
    assert not any("code" in each for each in done.json["warnings"])
    assert "still missing" not in keep(inline, monkeypatch, "API_KEY")


def test_a_secret_that_another_drivers_inventory_describes_may_yet_be_granted(
    inline: Inline, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(workspace, needing())
    other = write(workspace, driver("other-mcp"))
    described = {
        "slug": "api-key",
        "name": "Key",
        "description": "Of both.",
        "access": {"bind": [{"tool": "files-mcp"}]},
    }
    (other / "SECRETS.md").write_text(text({"secrets": [described]}))
    done = inline("check", "--json")
    assert (done.code, [each["code"] for each in done.json["warnings"] if "code" in each]) == (0, ["secret_undeclared"])
    assert "still missing" not in keep(inline, monkeypatch, "API_KEY")


def test_keeping_another_secret_says_nothing_of_it(
    inline: Inline, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(workspace, needing())
    assert keep(inline, monkeypatch, "ELSE") == ""
