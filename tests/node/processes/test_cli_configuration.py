"""Do init, check and explain help a person from the first file to the last mistake?"""

import json
import re
import stat
import tomllib
from pathlib import Path

import pytest
from tests.cli.program import Inline, Interlock

from interlock.cli.explain import codes_for, every_code, every_key
from interlock.drivers.protocol.binding.match import STANDARD
from interlock.operator import operation
from interlock.operator.openapi import OPERATIONS
from interlock.operator.operation import ErrorCase

BAD = """\
[node]
lissten = "127.0.0.1:7411"

[servers.time]
comand = "mcp-server-time"
"""


def test_init_writes_a_file_that_check_finds_usable(interlock: Interlock) -> None:
    made = interlock("init")
    assert made.code == 0
    assert (interlock.folder / "interlock.toml").is_file()
    assert stat.S_IMODE(interlock.data.stat().st_mode) & 0o700 == 0o700
    assert "interlock serve" in made.out
    checked = interlock("check")
    assert checked.code == 0
    assert re.search(r"^interlock\.toml: usable, \d+ warnings?, 3 servers, ", checked.out, re.MULTILINE)


@pytest.mark.req("AX-11.N-7")
def test_a_key_that_init_makes_is_the_first_approver_and_one_added_before_the_first_start_is_not(
    interlock: Interlock,
) -> None:
    made = interlock("init", "--key", "ada", "--json", INTERLOCK_PASSPHRASE="correct horse battery").json
    assert made["enrolled"] == ["ada"]
    eve = 'name = "eve"\nkey = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="\napproves = ["*"]\n'
    ada = f'name = "ada"\nkey = "{made["operator_key"]["key"]}"\napproves = ["*"]\n'
    node = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
    (interlock.folder / "interlock.toml").write_text(f"{node}[[anchor]]\n{eve}[[anchor]]\n{ada}")
    with interlock.start("serve", "--json") as running:
        approvers = json.loads(running.next_line())["approvers"]
    assert {each["name"]: each["approves"] for each in approvers} == {"eve": [], "ada": ["*"]}


@pytest.mark.req("AX-11.N-7")
def test_init_enrols_an_approver_that_the_file_names_and_says_that_no_one_is_one(
    inline: Inline, tmp_path: Path
) -> None:
    done = inline("init", "--no-key")
    assert "anyone who controls this account can become it" in done.out
    key = 'name = "eve"\nkey = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="\napproves = ["*"]\n'
    (tmp_path / "interlock.toml").write_text(f"[[anchor]]\n{key}")
    assert "eve may approve calls from the first start on" in inline("init").out
    assert inline("init").code == 1


def test_init_writes_how_long_a_call_waits(inline: Inline, tmp_path: Path) -> None:
    assert inline("init", "--no-key", "--wait", "2d").code != 0
    assert inline("init", "--no-key", "--wait", "15m").code == 0
    assert tomllib.loads((tmp_path / "interlock.toml").read_text())["approvals"] == {"expiry_s": 900}
    assert inline("check").code == 0


