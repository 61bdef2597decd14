"""Is every command that Interlock suggests of use where it is suggested?

Each is run once with everything that it can be about: a real node with a server, a server that is gone, a subserver, a
held call, drivers that are ready, new and broken. A suggestion that is new has to be given its arguments here.
"""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.program import Finished, Interlock
from tests.cli.suggestions import Suggestion, resolve, suggestions
from tests.operator.operator_tree import OperatorTree, running_tree, until

PASSPHRASE = {"INTERLOCK_PASSPHRASE": "correct horse battery"}
BY_SKELETON: dict[str, Suggestion] = {one.skeleton: one for one in suggestions() if resolve(one.words)[1] is not None}

# What stands for the placeholders, by the verb.
ARGUMENTS: dict[str, str] = {
    "access anchor": "--speaks-for us.example.com",
    "access key": "bob",
    "access key --show": "ada --show",
    "access token --for --name": "--for client --name laptop",
    "agents unblock": "coder",
    "approvals": "show HELD",
    "approvals --json": "show HELD --json",
    "approvals --kind": "--kind definition",
    "approvals --watch": "--watch",
    "approve": "HELD --key ada --yes",
    "approve --reason": "HELD --reason WHY --key ada --yes",
    "approve --standing": "HELD --standing --key ada --yes",
    "deny": "HELD",
    "deny --reason": "HELD --reason WHY",
    "drivers allow": "ready-mcp api.example.com",
    "drivers show": "ready-mcp",
    "drivers trust": "new-mcp --yes",
    "drivers update": "ready-mcp --yes",
    "explain": "confirmation_required",
    "export client --for": "--for cursor",
    "export driver --upstream": "ready-mcp --upstream",
    "grants revoke": "GRANT",
    "links logs": "gone",
    "links release": "leaf",
    "links restart": "greenhouse",
    "links restart --authorize": "greenhouse --authorize",
    "names show": "org_alter_ingest",
    "rooms migrate --apply": "yard --apply",
    "rooms show": "yard",
    "secrets adopt": "ready-mcp",
    "secrets remove": "some-key",
    "secrets remove --kind": "other-key --kind secret",
    "secrets set": "some-key",
    "secrets set --for": "some-key --for api.example.com",
    "status": "greenhouse",
    "status --json": "greenhouse --json",
    "tools call --arg": "leaf.look --arg bench=1",
    "tools call --json": "leaf.look --arg bench=1 --json",
    "tools classify": "leaf.tidy",
    "tools show": "leaf.look",
}
# What a command rightly says no to here, and with which word. Everything else ends with 0.
REFUSED = {
    "agents unblock": "no agent coder is blocked",
    "check": "frontmatter_invalid",
    "check --effective": "frontmatter_invalid",
    "doctor": "fix:",
    "drivers update": "",
    "links restart --authorize": "",
    "secrets adopt": "",
    "links release": "",
}
# What needs a place of its own, and is run in tests of its own.
ELSEWHERE = {
    "add": "tests/drivers/processes/test_cli_add.py",
    "add --tools": "tests/drivers/processes/test_cli_add.py",
    "import": "tests/interop/processes/test_cli_import.py",
    "init": "test_init_where_nothing_is",
    "access passkey": "tests/approvals/processes/test_gate_browser.py",
    "approve --class": "tests/approvals/processes/test_gate_definitions.py",
    "approve --code": "tests/operator/processes/console/test_first_visit.py",
    "approvals --code": "tests/safety/processes/test_safety_loop_processes.py",
    "serve": "test_init_where_nothing_is",
    "status --url": "tests/operator/in_process/test_operator_door.py",
    "discover": "tests/drivers/in_process/test_cli_discover.py",
    "discover --add": "tests/drivers/in_process/test_cli_discover.py",
    "device monitor": "tests/devices/processes/test_profile_a.py",
    "names attach": "tests/names/processes/test_names_commands.py",
    "names request --from": "tests/names/processes/test_names_commands.py",
    "names sign --controller --key": "tests/names/processes/test_names_commands.py",
    "names repin": "tests/names/processes/test_names_held_to.py",
    "open": "tests/operator/processes/test_login.py",
    "open --print": "tests/operator/processes/test_login.py",
    "serve --stdio": "tests/node/processes/test_cli_serve.py",
    "serve --accept-configuration": "tests/approvals/processes/test_guarded_starts.py",
    "rooms create": "tests/rooms/processes/test_room_gateway.py",
    "rooms demote": "tests/rooms/processes/test_room_gateway.py",
    "rooms promote --topic": "tests/rooms/processes/test_room_persistence.py",
    "access token --for --name --participant --topic": "tests/rooms/processes",
    "access token --for --name --participant --privilege --topic": "tests/rooms/processes",
    "access certificate --renew": "tests/ax/processes/test_client_certificates.py",
    "tools classify --json": "tests/approvals/processes/test_cli_approvals.py",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorTree]:
    interlock = Interlock(tmp_path_factory.mktemp("suggested"))
    made = interlock("access", "key", "ada", "--approves", "greenhouse.*", **PASSPHRASE)
    assert made.code == 0, made.err
    with running_tree(interlock, f"\n{made.out}") as tree:
        yield tree


