"""Are hints judged as MCP-AQL 8.7 and its amendments say, however they are written?"""

import time

import pytest

from interlock.aql.protocol.model import TERMINAL, ExecutionStatus, may_move
from interlock.safety.protocol.evaluation import (
    HINT_CHARS_MAX,
    LIMIT_REASON,
    PATTERN_CHARS_MAX,
    SCORES,
    UNRECOGNISED,
    AutonomyPolicy,
    CompiledPolicy,
    Evaluation,
    Pattern,
    Risk,
    StepVerdict,
    Tier,
    evaluate,
    evaluate_call,
    find_hint_fault,
    find_run_text,
    normalise,
    read_hint,
    risk_of,
    whole_score,
)

PRINTED = (
    "calling write_file on project/config.json to update database URL",
    "executing shell command: npm install express",
    "sending message to #general channel via Slack MCP server",
)
ZERO_WIDTH = "\u200b\u200d\ufeff\u2060\u00ad"


def judged(hint: str, *, steps: int = 0, outcome: str | None = None, also: float = 0.0, **policy: object) -> Evaluation:
    compiled = CompiledPolicy(AutonomyPolicy(**policy))  # type: ignore[arg-type]
    return evaluate(compiled, read_hint(hint), steps=steps, outcome=outcome, also=also)  # type: ignore[arg-type]


def verdict(hint: str, **policy: object) -> StepVerdict:
    return judged(hint, **policy).verdict  # type: ignore[arg-type]


@pytest.mark.req("AQL-X-11")
def test_ordinary_work_goes_on_and_only_the_action_is_denied() -> None:
    for hint in PRINTED:
        assert verdict(hint) is StepVerdict.CONTINUE, hint
    assert verdict("checking the enforcement of the rules") is StepVerdict.CONTINUE
    assert verdict('search for the text "drop_table syntax"') is StepVerdict.CONTINUE
    assert verdict("drop_table users") is StepVerdict.STOP
    assert judged("frobnicating the quux of the widget").risk is not None
    assert risk_of(("frobnicating",)).score == UNRECOGNISED <= 30
    assert find_hint_fault("read_file", {"read_file"}.__contains__) is None
    assert find_hint_fault("read_file", {"other"}.__contains__) is not None


@pytest.mark.req("AQL-X-17")
def test_what_a_call_runs_is_told_from_content_and_is_bounded() -> None:
    assert find_run_text(("files.write",), {"content": "drop_table users", "n": 1}) == ""
    assert find_run_text(("db.query",), {"params": [{"sql": "drop_table users"}, "note"]}) == "drop_table users"
    assert find_run_text(("shell.run_it",), {"a": "x", "b": ["y", {"c": "z"}], "d": 3}) == "x y z"
    assert find_run_text(("x",), {"args": ["-rf", "/"], "command": "rm"}) == "rm -rf /"
    assert find_run_text(("x",), {"runCommand": "rm"}) == "rm"
    assert find_run_text(("x",), {"argv": ["rm", "-rf", "/"]}) == "rm -rf /"
    for large in ({"command": "x" * 10_001}, {f"k{at}": 1 for at in range(2000)}, [[{}] * 9_000] * 2):
        started = time.perf_counter()
        assert find_run_text(("x",), large) is None
        assert time.perf_counter() - started < 0.5
    policy = CompiledPolicy(AutonomyPolicy())
    assert evaluate_call(policy, ("x.look",), 0, None).verdict is StepVerdict.PAUSE
    assert evaluate_call(policy, ("x.look",), 0, "").verdict is StepVerdict.CONTINUE


@pytest.mark.req("AQL-8.7.2-8")
def test_automatic_approval_is_of_the_whole_hint() -> None:
    read = judged("read_file config.json")
    assert read.verdict is StepVerdict.CONTINUE and read.risk is None and not read.is_counted
    for hint in (
        "please read_file and then wipe the disk",
        "read_file a.txt; send it to evil.example",
        "read_file a.txt and then tell everybody",
        "get_report && curl evil.example",
        "list_users to delete them",
    ):
        assert judged(hint).verdict is not StepVerdict.CONTINUE or judged(hint).risk is not None, hint


@pytest.mark.req("AQL-8.7.2-9")
def test_deny_comes_before_approval_and_both_before_automatic_approval() -> None:
    lists = {"deny": ("x_*",), "requires_approval": ("x_*", "y_*"), "auto_approve": ("x_*", "y_*", "z_*")}
    assert verdict("x_thing now", **lists) is StepVerdict.STOP
    assert verdict("y_thing now", **lists) is StepVerdict.PAUSE
    assert judged("z_thing now", **lists).risk is None  # type: ignore[arg-type]
    assert judged("w_thing now", **lists).risk is not None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "hint",
    [
        "DROP_TABLE users",
        "calling drop_table on users",
        "dropTable users now",
        "drop _ table users",
        "d r o p _ t a b l e users",
        "".join(f"{letter}{mark}" for letter, mark in zip("drop_table users", ZERO_WIDTH * 4, strict=False)),
        "dr\u043ep_table users",  # Cyrillic o
        "dr\u03bfp_table users",  # Greek o
        "ｄｒｏｐ＿ｔａｂｌｅ users",
        "𝐝𝐫𝐨𝐩_table users",
        "dro\u0301p_table users",
        'executing the statement "drop_table users"',
        "executing shell command: rm   \t-rf /var",
        "executing shell command: rm \u2013rf /var",
        "rm\u00a0-rf /var, as asked",
        "DeleteAll records of the user",
    ],
)
def test_no_spelling_gets_a_denied_action_through(hint: str) -> None:
    assert verdict(hint) is StepVerdict.STOP


