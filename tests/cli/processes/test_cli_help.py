"""Can a person find out how a command is used, and does starting one cost only what it needs?"""

import json
import re
import subprocess
import sys

import pytest
from tests.cli.program import Inline, Interlock

from interlock.cli.app import OTHER_NUMBER, VERBS

NAMES = [
    (),
    *(
        (word,)
        for word in ("list", "show", "check", "verify", "request", "amend", "deprecate", "reinstate", "withdraw")
    ),
    *((word,) for word in ("transfer", "confirm-public", "declare", "end", "consent", "dispute", "cancel", "publish")),
    *((word,) for word in ("import", "trust", "repin")),
]
COMMANDS = [
    ("init",),
    ("serve",),
    ("check",),
    ("status",),
    ("tools",),
    ("tools", "list"),
    ("tools", "show"),
    ("tools", "call"),
    ("tools", "routes"),
    ("tools", "where"),
    ("tools", "classify"),
    ("open",),
    ("approvals",),
    ("approve",),
    ("deny",),
    *(("grants", word) for word in ("list", "show", "sign", "revoke")),
    ("links",),
    ("links", "list"),
    ("links", "logs"),
    ("links", "restart"),
    ("device",),
    ("device", "simulate"),
    ("device", "monitor"),
    ("drivers",),
    ("drivers", "list"),
    ("drivers", "show"),
    ("drivers", "trust"),
    ("drivers", "allow"),
    ("drivers", "test"),
    ("drivers", "update"),
    ("drivers", "remove"),
    ("packages",),
    ("packages", "list"),
    ("packages", "prune"),
    ("secrets",),
    ("secrets", "list"),
    ("secrets", "set"),
    ("secrets", "remove"),
    ("secrets", "adopt"),
    ("agents",),
    ("agents", "list"),
    ("agents", "unblock"),
    *(("names", *word) for word in NAMES),
    ("rooms",),
    ("rooms", "list"),
    ("rooms", "create"),
    ("rooms", "show"),
    ("rooms", "join"),
    ("rooms", "promote"),
    ("rooms", "demote"),
    ("rooms", "disconnect"),
    ("rooms", "migrate"),
    ("skills",),
    ("skills", "list"),
    ("skills", "show"),
    ("add",),
    ("import",),
    ("export",),
    ("export", "client"),
    ("export", "driver"),
    ("access",),
    ("access", "token"),
    ("access", "list"),
    ("access", "revoke"),
    ("access", "anchor"),
    ("access", "key"),
    ("access", "certificate"),
    ("audit",),
    ("audit", "tail"),
    ("audit", "verify"),
    ("audit", "export"),
    ("discover",),
    ("explain",),
    ("doctor",),
    ("version",),
]
GROUPS = {
    ("tools",),
    ("links",),
    ("device",),
    ("drivers",),
    ("packages",),
    ("secrets",),
    ("skills",),
    ("agents",),
    ("rooms",),
    ("names",),
    ("export",),
    ("access",),
    ("audit",),
}


def test_the_list_above_holds_every_verb() -> None:
    assert {command[0] for command in COMMANDS} == set(VERBS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples_and_fits_eighty_columns(inline: Inline, command: tuple[str, ...]) -> None:
    done = inline(*command, "--help", COLUMNS="80")
    assert done.code == 0
    out = done.out
    examples = out.partition("Examples:")[2].splitlines()
    assert any(" ".join(("interlock", *command)) in line for line in examples), out
    assert max(map(len, out.splitlines())) <= 80
    assert "..." not in out.partition("Commands:")[2].partition("Examples:")[0]
    if command not in GROUPS:
        for option in ("--config", "--data", "--url", "--json"):
            assert option in out


def test_the_first_help_lists_every_verb_with_a_whole_sentence(interlock: Interlock) -> None:
    done = interlock("--help", COLUMNS="80")
    assert done.code == 0
    for verb in VERBS:
        assert re.search(rf"^  {verb} +[A-Z].*\.$", done.out, re.MULTILINE), verb
    assert max(map(len, done.lines)) <= 80


def test_without_a_verb_the_help_is_shown_as_an_error(interlock: Interlock) -> None:
    done = interlock()
    assert (done.code, done.out) == (2, "")
    assert "Start here:" in done.err


@pytest.mark.parametrize(("other", "usual"), OTHER_NUMBER.items())
def test_nouns_may_be_singular_or_plural(inline: Inline, other: str, usual: str) -> None:
    assert inline(other, "--help").out == inline(usual, "--help").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sttus",), "did you mean 'status'"),
        (("status", "--jso"), "no such option"),
        (("tools",), "Usage: interlock tools"),
        (("tools", "lst"), "did you mean 'list'"),
        (("tools", "show"), "missing argument"),
        (("links", "logs", "time", "-n", "0"), "invalid value"),
        (("links", "logs", "time", "-n", "many"), "invalid value"),
        (("access", "token", "--for", "burglar", "--name", "x"), "invalid value"),
        (("access", "token", "--for", "client"), "missing option"),
        (("audit", "export", "--format", "xml"), "invalid value"),
        (("version", "surplus"), "unexpected extra argument"),
    ],
)
def test_wrong_usage_exits_2_with_one_line_and_a_hint(inline: Inline, arguments: tuple[str, ...], said: str) -> None:
    done = inline(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said.lower() in done.err.lower()
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--json", "status"), "interlock status --json"),
        (("--config", "x.toml", "status"), "interlock status --json"),
        (("tools", "--data", "x", "list"), "interlock tools list --json"),
    ],
)
def test_an_option_before_its_verb_is_reported_with_its_place(
    inline: Inline, arguments: tuple[str, ...], hint: str
) -> None:
    done = inline(*arguments)
    assert done.code == 2
    assert "comes after the verb" in done.out + done.err
    assert hint in done.out + done.err


