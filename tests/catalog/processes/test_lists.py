"""Does a client of either era see everything its servers list, as they said it, under names of its own?"""

import pytest
import pytest_asyncio
from tests.servers.rawserver.text import members
from tests.support.fleet import FRONTS, LINKS, Fleet, instructions, tool, uri
from tests.support.json_cutting import elements
from tests.support.peers import Peer

pytestmark = pytest.mark.asyncio(loop_scope="session")

LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
HINTS = {"readOnlyHint", "destructiveHint", "idempotentHint"}
Items = dict[str, dict[str, str]]  # name or URI -> member -> its text


async def listed(peer: Peer, method: str) -> Items:
    member, key = LISTS[method]
    items = [members(text) for text in elements(members((await peer.request(method)).result_text)[member])]
    named = {item[key].strip('"'): item for item in items}
    assert len(named) == len(items)
    return named


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own(fleet: Fleet) -> dict[tuple[str, str], Items]:
    """What each server lists when asked directly."""
    found = {}
    for link in LINKS:
        async with fleet.directly(link) as peer:
            for method in LISTS:
                found[link, method] = await listed(peer, method)
    return found


@pytest.mark.req("AX-3.1-2")
@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("front", FRONTS)
async def test_every_item_of_every_server_is_listed_with_all_its_fields(
    fleet: Fleet, own: dict[tuple[str, str], Items], front: str, method: str
) -> None:
    shown = tool if LISTS[method][1] == "name" else uri
    async with fleet.peer(front) as peer:
        through = await listed(peer, method)
    expected = {shown(link, name): item for link in LINKS for name, item in own[link, method].items()}
    assert list(through) == list(expected)  # the servers as configured, the items of each as it lists them
    for name, item in expected.items():
        assert different(item, through[name], LISTS[method][1]) == {}


def different(said: dict[str, str], shown: dict[str, str], key: str) -> dict[str, object]:
    """Which members changed beyond the name, the hints and the notes the node adds at their end."""
    wrong: dict[str, object] = {}
    if [member for member in shown if member in said] != list(said):
        wrong["order"] = (list(said), list(shown))
    if not set(shown) - set(said) <= {"_meta", "annotations"}:
        wrong["added"] = list(shown)
    for member, text in said.items():
        if member not in ("_meta", "annotations"):
            if member != key and shown.get(member) != text:
                wrong[member] = (text, shown.get(member))
            continue
        before, after = members(text), members(shown[member])
        if list(after.items())[: len(before)] != list(before.items()):
            wrong[member] = (text, shown[member])
    added = set(members(shown.get("annotations", "{}"))) - set(members(said.get("annotations", "{}")))
    if not added <= HINTS:
        wrong["hints"] = added
    return wrong


@pytest.mark.parametrize("front", FRONTS)
async def test_the_greeting_tells_what_the_servers_can_do_and_how_to_use_them(fleet: Fleet, front: str) -> None:
    async with fleet.peer(front) as peer:
        greeting = peer.greeting
    offered = greeting["capabilities"]
    assert offered["tools"] == offered["prompts"] == {"listChanged": True}
    assert offered["resources"] == {"listChanged": True, "subscribe": True}
    assert {"completions", "logging"} <= offered.keys()
    assert "dev.interlock/ax" in offered["extensions" if peer.modern else "experimental"]
    said = greeting["instructions"]
    places = [said.index(f"## {link}\n{instructions(link)}") for link in LINKS]
    assert places == sorted(places)


@pytest.mark.parametrize("front", ["http-legacy", "sse-legacy", "http-modern"])
async def test_one_server_alone_gives_its_own_instructions_and_names(
    fleet: Fleet, own: dict[tuple[str, str], Items], front: str
) -> None:
    async with fleet.peer(front, path="/only/new_stdio") as peer:
        assert peer.greeting["instructions"] == instructions("new_stdio")
        for method in LISTS:
            assert (await listed(peer, method)).keys() == own["new_stdio", method].keys()
