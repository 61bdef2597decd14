"""What the AQL surfaces cost a model to read: bounds of the listing, however large the catalogue is."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.aql_place import TEXT, place, schema, tool
from tests.runtime.still import still

SEMANTIC_MAX, SINGLE_MAX, FLAT_MIN = 4300, 1100, 29_600  # tokens, as published


def tokens(value: Any) -> float:
    """Four characters each; docs/benchmarks.md has the counts of a tokenizer."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":"))) / 4


def catalogue(count: int) -> list[dict[str, Any]]:
    """Tools of an ordinary size."""
    described = {**TEXT, "description": "Which one it is, by its name or by its number in the archive."}
    takes = schema(("item", "owner"), item=described, owner=described, comment={**described, "maxLength": 400})
    return [
        tool(f"get_{number}_record", description="Gets one record. " * 5, inputSchema=takes) for number in range(count)
    ]


@pytest.mark.req("AQL-A.1-1", "AQL-A.1-2")
@still
async def test_the_listing_stays_small_as_the_catalogue_grows(tmp_path: Path) -> None:
    listed: dict[str, list[bytes]] = {"aql": [], "aql-single": []}
    async with place(tmp_path) as here:
        for count in (50, 500):
            await here.leaf(f"n{count}", tools=catalogue(count))
            flat = (await here.modern("flat").client.request("tools/list"))["result"]["tools"]
            for surface, most in (("aql", SEMANTIC_MAX), ("aql-single", SINGLE_MAX)):
                tools = (await here.modern(surface).client.request("tools/list"))["result"]["tools"]
                listed[surface].append(json.dumps(tools).encode())
                assert tokens(tools) <= most
        assert tokens(flat) >= FLAT_MIN
        assert all(len(set(texts)) == 1 for texts in listed.values())


@pytest.mark.req("AQL-A.1-1")
def test_the_measured_table_keeps_the_published_bounds() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text("utf-8")
    section = page.partition("\n## Tokens\n")[2]
    assert "o200k_base" in section.partition("\n\n|")[0]
    rows = re.findall(r"^\| (\d+) \| [\d,]+ B, ([\d,]+) \| [\d,]+ B, ([\d,]+) \| [\d,]+ B, ([\d,]+) \|", section, re.M)
    counts = {int(size): [int(one.replace(",", "")) for one in found] for size, *found in rows}
    assert max(counts) == 500 and counts[500][0] >= FLAT_MIN
    for _, semantic, single in counts.values():
        assert semantic <= SEMANTIC_MAX and single <= SINGLE_MAX


@pytest.mark.req("AQL-A.2-1")
@still
async def test_ten_operations_cost_little_to_learn_of(tmp_path: Path) -> None:
    item = {**TEXT, "description": "Which one."}
    takes = [schema(("item",), item=item), schema(("item", "text"), item=item, text={**TEXT, "description": "What."})]
    names = ("get_note", "list_notes", "search_notes", "create_note", "run_report")
    names += ("get_user", "list_users", "send_message", "create_issue", "run_query")
    tools = [
        tool(name, description=f"Does {name}.", inputSchema=takes[number % 2]) for number, name in enumerate(names)
    ]
    async with place(tmp_path) as here:
        await here.leaf(tools=tools)
        client = here.modern("aql-single")
        registered = tokens((await client.client.request("tools/list"))["result"]["tools"])
        details = []
        for name in names:
            asked = {"operation": "introspect", "params": {"query": "operations", "name": f"docs__{name}"}}
            details.append(tokens(await client.send("mcp_aql", asked)))
        measured = json.loads((Path(__file__).parents[2] / "bench" / "tokens" / "counts.json").read_text())
        listed = measured["table"]["10"]["aql-single"]
        share = 4 * listed["listed"] / listed["listed_bytes"]  # of what four characters each would be
        assert share * sum(details) / len(details) <= 150
        assert share * (registered + sum(details)) <= 2600