def test_the_servers_of_init_run_in_sandboxes_where_the_machine_has_them(
    inline: Inline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.node.cli.machine.no_sandbox", lambda: None)
    done = inline("init", "--no-key")
    assert "each runs in a sandbox without network; two may write, in memory/ and files/" in done.out
    assert (tmp_path / "memory").is_dir() and (tmp_path / "files").is_dir()
    assert "in a sandbox: time, memory, files" in inline("check").out
    servers = tomllib.loads((tmp_path / "interlock.toml").read_text())["servers"]
    assert [one["egress"] for one in servers.values()] == [[]] * 3
    assert servers["memory"]["env"] == {"MEMORY_FILE_PATH": str(tmp_path / "memory" / "memory.jsonl")}


def test_init_says_where_there_is_no_sandbox(inline: Inline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.node.cli.machine.no_sandbox", lambda: "bwrap is not installed")
    done = inline("init", "--no-key")
    assert "they run with all your rights, because there is no sandbox: bwrap is not installed" in done.out
    text = (tmp_path / "interlock.toml").read_text()
    assert all("egress" not in one for one in tomllib.loads(text)["servers"].values())
    assert text.count("# egress = []") == 3


def test_init_makes_the_data_folder_for_its_owner_alone(inline: Inline, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    done = inline("init", "--data", str(folder), "--json")
    assert done.code == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert done.json["data"] == str(folder)
    assert done.json["config"] == str(tmp_path / "interlock.toml")
    assert "time" in done.json["servers"]


def test_init_does_not_write_over_a_file_without_force(inline: Inline, tmp_path: Path) -> None:
    path = tmp_path / "interlock.toml"
    path.write_text("# mine\n")
    keyless = inline("init")
    assert (keyless.code, keyless.out) == (1, "")
    assert "adds your key to it" in keyless.err and "--force" not in keyless.err
    refused = inline("init", "--no-key")
    assert (refused.code, refused.out) == (1, "")
    assert "--force" in refused.err
    assert path.read_text() == "# mine\n"
    assert inline("init", "--force").code == 0
    assert "[servers." in path.read_text()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".interlock")] == []


@pytest.mark.parametrize("where", ["missing/interlock.toml", "data"])
def test_init_where_no_file_can_be_is_refused(inline: Inline, where: str) -> None:
    done = inline("init", "--config", where)
    assert (done.code, done.out) == (1, "")
    assert "Traceback" not in done.err


def test_a_file_that_the_environment_names_is_not_offered_for_overwriting(inline: Inline, tmp_path: Path) -> None:
    (tmp_path / "theirs.toml").write_text("# theirs")
    done = inline("init", "--no-key", INTERLOCK_CONFIG="theirs.toml")
    assert (done.code, done.out) == (1, "")
    assert "unset INTERLOCK_CONFIG" in done.err
    assert "--force" not in done.err
    assert (tmp_path / "theirs.toml").read_text() == "# theirs"


def test_next_steps_repeat_the_flags_that_were_given(inline: Inline) -> None:
    out = inline("init", "--config", "my file.toml", "--data", "d").out
    assert "interlock serve --config 'my file.toml' --data d" in out


def test_check_names_file_line_and_what_was_meant(interlock: Interlock) -> None:
    (interlock.folder / "bad.toml").write_text(BAD)
    done = interlock("check", "bad.toml")
    assert (done.code, done.err) == (1, "")
    assert "bad.toml:2: error: unknown key 'lissten' in [node]" in done.lines
    assert "  hint: did you mean 'listen'?" in done.lines
    assert any(line.startswith("bad.toml:5: error: ") for line in done.lines)
    assert done.lines[-1] == "3 errors"


def test_check_as_json_has_every_problem(interlock: Interlock) -> None:
    (interlock.folder / "bad.toml").write_text(BAD)
    done = interlock("check", "--config", "bad.toml", "--json")
    assert (done.code, done.err) == (1, "")
    assert done.json["ok"] is False
    assert done.json["problems"][0] | {"hint": None} == {
        "file": "bad.toml",
        "line": 2,
        "column": None,
        "key": "node.lissten",
        "message": "unknown key 'lissten' in [node]",
        "hint": None,
    }


def test_warnings_fail_a_strict_check_only(inline: Inline) -> None:
    loose = inline("check")  # no file at all is a warning
    assert loose.code == 0
    assert "warning: " in loose.out
    strict = inline("check", "--strict", "--json")
    assert (strict.code, strict.json["ok"]) == (1, False)
    assert any("no interlock.toml was found" in warning["message"] for warning in strict.json["warnings"])


def test_effective_prints_every_setting_and_hides_secrets(inline: Inline, tmp_path: Path) -> None:
    (tmp_path / "interlock.toml").write_text(
        '[servers.a]\nurl = "https://h/mcp"\nheaders = { Authorization = "s3cret" }\n'
    )
    for arguments in (("check", "--effective"), ("check", "--effective", "--json")):
        done = inline(*arguments)
        assert done.json["servers"]["a"]["url"] == "https://h/mcp"
        assert done.json["node"]["listen"] == "127.0.0.1:7411"
        assert "s3cret" not in done.out


def test_the_schema_of_the_file_is_json_schema(inline: Inline) -> None:
    assert "json-schema.org" in inline("check", "--schema").json["$schema"]


@pytest.mark.parametrize(
    "arguments",
    [("check", "--schema", "x.toml"), ("check", "a.toml", "--config", "b.toml"), ("check", "--schema", "--effective")],
)
def test_flags_that_contradict_each_other_are_wrong_usage(inline: Inline, arguments: tuple[str, ...]) -> None:
    assert inline(*arguments).code == 2


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"\xff\xfe", b"[", b"a = " + b"[" * 5000, b"x" * 2_000_000])
def test_a_file_of_nonsense_is_no_crash(inline: Inline, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.toml").write_bytes(content)
    done = inline("check", "odd.toml")
    assert done.code in (0, 1)
    assert done.err == ""


def test_a_missing_file_is_refused_by_every_verb_that_needs_it(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERLOCK_DATA")
    for arguments in (("check", "gone.toml"), ("serve", "--config", "gone.toml"), ("status", "--config", "gone.toml")):
        done = inline(*arguments)
        assert done.code == 1
        assert "gone.toml: " in done.out + done.err


def test_a_broken_configuration_is_refused_in_one_line(inline: Inline, tmp_path: Path) -> None:
    (tmp_path / "interlock.toml").write_text(BAD)
    done = inline("serve")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[0] == "error: interlock.toml:2: unknown key 'lissten' in [node] (and 2 more)"
    (tmp_path / "my file.toml").write_text(BAD)
    assert "interlock check 'my file.toml' shows every problem" in inline("serve", "--config", "my file.toml").err
    as_json = inline("serve", "--json").json
    assert as_json["error"] == "config_invalid"
    assert len(as_json["details"]["problems"]) == 3


SURFACE_CODES = """
-32700 -32600 -32602 -32603 -32020 -32021 -32022 -32601 tool_not_found -32001 -32002 32002 tool_degraded
subserver_unreachable link_busy own_links_full relisting device_absent -32003 32003 budget_exceeded 32110 32111
32112 32113
32114 32115 32116 32117 32118 32119 namespace_conflict namespace_invalid registration_cycle split_brain
authority_unverified authority_conflict session_unknown scope_denied route_mismatch link_insecure 32120 32121
32122 32123 32124 32125 confirmation_unknown confirmation_expired confirmation_used proof_invalid
confirmation_void confirmation_denied 32130 32131 32132 call_timeout unavailable
result_too_large message_too_large 32140 32141 surface_mismatch
specification_drift 32150 execution_refused execution_required unreported_action paused agent_blocked
VALIDATION_MISSING_PARAM VALIDATION_INVALID_TYPE VALIDATION_INVALID_VALUE VALIDATION_UNKNOWN_PARAM
VALIDATION_UNKNOWN_FIELD VALIDATION_INVALID_ENCODING VALIDATION_PAYLOAD_TOO_LARGE VALIDATION_ENDPOINT_MISMATCH
NOT_FOUND_OPERATION NOT_FOUND_RESOURCE PERMISSION_DENIED PERMISSION_TRUST_LEVEL_INSUFFICIENT
PERMISSION_DANGER_LEVEL_DENIED CONFIRMATION_REQUIRED CONFLICT_ALREADY_EXISTS CONFLICT_VERSION_MISMATCH
CONFLICT_INVALID_STATE RATE_LIMIT_EXCEEDED RATE_LIMIT_QUOTA_EXHAUSTED TOKEN_INVALID TOKEN_EXPIRED
TOKEN_ALREADY_USED TOKEN_SCOPE_MISMATCH INTERNAL_ERROR INVALID_QUERY_TYPE INTROSPECTION_ERROR
BATCH_VALIDATION_ERROR invalid_json invalid_envelope invalid_proposal invalid_chat unsupported_protocol
unknown_kind kind_not_allowed reserved_kind reserved_id unknown_privilege
secret_found from_mismatch duplicate_id envelope_too_large
rate_limited one_recipient not_proposer already_claimed proposal_expired privilege_violation self_promotion
topic_required wrong_topic unknown_topic room_full removed id_in_use bad_origin protocol_required 1001 1008 1009 1011
4401 4403 4409 4429 input_invalid input_unsupported contract_mismatch upstream_error output_parse_failed
auth_required auth_failed access_denied no_route pinned_provider_unavailable policy_violation region_mismatch
tool_unavailable egress_denied resource_uri_denied resource_unavailable ref_invalid internal self_approval
role_required proof_required task_unknown task_forgotten task_lost task_across_eras task_per_user too_many_tasks
node_stopping
"""


@pytest.mark.req("AIP-30.errors-1")
@pytest.mark.parametrize("code", sorted({*SURFACE_CODES.split(), *STANDARD}))
def test_every_public_code_is_explained(code: str) -> None:
    found = codes_for(code)
    assert found
    for one in found:
        assert one.means.endswith(".")
        assert one.next.endswith(".")
        assert one.whose.islower()


ERROR_CASES = (
    *(value for value in vars(operation).values() if isinstance(value, ErrorCase)),
    *(case for declared in OPERATIONS for case in declared.errors),
)


@pytest.mark.parametrize("code", sorted({case.name for case in ERROR_CASES}))
def test_every_code_of_the_operator_endpoint_is_explained(code: str) -> None:
    assert codes_for(code)


def test_every_key_leads_to_its_code() -> None:
    assert all(codes_for(key) for key in every_key())
    names = [code.name for code in every_code()]
    assert len(names) == len(set(names))


def test_explain_says_what_whose_and_next(interlock: Interlock) -> None:
    done = interlock("explain", "-32002")
    assert done.code == 0
    for word in ("tool_degraded", "resource_not_found", "means", "fault of", "next", "interlock status"):
        assert word in done.out
    as_json = interlock("explain", "TOOL-DEGRADED", "--json")
    assert [code["name"] for code in as_json.json["codes"]] == ["tool_degraded"]
    assert as_json.json["codes"][0]["numbers"] == [-32002, 32002]


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("-32130", "call_timeout"),
        ("32130", "call_timeout"),
        ("32700", "parse_error"),
        ("call_timeout", "call_timeout"),
        ("busy", "link_busy"),
        ("Device-Absent", "device_absent"),
    ],
)
def test_a_code_is_found_with_either_sign_and_by_the_words_only_it_has(inline: Inline, asked: str, name: str) -> None:
    done = inline("explain", asked, "--json")
    assert (done.code, done.err) == (0, "")
    assert [code["name"] for code in done.json["codes"]] == [name]