def test_wrong_usage_is_reported_in_one_line(inline: Inline) -> None:
    assert len(inline("access", "token").err.splitlines()) == 2
    assert "\n" not in inline("access", "token", "--json").json["message"]


def test_wrong_usage_with_json_is_an_error_object(interlock: Interlock) -> None:
    done = interlock("status", "--nonsense", "--json")
    assert (done.code, done.err) == (2, "")
    assert done.json["error"] == "usage"
    assert done.json["details"]["hint"] == "interlock status --help"


def test_version_is_one_line_or_json(interlock: Interlock) -> None:
    assert re.fullmatch(r"interlock \d+\.\d+\.\d+ \(Python [\d.]+, .+\)\n", interlock("version").out)
    done = interlock("version", "--json")
    assert set(done.json) == {"version", "python", "platform"}
    assert interlock("--version").out == f"interlock {done.json['version']}\n"


@pytest.mark.parametrize("verb", ["version", "status", "explain"])
def test_a_verb_imports_only_what_it_needs(interlock: Interlock, verb: str) -> None:
    """`version` draws and asks nothing; listing --help of a verb must not pay for its work either."""
    arguments = [verb] if verb == "version" else [verb, "--help"]
    program = (
        "import json, sys\n"
        "from interlock.cli.app import run\n"
        f"run({arguments!r})\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=interlock.env, capture_output=True, text=True, timeout=20, check=True
    )
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    heavy = {"rich", "rich.console", "starlette", "uvicorn", "asyncio", "http.client", "sqlite3", "ssl"}
    assert loaded & heavy == set()
    own_module = VERBS[verb].app.partition(":")[0]
    modules = {other.app.partition(":")[0] for other in VERBS.values()}
    assert modules & loaded == {own_module}


def completions(interlock: Interlock, line: str) -> list[str]:
    words = line.split(" ")
    done = interlock(_INTERLOCK_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    return done.out.split()


def test_the_shell_completes_verbs_options_and_names_of_the_running_node(interlock: Interlock, node) -> None:
    assert completions(interlock, "interlock sta") == ["status"]
    assert completions(interlock, "interlock tools r") == ["routes"]
    assert "--watch" in completions(interlock, "interlock status --w")
    assert completions(interlock, "interlock status ti") == ["time"]
    assert completions(interlock, "interlock tools call time.c") == ["time.convert_time"]
    assert completions(interlock, "interlock explain confirmation_v") == ["confirmation_void"]


def test_completion_without_a_node_offers_nothing_and_says_nothing(interlock: Interlock) -> None:
    done = interlock(_INTERLOCK_COMPLETE="complete_bash", COMP_WORDS="interlock status x", COMP_CWORD="2")
    assert (done.out.strip(), done.err) == ("", "")


def test_a_completion_script_can_be_printed_for_a_shell(interlock: Interlock) -> None:
    done = interlock(_INTERLOCK_COMPLETE="source_bash")
    assert "_INTERLOCK_COMPLETE=complete_bash" in done.out