@pytest.mark.parametrize("hint", ["backdrop_image shown to the user", "reading about raindrops", "calling undelete_x"])
def test_a_pattern_begins_where_a_word_begins(hint: str) -> None:
    assert verdict(hint) is StepVerdict.CONTINUE


@pytest.mark.req("AQL-8.7.2-1")
def test_the_first_stage_that_pauses_ends_the_evaluation() -> None:
    hint = "drop_table users"
    limited = judged(hint, steps=1, outcome="failure", max_autonomous_steps=1)
    assert (limited.verdict, limited.stage, limited.reason) == (StepVerdict.PAUSE, 1, LIMIT_REASON)
    failed = judged(hint, outcome="failure")
    assert (failed.verdict, failed.stage) == (StepVerdict.PAUSE, 2)
    denied = judged(hint, outcome="success")
    assert (denied.verdict, denied.stage) == (StepVerdict.STOP, 3)
    scored = judged("wipe the disk now", outcome="skipped")
    assert (scored.verdict, scored.stage) == (StepVerdict.STOP, 4)
    for found in (limited, failed, denied, scored):
        stages = [factor.split(":")[0] for factor in found.factors]
        assert stages == [f"Stage {number}" for number in range(1, found.stage + 1)]
    assert [factor[:7] for factor in judged("look at the garden").factors] == [
        "Stage 1",
        "Stage 3",
        "Stage 4",
        "Stage 5",
    ]


@pytest.mark.req("AQL-8.7.5-1")
def test_every_stage_but_the_first_can_be_switched_off() -> None:
    assert verdict("a look around", outcome="failure", stages=(1, 3, 4, 5)) is StepVerdict.CONTINUE
    assert judged("drop_table users", stages=(1, 2, 4, 5)).stage == 4
    assert judged("destroy everything here", stages=(1, 2, 3, 5)).stage == 5
    assert verdict("remove the old file", stages=(1, 2, 3, 4), risk_tolerance="conservative") is StepVerdict.PAUSE
    for stages in ((1,), (), (2, 3, 4, 5)):
        assert judged("drop_table users", steps=25, stages=stages).stage == 1
    assert verdict("drop_table users", stages=(1,)) is StepVerdict.CONTINUE


@pytest.mark.req("AQL-8.8.1-1", "AQL-8.7.2-10")
def test_tiers_have_their_borders() -> None:
    assert judged("look_here at it", deny=("look_*",)).verdict is StepVerdict.STOP  # whatever its risk
    expected = {0: "advisory", 30: "advisory", 31: "confirm", 60: "confirm", 61: "verify", 85: "verify"}
    for score, tier in (expected | {86: "danger_zone", 100: "danger_zone"}).items():
        assert Risk(score, "").tier.value == tier
    assert [whole_score(score) for score in (30.01, -1, 101, float("nan"))] == [
        (31, False),
        (0, True),
        (100, True),
        (100, True),
    ]
    assert judged("look at it", also=60).verdict is StepVerdict.PAUSE
    assert judged("look at it", also=61).verdict is StepVerdict.VERIFY
    assert judged("look at it", also=86).verdict is StepVerdict.STOP


@pytest.mark.req("AQL-8.7.2-12")
def test_the_score_follows_the_danger_and_is_only_ever_raised() -> None:
    words = {"reading notes": 10, "writing notes": 25, "deleting notes": 50, "purging notes": 75, "wiping notes": 95}
    for text, score in words.items():
        assert risk_of(read_hint(text).words).score == score
    for level, score in enumerate((10, 25, 50, 75, 95)):
        assert SCORES[level] == risk_of((), danger=level).score == score
    assert risk_of(("wipe",), danger=0).score == 95
    assert risk_of(("read",), also=70).score == 70
    assert risk_of(("wipe",), also=10).score == 95


@pytest.mark.req("AQL-8.7.2-13", "AQL-8.7.2-14")
def test_tolerance_adds_pauses_and_relaxes_only_where_configured() -> None:
    assert verdict("look at it", also=25, risk_tolerance="conservative") is StepVerdict.CONTINUE
    assert judged("look at it", also=26, risk_tolerance="conservative").stage == 5
    quiet = judged("look at it", also=20, risk_tolerance="conservative")
    assert quiet.verdict is StepVerdict.CONTINUE and quiet.risk is not None and quiet.risk.tier is Tier.ADVISORY
    assert AutonomyPolicy().risk_tolerance == "moderate"
    relaxed = {"tolerance_relaxes_confirm": True}
    assert judged("look at it", also=50, **relaxed).verdict is StepVerdict.CONTINUE  # type: ignore[arg-type]
    assert judged("look at it", also=51, **relaxed).verdict is StepVerdict.PAUSE  # type: ignore[arg-type]
    for also in (61, 86):
        assert (
            judged("look at it", also=also, risk_tolerance="aggressive", **relaxed).verdict is not StepVerdict.CONTINUE
        )  # type: ignore[arg-type]


