"""How much of a server's list does the node hold at most, and is it said where the rest is?"""

import json
from pathlib import Path

import pytest
from tests.links.paging_server import command
from tests.support.local_node import running

from interlock.links import listing

PAD = 10_000


async def listed(folder: Path, pages: int, junk: int = 0) -> tuple[list[str], str, list[dict[str, str]]]:
    """The tools, how the link stands, and what is withheld of it."""
    config = f"[servers.many]\ncommand = {json.dumps(command(pages, PAD, junk))}\n"
    async with running(folder, config) as (node, _):
        link = node.operations.links.get("many")
        withheld = [{"name": one.name, "reason": one.reason} for one in link.withheld]
        return [tool.original for tool in node.operations.tools.list_all().tools], link.state, withheld


async def test_a_list_beyond_the_limit_is_cut_at_a_page_and_the_reason_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding counts: an item keeps the page alive it came on."""
    monkeypatch.setattr(listing, "LIST_BYTES_MAX", 5 * PAD)
    tools, state, withheld = await listed(tmp_path, pages=50)
    assert tools == [*(f"tool_{number}" for number in range(4)), "*"]  # what is withheld is listed too
    assert state == "ready"
    assert [one["name"] for one in withheld] == ["*"]
    assert str(5 * PAD) in withheld[0]["reason"]


async def test_a_list_within_the_limit_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LIST_BYTES_MAX", 5 * PAD)
    tools, _, withheld = await listed(tmp_path, pages=4)
    assert (len(tools), withheld) == (4, [])


async def test_a_single_page_of_any_size_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message has a limit of its own, and the operator sets it."""
    monkeypatch.setattr(listing, "LIST_BYTES_MAX", PAD // 2)
    tools, _, withheld = await listed(tmp_path, pages=1)
    assert (tools, withheld) == (["tool_0"], [])


async def test_items_that_are_no_items_are_not_all_remembered(tmp_path: Path) -> None:
    tools, _, withheld = await listed(tmp_path, pages=3, junk=5000)
    assert tools[:3] == [f"tool_{number}" for number in range(3)]
    assert len(withheld) == listing.REFUSED_MAX + 1
    assert withheld[-1] == {"name": "*", "reason": "more items that cannot be listed"}
