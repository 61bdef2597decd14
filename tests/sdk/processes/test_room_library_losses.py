"""A participant that loses its connection hears every envelope once, in order, and what it sends is published once."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.participant import token
from tests.support.node_process import running_node

from interlock.sdk.rooms import Listener, NoAnswer, Participant

KILLS = int(os.environ.get("ROOM_KILLS", "1"))
ROOMS = """
[rooms]
per_min = {{ proposals = 10, chat = 100000, envelopes = 1000000 }}

[node]
listen = "127.0.0.1:{port}"
operator_listen = "127.0.0.1:0"

[[room]]
topic = "garden"

[[room]]
topic = "short"
history_max = 10
"""


async def numbers(listener: Listener, upto: int) -> tuple[list[int], list[int]]:
    """What was said in chat, and the sequences it came with, until the number was heard."""
    entries: list[int] = []
    sequences: list[int] = []
    async with asyncio.timeout(30):
        async for heard in listener:
            if heard.sequence is not None:
                sequences.append(heard.sequence)
            if heard.kind == "chat":
                entries.append(int(heard.text))
                if entries[-1] == upto:
                    return entries, sequences
    raise AssertionError("the listener ended")


@pytest.mark.req("X-4-4", "X-N-4")
async def test_a_node_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path, unused_tcp_port: int) -> None:
    rooms = ROOMS.format(port=unused_tcp_port)
    address = f"ws://127.0.0.1:{unused_tcp_port}"
    called: list[int] = []
    sender = reader = agent = None
    listener = saying = None
    total = 60 * KILLS
    for round in range(KILLS + 1):
        with running_node(tmp_path, {}, rooms) as node:
            if sender is None:
                sender = Participant(address, "garden", token=token(node, "sender", privilege="full"))
                reader = Participant(address, "garden", token=token(node, "reader", privilege="full"))
                agent = Participant(address, "garden", token=token(node, "agent", privilege="full"))

                @agent.tool
                async def note(number: int) -> int:
                    called.append(number)
                    return number

                listener = reader.listen()
                for participant in (sender, reader, agent):
                    await participant.open()
                saying = asyncio.create_task(_say(sender, total))
                calling = asyncio.create_task(_call(reader, total // 6))
            assert saying is not None and agent is not None
            if round < KILLS:
                wanted = (round + 1) * 30
                async with asyncio.timeout(20):
                    while saying_number(sender) < wanted:  # noqa: ASYNC110
                        await asyncio.sleep(0.002)
                node.process.send_signal(signal.SIGKILL)
                await asyncio.to_thread(node.process.wait)
                continue
            assert listener is not None and reader is not None and sender is not None
            said, sequences = await numbers(listener, total - 1)
            assert said == list(range(total))
            assert sequences == sorted(set(sequences)) and sequences[-1] - sequences[0] == len(sequences) - 1
            await saying
            assert await calling == list(range(total // 6)) and sorted(set(called)) == list(range(total // 6))
            for participant in (sender, reader, agent):
                await participant.close()


PROGRESS: dict[int, int] = {}


def saying_number(sender: Any) -> int:
    return PROGRESS.get(id(sender), 0)


async def _say(sender: Participant, total: int) -> None:
    for number in range(total):
        await sender.say(str(number))
        PROGRESS[id(sender)] = number + 1


async def _call(reader: Participant, total: int) -> list[int]:
    """A call goes on over a loss: request, answer or both come again by history. One may find nobody there yet."""
    answers: list[int] = []
    while len(answers) < total:
        try:
            answers.append(int((await reader.call("agent", "note", {"number": len(answers)}, timeout_s=20)).text))
        except NoAnswer as absent:
            assert "not in the room" in str(absent)
        await asyncio.sleep(0.01)
    return answers


@pytest.mark.req("X-4.4.1-6")
async def test_a_participant_that_was_away_too_long_receives_what_is_still_kept(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    with running_node(tmp_path, {}, ROOMS.format(port=unused_tcp_port)) as node:
        address = f"ws://127.0.0.1:{unused_tcp_port}"
        secret = token(node, "reader", "short", "full")
        async with Participant(address, "short", token=token(node, "sender", "short", "full")) as sender:
            for number in range(40):
                await sender.say(str(number))
            reader = Participant(address, "short", token=secret, after=3)
            listener = reader.listen()
            await reader.open()
            await sender.say("40")
            said, sequences = await numbers(listener, 40)
            assert said == list(range(said[0], 41)) and 28 <= said[0] <= 31
            assert sequences == list(range(said[0] + 1, 42))
            assert reader.position == 41
            await reader.close()
            lost = Participant(address, "short", token=secret, after=10**9)  # of another copy of the room
            listener = lost.listen()
            await lost.open()
            await sender.say("41")
            assert (await numbers(listener, 41))[0] == [41]
            await lost.close()