def filled(tree: OperatorTree, skeleton: str) -> list[str]:
    path, _, rest = resolve(BY_SKELETON[skeleton].words)
    words = shlex.split(ARGUMENTS[skeleton]) if skeleton in ARGUMENTS else list(rest)
    known = {"HELD": held_call, "GRANT": made_grant}
    return [*path, *(known[word](tree) if word in known else word for word in words)]


LITRES = itertools.count(1)  # no grant covers a larger number than it was signed for


def held_call(tree: OperatorTree) -> str:
    said = tree.interlock("tools", "call", "greenhouse.water_beds", "--arg", f"litres={next(LITRES)}")
    found = re.search(r"interlock approve ([0-9a-f-]+)", said.out + said.err)
    assert found, said.out + said.err
    return found[1]


def made_grant(tree: OperatorTree) -> str:
    made = tree.interlock("approve", held_call(tree), "--standing", "--key", "ada", "--yes", **PASSPHRASE)
    assert made.code == 0, made.err
    return str(tree.interlock("grants", "list", "--json").json["grants"][0]["terms"]["id"])


def run(tree: OperatorTree, words: list[str]) -> Finished:
    if "--watch" not in words:
        return tree.interlock(*words, stdin="hush\n", **PASSPHRASE)
    held_call(tree)
    with tree.interlock.start(*words) as running:
        running.next_line()
        return running.interrupt()


@pytest.mark.parametrize("skeleton", sorted(BY_SKELETON.keys() - ELSEWHERE.keys()))
def test_a_suggested_command_does_what_it_is_suggested_for(tree: OperatorTree, skeleton: str) -> None:
    words = filled(tree, skeleton)
    if words[:2] == ["secrets", "remove"]:
        assert tree.interlock("secrets", "set", words[2], stdin="x\n").code == 0
    done = run(tree, words)
    said = f"{words}: {done.code}\n{done.out}\n{done.err}"
    assert "inside Interlock" not in done.err, said
    if skeleton in REFUSED:
        assert done.code in (0, 1), said
        assert REFUSED[skeleton] in done.err + done.out, said
    else:
        assert done.code == 0, said


def test_the_audit_log_says_which_key_signed_and_groups_what_repeats(tree: OperatorTree) -> None:
    held = held_call(tree)
    assert tree.interlock("approve", held, "--key", "ada", "--yes", **PASSPHRASE).code == 0
    for _ in range(3):
        tree.interlock("tools", "call", "leaf.look", "--arg", "bench=1")
    until(lambda: "leaf.look (×" in tree.interlock("audit", "tail", "-n", "6", COLUMNS="200").out)
    lines = tree.interlock("audit", "tail", "-n", "50", COLUMNS="200").lines
    assert any("approvals/approve" in line and "signed with key ada" in line for line in lines), lines


def test_no_command_is_excused_that_is_not_suggested() -> None:
    assert REFUSED.keys() | ARGUMENTS.keys() | ELSEWHERE.keys() <= BY_SKELETON.keys()


def test_init_where_nothing_is(interlock: Interlock) -> None:
    """The advice of a first start, followed: init, check, serve, then what is there already."""
    assert "interlock init" in interlock("check").out + interlock("check").err
    first = interlock("init", **PASSPHRASE)
    assert first.code == 0, first.err
    config = interlock.folder / "interlock.toml"
    text = config.read_text().replace("127.0.0.1:7411", "127.0.0.1:0").replace("127.0.0.1:7412", "127.0.0.1:0")
    config.write_text(re.sub(r"(?ms)^\[servers\..*?(?=^# More|^\[\[)", "", text))
    for suggested in re.findall(r"^  interlock (\w+)", first.out, re.MULTILINE):
        if suggested == "serve":
            with interlock.start("serve") as node:
                while "Ctrl-C" not in node.next_line():
                    pass
        else:
            assert interlock(suggested).code == 0
    again = interlock("init", **PASSPHRASE)
    assert (again.code, "is already there" in again.err) == (1, True)
    assert "--force writes over it" in again.err
    assert interlock("init", "--force", **PASSPHRASE).code == 0


@pytest.mark.parametrize("place", [one for one in ELSEWHERE.values() if one.startswith("tests/")])
def test_tests_that_run_examples_elsewhere_exist(place: str) -> None:
    assert (Path(__file__).resolve().parents[3] / place).exists()