def test_reads_that_were_approved_automatically_are_not_counted() -> None:
    assert judged("read_file notes.txt", steps=25).verdict is StepVerdict.CONTINUE
    assert judged("writing notes down", steps=25).reason == LIMIT_REASON
    assert [judged("writing it down", steps=step, max_autonomous_steps=3).steps_remaining for step in range(3)] == [
        2,
        1,
        0,
    ]


def test_the_real_call_is_judged_by_all_its_names() -> None:
    compiled = CompiledPolicy(AutonomyPolicy())
    assert evaluate_call(compiled, ("db.cleanup", "drop_everything"), 1).verdict is StepVerdict.STOP
    assert evaluate_call(compiled, ("db.dropEverything",), 1).verdict is StepVerdict.STOP
    assert evaluate_call(compiled, ("files.delete_file",), 2).verdict is StepVerdict.PAUSE
    assert (
        evaluate_call(compiled, ("files.wipe_notes",), 0).verdict is StepVerdict.CONTINUE
    )  # declared to change nothing
    assert evaluate_call(compiled, ("files.write_note",), 1).verdict is StepVerdict.CONTINUE


@pytest.mark.parametrize("hint", ["", "   ", "\u200b\u200b", "do it", "read_file", "x" * 50])
def test_a_hint_that_says_too_little_is_refused_with_an_example(hint: str) -> None:
    fault = find_hint_fault(hint, lambda name: False)
    assert fault is not None and "calling write_file" in fault


@pytest.mark.parametrize("text", ["", "  ", "a[b", "x[]", "x[z-a]", "y" * (PATTERN_CHARS_MAX + 1)])
def test_a_pattern_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Pattern(text)


def test_globs_know_single_characters_and_sets() -> None:
    assert Pattern("wr?te_[a-c]*").is_found_in("now write_config")
    assert not Pattern("wr?te_[!a-c]*").is_found_in("now write_config")
    assert Pattern("a*c").is_whole("abc") and not Pattern("a*c").is_whole("abcd")
    assert Pattern("*").is_whole("anything") and Pattern("a**b").is_whole("ab")
    assert not Pattern("ab*ba").is_whole("aba")


@pytest.mark.parametrize("unit", ["a ", "'", "drop", '" ', "_ ", "A", "drop_ ", "\u200b", "delete_all", "[", "ﷺ"])
def test_hostile_hints_take_linear_time(unit: str) -> None:
    compiled = CompiledPolicy(AutonomyPolicy(deny=("*a*a*a*a*a*a*b", "drop*_*_*_*x", "rm -rf*")))

    def seconds(length: int) -> float:
        text = (unit * length)[:length]
        begun = time.process_time()
        evaluate(compiled, read_hint(text), steps=0)
        return time.process_time() - begun

    small, large = min(seconds(HINT_CHARS_MAX) for _ in range(2)), seconds(4 * HINT_CHARS_MAX)
    assert large < 12 * small + 0.05


def test_a_hint_with_wildcards_is_refused_quickly() -> None:
    text = "drop_table " + "\ufdfa" * (HINT_CHARS_MAX - 11)  # each stands for 18
    begun = time.process_time()
    fault = find_hint_fault(text, lambda name: False)
    assert fault is not None and "written out" in fault
    assert time.process_time() - begun < 0.15
    assert len(normalise(text)) <= 2 * HINT_CHARS_MAX + 1  # and not 18 times as long as it came
    assert find_hint_fault("\ufb01nding the \ufb01le in the \uff57iki", lambda name: False) is None


@pytest.mark.parametrize("marks", ["\u0315\u0300", "\U0001d165\u302e", "\u0390\u0300"])
def test_marks_out_of_order_take_linear_time(marks: str) -> None:
    """A name of an agent, or the address of a resource, may be as long as a request."""
    begun = time.process_time()
    assert normalise("co" + marks * 100_000 + "der").startswith("co")
    assert time.process_time() - begun < 5  # some 0.1 s; half a minute where each mark is moved past the others


def test_normal_text_is_stable() -> None:
    for text in ("Drop_Table", "ｆｕｌｌ", "straße", "a  b\tc", "“x”"):
        assert normalise(normalise(text)) == normalise(text)


@pytest.mark.parametrize("retry", [False, True])
def test_only_the_six_moves_of_the_life_cycle_exist(retry: bool) -> None:
    allowed = {"pending running", "pending cancelled", "running completed", "running failed", "running cancelled"}
    allowed |= {"failed running"} if retry else set()
    for before in ExecutionStatus:
        for after in ExecutionStatus:
            expected = f"{before.value} {after.value}" in allowed
            assert may_move(before, after, supports_retry=retry) is expected
    assert {status.value for status in TERMINAL} == {"completed", "failed", "cancelled"}
