"""Operators are told that something waits: by a command, a webhook, the desktop; and nothing waits for the telling."""

import asyncio
import hashlib
import hmac
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.approvals.inboxes import ManualClock, StoredInbox, stored_inbox
from tests.approvals.mailbox import mailbox

from interlock.approvals import notifier as notifier_module
from interlock.approvals import notifier as notifying
from interlock.approvals.notifier import (
    Channel,
    ChannelFailed,
    CommandChannel,
    DesktopChannel,
    MailChannel,
    Notice,
    Notifier,
    WebhookChannel,
    make_channels,
)
from interlock.config.plan import ApprovalsPlan

SECRET = "hush-hush"
NOTICE = Notice(
    event="approval_waiting",
    id="3f9c0a1b-0000-4000-8000-000000000001",
    kind="call",
    tool="files.delete",
    name="files.delete",
    requested_by="client:alice",
    created_at="2026-11-15T10:00:00Z",
    expires_at=None,
    url="http://127.0.0.1:7412/approvals/3f9c0a1b-0000-4000-8000-000000000001",
    node="default",
)


class Kept:
    """A channel that keeps what it is given, or fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.got: asyncio.Queue[Notice] = asyncio.Queue()
        self.tries = 0
        self.tried_thrice = asyncio.Event()

    async def send(self, notice: Notice) -> None:
        self.tries += 1
        if self.tries == 3:
            self.tried_thrice.set()
        if self.failures:
            self.failures -= 1
            raise ChannelFailed("nobody there")
        self.got.put_nowait(notice)

    async def close(self) -> None:
        pass


class Stuck(Kept):
    async def send(self, notice: Notice) -> None:
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def notifying_at(folder: Path, **named: Channel) -> AsyncIterator[tuple[StoredInbox, Notifier]]:
    async with stored_inbox(folder) as desk:
        notifier = Notifier(desk.inbox, named, url=lambda: "http://op", node="office")
        await notifier.open()
        try:
            yield desk, notifier
        finally:
            await notifier.close()


async def test_a_waiting_approval_is_announced_once_without_its_arguments_and_its_outcome_is_not(
    tmp_path: Path,
) -> None:
    kept = Kept()
    async with notifying_at(tmp_path, kept=kept) as (desk, _), asyncio.timeout(10):
        raised = await desk.raised(reason="s3cret-name again", agent="s3cret-name")
        await desk.raised()
        await desk.inbox.decide(raised.id, desk.no())
        other = await desk.raised("d2")
        told = [await kept.got.get(), await kept.got.get()]
        assert [one.id for one in told] == [raised.id, other.id]
        assert told[0].url == f"http://op/approvals/{raised.id}"
        assert (told[0].tool, told[0].requested_by, told[0].node) == ("files.delete", "client:alice", "office")
        assert "s3cret-name" not in str(told)
        assert kept.got.empty()


async def test_a_channel_that_is_stuck_or_fails_holds_up_neither_calls_nor_other_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "WAITING_MAX", 2)
    kept, stuck = Kept(), Stuck()
    async with notifying_at(tmp_path, kept=kept, stuck=stuck) as (desk, notifier), asyncio.timeout(10):
        for number in range(5):
            await desk.raised(f"d{number}")
            await kept.got.get()
        assert notifier.dropped == 2  # one is stuck, two wait


async def test_a_failure_is_tried_again_and_shown_until_something_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifying, "PAUSE_S", 0.0)
    kept = Kept(failures=4)
    async with notifying_at(tmp_path, kept=kept) as (desk, notifier), asyncio.timeout(10):
        await desk.raised("d1")
        await kept.tried_thrice.wait()
        assert notifier.trouble == {"kept": "nobody there"}
        second = await desk.raised("d2")
        assert (await kept.got.get()).id == second.id
        assert notifier.trouble == {}
    assert caplog.text.count("operators are not told") == 1


async def test_other_channels_are_taken_up_while_it_runs(tmp_path: Path) -> None:
    first, second = Kept(), Kept()
    async with notifying_at(tmp_path, one=first) as (desk, notifier), asyncio.timeout(10):
        await desk.raised("d1")
        await first.got.get()
        await notifier.replan({"two": second})
        raised = await desk.raised("d2")
        assert (await second.got.get()).id == raised.id
        assert first.got.empty()


# A command


def writer(to: Path) -> list[str]:
    code = "import os,sys,json; open(sys.argv[1],'w').write(json.dumps([sys.stdin.read(), sorted(os.environ)]))"
    return [sys.executable, "-c", code, str(to)]


async def test_a_command_reads_a_line_of_json_and_gets_none_of_the_nodes_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_TOKEN", "ilo_x")
    monkeypatch.setenv("DATABASE_PASSWORD", "hush")
    await CommandChannel(writer(tmp_path / "said")).send(NOTICE)
    line, environment = json.loads((tmp_path / "said").read_text())
    assert line.endswith("\n")
    assert json.loads(line)["id"] == NOTICE.id
    assert not {"INTERLOCK_TOKEN", "DATABASE_PASSWORD"} & set(environment)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["no-such-program-at-all"], "no program"),
        ([sys.executable, "-c", "import sys; sys.exit(3)"], "exit code 3"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "did not end"),
    ],
)
async def test_a_command_that_fails_is_named(command: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "COMMAND_S", 0.3)
    with pytest.raises(ChannelFailed, match=said):
        await CommandChannel(command).send(NOTICE)


# A webhook


class Receiver:
    """An HTTP server that answers with `status` and keeps what was posted."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.posts: list[tuple[dict[str, str], bytes]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        self.posts.append((headers, await reader.readexactly(int(headers["content-length"]))))
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\nlocation: /elsewhere\r\n\r\n" % self.status)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def receiving(status: int) -> AsyncIterator[tuple[Receiver, str]]:
    receiver = Receiver(status)
    server = await asyncio.start_server(receiver, "127.0.0.1", 0)
    async with server:
        yield receiver, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook-s3cret?key=s3cret"


