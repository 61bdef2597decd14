"""A configuration that lets fewer people into a room, or makes fewer of them full, counts for open connections too."""

from pathlib import Path

import pytest
from tests.rooms.participant import CALL, Bare, token
from tests.support.node_process import RunningNode, running_node
from websockets.exceptions import InvalidStatus

LISTS = 'full = ["client:planner"]\nmembers = ["client:guest", "client:watcher"]\n'
FEWER = 'members = ["client:planner", "client:watcher"]\n'
ROOMS = f"""
[node]
listen = "127.0.0.1:0"
operator_listen = "127.0.0.1:0"

[[room]]
topic = "garden"
{LISTS}
[[room]]
topic = "shed"
mode = "open"
"""


async def join(node: RunningNode, topic: str, secret: str) -> tuple[Bare, str]:
    participant = await Bare.join(node, topic, secret)
    return participant, str((await participant.next())["payload"]["participant"]["privilege"])


@pytest.mark.req("X-5.1-6", "AX-11.N-1")
async def test_whoever_the_configuration_no_longer_names_or_makes_full_loses_the_connection(tmp_path: Path) -> None:
    sooner = {"interlock.node.node_operations:LOOK_S": 0.1}
    with running_node(tmp_path, {}, ROOMS, settings=sooner) as node:
        secrets = {
            name: str(node.admin("/admin/tokens", "POST", {"name": name, "for": "client"})["token"])
            for name in ("planner", "guest", "watcher")
        }
        visitor_secret = token(node, "visitor", "shed", None)
        planner, of_planner = await join(node, "garden", secrets["planner"])
        guest, of_guest = await join(node, "garden", secrets["guest"])
        watcher, of_watcher = await join(node, "garden", secrets["watcher"])
        visitor, of_visitor = await join(node, "shed", visitor_secret)
        assert (of_planner, of_guest, of_watcher, of_visitor) == ("full", "restricted", "restricted", "full")

        text = node.config.read_text()
        node.config.write_text(text.replace(LISTS, FEWER).replace('mode = "open"\n', 'mode = "mixed"\n', 1))
        assert await guest.closed() == 4403
        assert await planner.closed() == 1001
        assert await visitor.closed() == 1001

        with pytest.raises(InvalidStatus) as refused:
            await join(node, "garden", secrets["guest"])
        assert refused.value.response.status_code == 403
        for topic, secret in (("garden", secrets["planner"]), ("shed", visitor_secret)):
            participant, privilege = await join(node, topic, secret)
            assert privilege == "restricted"
            id = await participant.send("mcp", CALL)
            assert (await participant.until_either(id))["payload"]["error"]["code"] == -32001
            await participant.leave()
        # Nothing changed for this one.
        id = await watcher.say("still here")
        assert (await watcher.until_either(id))["payload"] == {"text": "still here"}
