"""The channels that bring a code to operators: each brings it there, and none to the agent."""

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.mailbox import mailbox
from tests.safety.agents import ENFORCING, LOOK, agent_node, failed, forms

from interlock.approvals import notifier


@asynccontextmanager
async def hook(status: int) -> AsyncIterator[tuple[list[bytes], str]]:
    posts: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        posts.append(await reader.readexactly(size))
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield posts, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"


def script(folder: Path, name: str, kept: Path) -> Path:
    """A program that keeps what it reads on its stdin."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat > {kept}.part && mv {kept}.part {kept}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.req("AQL-8.8.2-3", "AQL-8.8.6-1", "AQL-8.8.4-1")
async def test_every_channel_brings_the_code_to_operators_and_none_to_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(notifier, "PAUSE_S", 0.01)
    bin, said = tmp_path / "bin", {name: tmp_path / f"{name}.txt" for name in ("command", "os_dialog")}
    script(bin, "zenity", said["os_dialog"])
    command = script(bin, "tell", said["command"])
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    monkeypatch.setattr(notifier, "PROGRAM_FOLDERS", (str(bin),))
    monkeypatch.setattr(notifier, "SYSTEM_OWNERS", (0, os.getuid()))
    data = tmp_path / "node"
    async with mailbox() as (box, mail), hook(204) as (posts, url):
        channels = (
            '[approvals]\nchannels = ["os_dialog", "command", "webhook", "smtp"]\n'
            f'command = ["{command}"]\nwebhook_url = "{url}"\nwebhook_secret = "hush"\n'
            f'smtp_url = "{mail}"\nsmtp_from = "interlock@example.com"\nsmtp_to = ["ops@example.com"]\n'
        )
        data.mkdir()
        async with agent_node(data, channels + ENFORCING, anchored="") as here:
            agent = here.agent("client:channels")
            await agent.start()
            (notice,) = (await agent.directive("drop_table users"))["notifications"]
            id = notice["metadata"]["verificationId"]
            code = here.shown(id)
            await here.until(lambda: all(one.exists() for one in said.values()) and posts and box.mails)
            assert json.loads(said["command"].read_text())["code"] == code
            assert json.loads(posts[0])["code"] == code
            assert code in said["os_dialog"].read_text() and code in box.mails[0].get_content()
            refused = await failed(agent.report(LOOK))
            assert refused.details is not None and refused.details["reason"] == "agent_blocked"
            for _ in range(2):
                await failed(agent.verify(id, "0" * 26))
            here.search([code])
    written = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file()) + caplog.text.encode()
    assert not [form for form in forms(code) if form.encode() in written]


@pytest.mark.req("AQL-8.8.2-3")
async def test_a_channel_that_fails_is_reported_the_next_is_tried_and_without_any_the_agent_stays_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "PAUSE_S", 0.01)
    async with mailbox() as (box, mail), hook(500) as (_, url):
        channels = (
            f'[approvals]\nchannels = ["webhook", "smtp"]\nwebhook_url = "{url}"\nwebhook_secret = "hush"\n'
            f'smtp_url = "{mail}"\nsmtp_from = "interlock@example.com"\nsmtp_to = ["ops@example.com"]\n'
        )
        async with agent_node(tmp_path, channels + ENFORCING, anchored="") as here:

            async def block(name: str) -> tuple[Any, str]:
                agent = here.agent(f"client:{name}")
                await agent.start()
                (notice,) = [
                    one
                    for one in (await agent.directive("drop_table users"))["notifications"]
                    if name in json.dumps(one) or "coder" in one["message"]
                ]
                return agent, notice["metadata"]["verificationId"]

            notices = here.node.approvals.notifier
            agent, id = await block("one")
            await here.until(lambda: "webhook" in notices.trouble and len(box.mails) == 1)
            assert "500" in notices.trouble["webhook"] and "smtp" not in notices.trouble
            code = box.mails[0].get_content().partition("Code: ")[2].strip()
            assert (await agent.verify(id, code))["verified"] is True
            box.refuses = True
            agent, id = await block("two")
            await here.until(lambda: "smtp" in notices.trouble)
            assert here.loop.blocks.of_principal("client:two")
            refused = await failed(agent.report(LOOK))
            assert refused.details is not None and refused.details["reason"] == "agent_blocked"
