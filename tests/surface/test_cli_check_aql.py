"""Does `check --aql` hold the live AQL surface to levels 1 and 2, and fail where the surface is broken?"""

import json
from pathlib import Path
from typing import Any

import pytest
from program import Finished, Inline
from tests.protocol.aql_schemas import check_answer

from interlock import __version__
from interlock.protocol.aql.introspection import operation_info
from interlock.protocol.aql.model import SPEC_VERSION
from interlock.runtime.aql import answers, introspect
from interlock.runtime.aql.surface import AqlSurface

LEVEL_1 = [
    *("endpoint mode", "introspect", "standard formats", "categories"),
    *("family and category in introspection", "rejection at wrong endpoints"),
]
LEVEL_2 = ["both modes", "field selection", "batch"]


def check(inline: Inline, config: str, *options: str) -> Finished:
    Path("interlock.toml").write_text(config)
    return inline("check", "--aql", *options)


def failed(report: dict[str, Any]) -> list[str]:
    return [one["name"] for one in report["categories"] if one["result"] == "failed"]


@pytest.mark.req("AQL-C.conf-2", "AQL-10.1-1")
def test_the_default_surface_holds_level_2_and_the_evidence_is_written(inline: Inline, tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    done = inline("check", "--aql", "--evidence", str(folder))
    assert (done.code, done.err) == (0, "")
    *lines, claim, written = done.out.splitlines()
    assert {line[:4] for line in lines} == {"PASS"}
    for name in LEVEL_1 + LEVEL_2:
        assert any(f", {name} (" in line for line in lines), name
    assert claim.startswith(f"interlock {__version__}: the claim of MCP-AQL {SPEC_VERSION}, level 2, holds: ")
    report = json.loads((folder / "report.json").read_text())
    assert set(report) == {
        *("implementation", "version", "specVersion", "requestedLevel", "conformanceLevel", "summary", "categories")
    }
    assert (report["implementation"], report["version"], report["specVersion"]) == (
        "interlock",
        __version__,
        SPEC_VERSION,
    )
    assert (report["requestedLevel"], report["conformanceLevel"]) == (2, 2)
    total = len(lines)
    assert report["summary"] == {"total": total, "passed": total, "warned": 0, "failed": 0, "skipped": 0}
    assert [one["name"] for one in report["categories"]] == LEVEL_1 + LEVEL_2
    for category in report["categories"]:
        assert set(category) == {"name", "required", "result", "tests"}
        assert (category["required"], category["result"]) == (True, "passed")
    surfaces = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert surfaces == [f"{mode}-{era}" for mode in ("semantic", "single") for era in ("2025-11-25", "2026-07-28")]
    requests = sorted(folder.glob("*/*.request.json"))
    assert written == f"{folder}: {1 + 2 * len(requests)} files"
    codes = set()
    for path in requests:
        asked = json.loads(path.read_text())
        answer = json.loads(path.with_name(path.name.replace(".request.", ".answer.")).read_text())
        assert answer["id"] == asked["id"]
        if asked["method"] == "tools/call" and "result" in answer and not answer["result"].get("isError"):
            envelope = json.loads(answer["result"]["content"][0]["text"])
            check_answer(envelope, asked["params"]["arguments"])
            codes.add(envelope.get("error", {}).get("code"))
    assert {None, "VALIDATION_ENDPOINT_MISMATCH", "VALIDATION_MISSING_PARAM", "NOT_FOUND_OPERATION"} <= codes
    again = inline("check", "--aql", "--evidence", str(folder))
    assert (again.code, "is not an empty folder" in again.err) == (2, True)


@pytest.mark.req("AQL-10.3-1")
def test_every_extension_may_be_on(inline: Inline) -> None:
    config = (
        '[aql]\nmode = "all"\nprofile = "database"\ntool_prefix = "x_"\nresponse_meta = true\n'
        '[safety]\nmode = "monitoring"\nrequire = ["local"]\n'
    )
    done = check(inline, config, "--json")
    assert (done.code, failed(done.json), done.json["conformanceLevel"]) == (0, [], 2)
    names = [test["name"] for test in done.json["categories"][0]["tests"]]
    assert names[0] == "all mode, 2026-07-28"


@pytest.mark.parametrize("settings", ['mode = "single"', "batch = false", "field_selection = false"])
def test_a_surface_without_all_of_level_2_claims_level_1(inline: Inline, settings: str) -> None:
    report = check(inline, f"[aql]\n{settings}\n", "--json").json
    assert (report["requestedLevel"], report["conformanceLevel"], failed(report)) == (1, 1, [])
    results = {one["name"]: (one["required"], one["result"]) for one in report["categories"]}
    assert results == dict.fromkeys(LEVEL_1, (True, "passed")) | dict.fromkeys(LEVEL_2, (False, "skipped"))


def test_a_broken_surface_fails(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three faults at once: no endpoint is wrong, a list item has a member too many, fields are not selected."""
    shown = operation_info
    monkeypatch.setattr(AqlSurface, "_misplaced", lambda *_: None)
    monkeypatch.setattr(introspect, "operation_info", lambda *some: {**shown(*some), "danger": "safe"})
    monkeypatch.setattr(answers, "select", lambda data, _: data)
    done = inline("check", "--aql")
    assert done.code == 1
    lines = done.out.splitlines()
    assert "level 2, does not hold: " in lines[-1]
    broken = {line.split(", ", 1)[1].split(" (")[0] for line in lines if line.startswith("FAIL")}
    assert broken == {
        *("introspect", "family and category in introspection", "rejection at wrong endpoints", "field selection")
    }
    assert any("create_note at mcp_aql_read is answered VALIDATION_MISSING_PARAM" in line for line in lines)


@pytest.mark.parametrize(
    "options", [["--evidence", "x"], ["--aql", "--schema"], ["--aql", "--upstream"], ["--aql", "--effective"]]
)
def test_options_that_do_not_go_together(inline: Inline, options: list[str]) -> None:
    assert inline("check", *options).code == 2


def test_a_configuration_that_cannot_be_read_is_refused(inline: Inline) -> None:
    done = check(inline, "[aql]\nmode = 7\n")
    assert (done.code, "interlock.toml:2:" in done.err) == (1, True)
