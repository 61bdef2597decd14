"""Is a node's place in the tree read right, and refused with the place of the mistake?"""

from pathlib import Path

import pytest

from interlock.config.effective import effective
from interlock.config.load import load
from interlock.config.plan import AxPlan, ChildPlan, ParentPlan, Plan
from interlock.config.problems import ConfigInvalid


def plan(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "interlock.toml"
    path.write_text(text)
    return load(path, {"HOME": str(tmp_path), "TOKEN": "ils_secret"}, {"data": str(tmp_path / "data")}).plan


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        plan(tmp_path, text)
    return str(caught.value)


def test_a_node_without_ax_keys_is_a_root_that_asks_proof_for_mutable_tools(tmp_path: Path) -> None:
    assert plan(tmp_path, "").ax == AxPlan()
    assert AxPlan().require_proof == "mutable"


def test_parents_and_children_are_read(tmp_path: Path) -> None:
    ax = plan(
        tmp_path,
        """
        [[ax.parents]]
        url = "wss://hub.example.com/ax"
        segment = "edge"
        secret = "${env:TOKEN}"
        authority = "dns:edge01.example.com"
        [[ax.parents]]
        url = "ws://127.0.0.1:9/ax"
        segment = "edge"
        [[ax.children]]
        command = "python leaf.py"
        segment = "leaf"
        """,
    ).ax
    assert ax.parents == (
        ParentPlan(
            url="wss://hub.example.com/ax", segment="edge", secret="ils_secret", authority="dns:edge01.example.com"
        ),
        ParentPlan(url="ws://127.0.0.1:9/ax", segment="edge"),
    )
    assert ax.children == (ChildPlan(command=("python", "leaf.py"), segment="leaf"),)


def test_a_parents_token_is_never_shown(tmp_path: Path) -> None:
    text = '[[ax.parents]]\nurl = "wss://hub.example.com/ax"\nsegment = "edge"\nsecret = "${env:TOKEN}"\n'
    shown = effective(plan(tmp_path, text))
    assert "ils_secret" not in str(shown)
    assert shown["ax"]["parents"][0]["segment"] == "edge"


def test_a_plaintext_parent_beyond_this_machine_is_refused_unless_something_else_protects_it(tmp_path: Path) -> None:
    text = '[[ax.parents]]\nurl = "ws://hub.example.com/ax"\nsegment = "edge"\n'
    assert "without TLS" in refused(tmp_path, text)
    assert plan(tmp_path, text + 'secure_by = "WireGuard"\n').ax.parents[0].secure_by == "WireGuard"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('url = "https://hub.example.com/ax"', "must begin with wss:// or ws://"),
        ('url = "wss://"', "must begin with wss:// or ws://"),
        ('url = "wss://user:pw@hub.example.com/ax"', "must have no credentials"),
        ('url = "wss://hub.example.com/ax?token=1"', "must have no credentials"),
        ("url = 7", "a URL"),
        ('url = "wss://hub/ax"\nsegment = "Edge"', "segment"),
        ('url = "wss://hub/ax"\nsegment = "rooms"', "rooms"),
        ('url = "wss://hub/ax"\nsegment = "e"\nauthority = "edge01.example.com"', 'after "dns:"'),
        ('url = "wss://hub/ax"\nsegment = "e"\nauthority = "dns:*.example.com"', 'after "dns:"'),
        ('url = "wss://hub/ax"\nsegment = "e"\nsecrets = "x"', "did you mean 'secret'?"),
        ('segment = "e"', "needs 'url'"),
    ],
)
def test_a_wrong_parent_is_refused_with_its_place(tmp_path: Path, line: str, says: str) -> None:
    said = refused(tmp_path, f"[[ax.parents]]\n{line}\n")
    assert says in said
    assert "interlock.toml:" in said


@pytest.mark.parametrize(
    "line", ["notify_per_s = 0", "max_hops = 0", 'require_proof = "maybe"', "heartbeat_min_ms = 1"]
)
def test_values_out_of_bounds_are_refused(tmp_path: Path, line: str) -> None:
    assert line.split(" ")[0] in refused(tmp_path, f"[ax]\n{line}\n")


def test_a_child_has_no_root_segment_of_its_own(tmp_path: Path) -> None:
    text = '[ax]\nroot_segment = "infra"\n[[ax.parents]]\nurl = "wss://hub.example.com/ax"\nsegment = "edge"\n'
    assert "'root_segment' in [ax] names a root" in refused(tmp_path, text)


def test_a_command_that_starts_nothing_needs_no_secret_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "interlock.toml"
    path.write_text('[[ax.parents]]\nurl = "wss://hub.example.com/ax"\nsegment = "e"\nsecret = "${env:NOT_SET}"\n')
    env, flags = {"HOME": str(tmp_path)}, {"data": str(tmp_path / "data")}
    assert load(path, env, flags, starting=False).plan.data == tmp_path / "data"
    with pytest.raises(ConfigInvalid, match="NOT_SET"):
        load(path, env, flags)
