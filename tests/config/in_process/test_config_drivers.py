"""Is what stands beside driver files read right, and nonsense refused with the place of the mistake?"""

import pytest
from tests.config.config_project import Project

from interlock.config.difference import differences
from interlock.config.effective import effective
from interlock.config.plan import DriversPlan, PolicyPlan


def test_without_a_word_drivers_are_checked_at_once_sandboxed_and_trusted_by_nobody(project: Project) -> None:
    plan = project.load("").plan.drivers
    assert plan == DriversPlan(own=project.user_file.parent / "drivers")
    assert (plan.registration, plan.idle_timeout_s, plan.on_mismatch) == ("eager", 300, "reject")
    assert not (plan.sandbox or plan.trust_workspace or plan.allow_unverified_install or plan.npx or plan.dev)


def test_every_key_is_read(project: Project) -> None:
    plan = project.load(
        """
        [drivers]
        paths = ["shared", "~/drivers"]
        registration = "lazy"
        idle_timeout_s = 5
        on_mismatch = "drop_binding"
        sandbox = { old-mcp = "off" }
        insecure_hosts = ["mcp.lan", "[fd00::1]"]
        ca_file = "ca.pem"
        region = "EU"
        policy = { allow = ["self-hosted"], deny = ["third-party-api"] }
        pins = { "fs.read" = "filesystem-mcp", "fs.write" = "other-mcp@2" }
        trust_workspace = true
        allow_unverified_install = true
        npx = true
        dev = true
        """
    ).plan
    assert plan.drivers == DriversPlan(
        paths=(project.folder / "shared", project.home / "drivers"),
        own=project.user_file.parent / "drivers",
        registration="lazy",
        idle_timeout_s=5,
        on_mismatch="drop_binding",
        sandbox={"old-mcp": "off"},
        insecure_hosts=("mcp.lan", "[fd00::1]"),
        ca_file=project.folder / "ca.pem",
        region="EU",
        policy=PolicyPlan(allow=("self-hosted",), deny=("third-party-api",)),
        pins={"fs.read": "filesystem-mcp", "fs.write": "other-mcp@2"},
        trust_workspace=True,
        allow_unverified_install=True,
        npx=True,
        dev=True,
    )
    shown = effective(plan)["drivers"]
    assert shown["policy"] == {"allow": ["self-hosted"], "deny": ["third-party-api"]}
    assert shown["sandbox"] == {"old-mcp": "off"}
    assert "own" not in shown


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('paths = "shared"', "paths"),
        ('registration = "later"', "eager, lazy"),
        ("idle_timeout_s = 0", "1"),
        ('on_mismatch = "drop"', "reject, drop_binding"),
        ('sandbox = { old-mcp = "on" }', "off"),
        ('sandbox = { Old = "off" }', "driver's id"),
        ('sandbox = "off"', "table"),
        ('insecure_hosts = ["http://mcp.lan"]', "host"),
        ('insecure_hosts = ["mcp.lan:80"]', "host"),
        ('region = ""', "region"),
        ('policy = { forbid = ["x"] }', "forbid"),
        ('policy = { deny = ["PII Safe"] }', "policy tag"),
        ('pins = { "fs.read" = "Filesystem" }', "driver's id"),
        ('pins = { "_" = "filesystem-mcp" }', "contract's id"),
        ('dev = "yes"', "true or false"),
        ('own = "/elsewhere"', "own"),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_line(project: Project, written: str, said: str) -> None:
    problem = project.problem(f"[drivers]\n{written}\n")
    assert problem.line == 2
    assert said in f"{problem.message} {problem.hint}"


def test_a_misspelt_key_is_named_with_the_key_that_was_meant(project: Project) -> None:
    assert "did you mean 'trust_workspace'?" in (project.problem("[drivers]\ntrust_workspaces = true\n").hint or "")


def test_a_change_is_named_by_its_key(project: Project) -> None:
    old, new = project.load("").plan, project.load("[drivers]\ndev = true\n").plan
    assert differences(old, new) == ("drivers.dev",)
