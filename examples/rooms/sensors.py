"""An agent of the garden: it tells how wet the beds are, and can water them. Others call its tools."""

import asyncio
import os

from interlock.rooms import Participant

BEDS = {1: 0.62, 2: 0.48, 3: 0.33}
LOOK_S = float(os.environ.get("GARDEN_LOOK_S", "20"))

room = Participant(os.environ["ROOM_ADDRESS"], "garden", token=os.environ["ROOM_TOKEN"], name="sensors")


@room.tool(mutable=False)
def moisture(bed: int) -> float:
    "How wet the soil of a bed is, from 0 to 1."
    return BEDS[bed]


@room.tool
def water(bed: int, litres: int = 5) -> str:
    "Opens the valve of a bed."
    BEDS[bed] = min(1.0, BEDS[bed] + 0.1 * litres)
    return f"bed {bed} is at {BEDS[bed]:.2f} now"


async def main() -> None:
    async with room:
        while True:
            for bed, wet in BEDS.items():
                BEDS[bed] = max(0.0, wet - 0.02)
            driest = min(BEDS, key=BEDS.__getitem__)
            await room.say(f"bed {driest} is the driest, at {BEDS[driest]:.2f}")
            await asyncio.sleep(LOOK_S)


asyncio.run(main())
