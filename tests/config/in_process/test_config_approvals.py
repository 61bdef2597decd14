"""[approvals]: what may be written, what belongs together, and what is shown of it."""

import pytest
from tests.config.config_project import Project

from interlock.config.effective import effective
from interlock.config.plan import ApprovalsPlan


def test_without_a_word_about_it_the_defaults_hold(project: Project) -> None:
    assert project.load("").plan.approvals == ApprovalsPlan(
        expiry_s=300, redeem_s=300, max_pending=100, channels=("console", "cli")
    )


WEBHOOK = 'webhook_url = "https://hooks.example.com/s3cret?key=s3cret"\nwebhook_secret = "${env:HOOK}"\n'


def test_channels_with_what_they_need_are_taken_and_no_secret_is_shown(project: Project) -> None:
    project.env["HOOK"] = "hush"
    plan = project.load(
        '[approvals]\nexpiry_s = 45\nchannels = ["webhook", "command", "os_dialog"]\n'
        f'command = "notify-team --key s3cret"\n{WEBHOOK}'
    ).plan
    assert plan.approvals.expiry_s == 45
    assert plan.approvals.command == ("notify-team", "--key", "s3cret")
    assert plan.approvals.webhook_secret == "hush"
    shown = effective(plan)["approvals"]
    assert shown["webhook_url"] == "https://hooks.example.com/***"
    assert shown["command"] == ["notify-team", "***", "***"]
    assert "s3cret" not in str(shown)
    assert "hush" not in str(shown)
    mail = 'smtp_url = "smtps://me:${env:HOOK}@mail.example.com:465"\n'
    mail += 'smtp_from = "me@x.example"\nsmtp_to = ["a@x.example"]\n'
    plan = project.load(f'[approvals]\nchannels = ["smtp"]\n{mail}').plan
    assert plan.approvals.smtp_url == "smtps://me:hush@mail.example.com:465"
    assert effective(plan)["approvals"]["smtp_url"] == "smtps://***@mail.example.com:465"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("expiry_s = 29", "30 to 86400"),
        ("expiry_s = 86401", "30 to 86400"),
        ("redeem_s = 0", "30 to 86400"),
        ("max_pending = 0", "1 to 10000"),
        ('channels = ["pager"]', "one of console"),
        ('channels = ["webhook"]', "needs 'webhook_url'"),
        ('channels = ["webhook"]\nwebhook_url = "https://h.example/x"', "needs 'webhook_secret'"),
        ('channels = ["command"]', "needs 'command'"),
        ('channel = ["cli"]', "did you mean 'channels'"),
        ('channels = ["smtp"]', "needs 'smtp_url'"),
        ('smtp_url = "https://mail.example.com"', "smtp://HOST"),
        ('smtp_url = "smtp://:25"', "smtp://HOST"),
        ('smtp_url = "smtp://host:x"', "smtp://HOST"),
        ('smtp_from = "nobody"', "a mail address"),
        ('smtp_to = ["a@b, c@d"]', "a mail address"),
        ('webhook_url = "ftp://h.example"', "http:// or https://"),
    ],
)
def test_what_cannot_be_meant_is_named(project: Project, text: str, said: str) -> None:
    assert any(said in str(problem) for problem in project.problems(f"[approvals]\n{text}\n"))


def test_a_webhook_that_no_channel_uses_is_warned_of(project: Project) -> None:
    project.env["HOOK"] = "hush"
    assert any("not used without the channel" in str(one) for one in project.load(f"[approvals]\n{WEBHOOK}").warnings)


def test_a_tool_may_be_pinned(project: Project) -> None:
    assert [rule.pin for rule in project.load('[[tool]]\nmatch = "files.*"\npin = true\n').plan.tools] == [True]
