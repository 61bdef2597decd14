"""A new agent, which is restricted: it may speak and propose, and a person decides."""

import asyncio
import os
import re

from interlock.rooms import Participant, ProposalEnded, RoomError

DRY = 0.35

room = Participant(os.environ["ROOM_ADDRESS"], "garden", token=os.environ["ROOM_TOKEN"], name="planner")


async def main() -> None:
    heard = room.listen()
    async with room:
        async for one in heard:
            told = re.match(r"bed (\d+) is the driest, at ([\d.]+)", one.text)
            if told is None or one.sender != "sensors" or float(told[2]) >= DRY:
                continue
            bed = int(told[1])
            try:
                answer = await room.call("sensors", "water", {"bed": bed}, reason=f"bed {bed} is at {told[2]}")
                await room.say(f"thank you: {answer.text}")
            except ProposalEnded as ended:
                await room.say(f"bed {bed} stays dry: {ended}")
            except RoomError as failed:
                await room.say(f"bed {bed} could not be watered: {failed}")


asyncio.run(main())