async def test_a_webhook_gets_a_signed_notice_and_a_changed_notice_does_not_fit_the_signature() -> None:
    async with receiving(204) as (receiver, url):
        channel = WebhookChannel(url, SECRET, ManualClock())
        await channel.send(NOTICE)
        await channel.close()
    ((headers, body),) = receiver.posts
    assert json.loads(body)["id"] == NOTICE.id
    fields = dict(part.split("=", 1) for part in headers["x-interlock-signature"].split(","))
    assert fields["t"] == "1700000000"

    def mac(text: bytes) -> str:
        return hmac.new(SECRET.encode(), fields["t"].encode() + b"." + text, hashlib.sha256).hexdigest()

    assert fields["v1"] == mac(body)
    assert fields["v1"] != mac(body.replace(b"files", b"filez"))


async def test_a_mail_brings_the_notice_and_a_server_that_refuses_it_is_named() -> None:
    async with mailbox() as (box, url):
        channel = MailChannel(url, "interlock@example.com", ["ops@example.com", "more@example.com"])
        await channel.send(msgspec.structs.replace(NOTICE, tool="files.delete\r\nBcc: x@y", code="12345-67890"))
        (mail,) = box.mails
        assert box.receivers == ["<ops@example.com>", "<more@example.com>"]
        assert mail["Subject"] == "Interlock: a decision waits" and mail["Bcc"] is None
        text = mail.get_content()
        assert NOTICE.url in text and "Code: 12345-67890" in text and NOTICE.requested_by in text
        box.refuses = True
        with pytest.raises(ChannelFailed, match="does not take it: RecipientsRefused") as failed:
            await channel.send(msgspec.structs.replace(NOTICE, code="12345-67890"))
        assert "12345" not in str(failed.value)
    with pytest.raises(ChannelFailed, match="refused"):
        await channel.send(NOTICE)


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_a_webhook_that_does_not_take_it_is_a_failure_without_its_path(status: int) -> None:
    async with receiving(status) as (receiver, url):
        channel = WebhookChannel(url, SECRET, ManualClock())
        with pytest.raises(ChannelFailed, match=str(status)) as failed:
            await channel.send(NOTICE)
        await channel.close()
    assert "s3cret" not in str(failed.value)
    assert len(receiver.posts) == 1


async def test_a_webhook_that_is_away_is_a_failure_without_its_path() -> None:
    channel = WebhookChannel("http://127.0.0.1:9/hook-s3cret", SECRET, ManualClock())
    with pytest.raises(ChannelFailed) as failed:
        await channel.send(NOTICE)
    await channel.close()
    assert "s3cret" not in str(failed.value)


# The desktop


@pytest.mark.parametrize(("platform", "program"), [("linux", "notify-send"), ("darwin", "osascript")])
async def test_the_desktop_is_notified_by_its_own_program_and_text_stays_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, program: str
) -> None:
    script = tmp_path / program
    script.write_text(f"#!{sys.executable}\nimport sys, json\njson.dump(sys.argv, open(r'{tmp_path}/said', 'w'))\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    hostile: dict[str, Any] = {"name": '-x <b>"; do shell script "x', "requested_by": "client:\u202ea\nb"}
    notice = Notice(**{name: getattr(NOTICE, name) for name in NOTICE.__struct_fields__} | hostile)
    await DesktopChannel(platform).send(notice)
    *_, title, text = json.loads((tmp_path / "said").read_text())
    assert title == "Interlock: a decision waits"
    assert text.startswith("-x &lt;b&gt;" if platform == "linux" else "-x <b>")
    assert "client:\\u202ea\\u000ab" in text
    assert text.endswith("interlock approvals show 3f9c0a1b")


async def test_a_machine_without_a_desktop_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ChannelFailed, match="notify-send"):
        await DesktopChannel("linux").send(NOTICE)


async def test_a_desktop_rings_without_a_code_where_no_channel_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "notify-send"
    script.write_text(f"#!{sys.executable}\nimport sys, json\njson.dump(sys.argv, open(r'{tmp_path}/said', 'w'))\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    (bell,) = make_channels(ApprovalsPlan(), ManualClock()).values()
    await bell.send(msgspec.structs.replace(NOTICE, code="K7QF2M9D"))
    said = (tmp_path / "said").read_text()
    assert "interlock approvals show 3f9c0a1b" in said and "K7QF2M9D" not in said
    script.unlink()
    await bell.send(NOTICE)
    assert make_channels(ApprovalsPlan(), ManualClock()) == {}
    script.touch(0o755)
    assert make_channels(ApprovalsPlan(channels=("cli",)), ManualClock()) == {}


def test_the_configuration_chooses_the_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert make_channels(ApprovalsPlan(), ManualClock()) == {}
    plan = ApprovalsPlan(
        channels=("cli", "os_dialog", "command", "webhook", "smtp"),
        smtp_url="smtp://127.0.0.1:2525",
        smtp_from="interlock@example.com",
        smtp_to=("ops@example.com",),
        command=("x",),
        webhook_url="https://hooks.example.com/x",
        webhook_secret=SECRET,
    )
    assert set(make_channels(plan, ManualClock())) == {"os_dialog", "command", "webhook", "smtp"}
