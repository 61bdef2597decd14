"""Does `check --aql` hold the live AQL surface to levels 1 and 2, and fail where the surface is broken?"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.aql.aql_schemas import check_answer, is_valid
from tests.cli.program import Finished, Inline

from interlock import __version__
from interlock.aql import answers, surface
from interlock.aql.protocol.introspection import operation_info
from interlock.aql.protocol.model import SPEC_VERSION
from interlock.aql.surface import AqlSurface

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


LEAKS = re.compile(r"typeerror|referenceerror|syntaxerror|at\s+\S+|/src/|/node_modules/|\.[tj]s:\d+", re.IGNORECASE)


def judge_evidence(evidence: dict[str, Any]) -> None:
    """What the specification's runner asks of a bundle, category by category."""
    introspection, accepted = evidence["introspection"], evidence["accepted_parameters"]
    details = {one["name"]: one for one in introspection["operation_details"]}
    listed = {"success": True, "data": {"operation": next(iter(details.values()))}}
    assert is_valid("introspection", listed) and is_valid("introspection", introspection["operations_list"])
    assert is_valid("introspection", introspection["types_list"])
    missing = {
        (one["operation"], one["parameter"]): one["response"] for one in evidence["parameter_tests"]["missing_required"]
    }
    for name, one in details.items():
        assert {parameter["name"] for parameter in one["parameters"]} == set(accepted[name])
        for parameter in one["parameters"]:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", parameter["name"])
            if parameter["required"]:
                said = missing[name, parameter["name"]]
                assert said["success"] is False and parameter["name"] in said["error"]["message"]
    for one in evidence["parameter_tests"]["unknown_parameter"]:
        assert one["parameter"] in one["response"]["error"]["message"]
    for one in evidence["error_tests"]:
        message = one["response"]["error"]["message"]
        assert is_valid("result", one["response"]) and LEAKS.search(message) is None, message
        assert all(word in message for word in one["must_mention"])
    for kind, expected in (("round_trip_tests", "expected_fields"), ("update_preservation_tests", "preserved_fields")):
        for one in evidence[kind]:
            for path, value in one[expected].items():
                assert one["read_response"]["data"][path.removeprefix("data.")] == value
    for one in evidence["constraint_tests"]:
        assert one["documented"] is True and one["response"]["success"] is False


@pytest.mark.req("AQL-10.1-2")
def test_the_evidence_is_what_the_runner_of_the_specification_accepts(inline: Inline, tmp_path: Path) -> None:
    """With the specification's sources in MCP_AQL_SPEC its own runner judges too."""
    done = inline("check", "--aql", "--evidence", str(tmp_path / "evidence"))
    assert done.code == 0
    bundle = tmp_path / "evidence" / "evidence.json"
    evidence = json.loads(bundle.read_text())
    judge_evidence(evidence)
    assert evidence["endpoint_modes"] == ["crude", "single"] and evidence["expected_level"] == 2
    assert evidence["capabilities"] == {"field_selection": True, "batch_operations": True}
    assert is_valid("batch", evidence["batch_example"])
    if "MCP_AQL_SPEC" in os.environ:
        runner = Path(os.environ["MCP_AQL_SPEC"]) / "scripts" / "run-conformance-tests.mjs"
        for level in ("1", "2"):
            ran = subprocess.run(
                ["node", str(runner), "test", str(bundle), "--level", level],
                capture_output=True,
                check=False,
                timeout=60,
            )
            assert ran.returncode == 0, ran.stdout.decode()
    broken = Path("interlock.toml")
    broken.write_text("[aql]\nbatch = false\n")
    lower = inline("check", "--aql", "--evidence", str(tmp_path / "lower"))
    assert lower.code == 0 and json.loads((tmp_path / "lower" / "evidence.json").read_text())["expected_level"] == 1


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
    assert written == f"{folder}: {2 + 2 * len(requests)} files"
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
    monkeypatch.setattr(AqlSurface, "_find_wrong_endpoint", lambda *_: None)
    monkeypatch.setattr(surface.introspection, "operation_info", lambda *some: {**shown(*some), "danger": "safe"})
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