def test_a_sign_that_both_exist_with_is_kept() -> None:
    assert {code.name for code in codes_for("-32002")} - {code.name for code in codes_for("32002")}


def test_words_that_several_names_share_are_refused_with_all_of_them(inline: Inline) -> None:
    done = inline("explain", "expired")
    assert (done.code, done.out) == (1, "")
    assert "confirmation_expired" in done.err
    assert "proposal_expired" in done.err


@pytest.mark.req("AIP-30.errors-1")
def test_explain_all_has_every_code(inline: Inline) -> None:
    assert {code["name"] for code in inline("explain", "--all", "--json").json["codes"]} == {
        code.name for code in every_code()
    }
    drawn = inline("explain", "--all", COLUMNS="80").out
    assert all(code.name in drawn for code in every_code())


@pytest.mark.parametrize(
    ("code", "nearest"),
    [
        ("tool_degrade", "tool_degraded"),
        ("-32603000", "-32603"),
        ("32111111", "32111"),
        ("callTimeout", "call_timeout"),
    ],
)
def test_an_unknown_code_is_refused_with_the_nearest(inline: Inline, code: str, nearest: str) -> None:
    done = inline("explain", code)
    assert (done.code, done.out) == (1, "")
    assert nearest in done.err


@pytest.mark.parametrize("code", ["", "zzzzzzzz", "\x1b[2J", "9" * 10_000, "-", "--", "日本"])
def test_a_code_that_is_none_is_refused(inline: Inline, code: str) -> None:
    done = inline("explain", "--", code)
    assert (done.code, done.out) == (1, "")
    assert "\x1b" not in done.err


def test_explain_wants_one_code_or_all(inline: Inline) -> None:
    assert inline("explain").code == 2
    assert inline("explain", "--all", "internal").code == 2
    assert json.loads(inline("explain", "--json").out)["error"] == "usage"
