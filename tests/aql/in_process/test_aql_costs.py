"""What the AQL surfaces cost a model to read: bounds of the listing, however large the catalogue is."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.aql.aql_node import TEXT, aql_node, schema, tool
from tests.support.frozen_node import in_frozen_time

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
@in_frozen_time
async def test_the_listing_stays_small_as_the_catalogue_grows(tmp_path: Path) -> None:
    listed: dict[str, list[bytes]] = {"aql": [], "aql-single": []}
    async with aql_node(tmp_path) as here:
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
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text("utf-8")
    section = page.partition("\n## Tokens\n")[2]
    assert "o200k_base" in section.partition("\n\n|")[0]
    listed, tasks = (part.partition("\n\n")[0] for part in section.split("\n\n| tools |")[1:3])
    sizes = {}
    for size, *cells in re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", listed, re.M):
        flat, semantic, single = sizes[int(size)] = [Costs.read(cell) for cell in cells]
        assert semantic.tokens <= SEMANTIC_MAX and single.tokens <= SINGLE_MAX
        assert all(one.quarter == round(one.octets / 4) for one in (flat, semantic, single))
    assert max(sizes) == 500 and sizes[500][0].tokens >= FLAT_MIN
    found = re.findall(r"^\| (\d+) \| ([\d,]+) \+([\d,]+) \S+ \S+ \| ([\d,]+) \+([\d,]+) ", tasks, re.M)
    assert len(found) == len(sizes)
    for size, *numbers in found:
        whole, _, semantic_whole, introspected = (int(one.replace(",", "")) for one in numbers)
        flat, semantic, _ = sizes[int(size)]
        assert whole > flat.tokens and semantic_whole == semantic.tokens + introspected


class Costs(NamedTuple):
    octets: int
    quarter: int  # characters/4
    tokens: int

    @classmethod
    def read(cls, cell: str) -> "Costs":
        octets, quarter, tokens = re.fullmatch(r"([\d,]+) B, ([\d,]+), ([\d,]+)", cell).groups()  # type: ignore[union-attr]
        return cls(*(int(one.replace(",", "")) for one in (octets, quarter, tokens)))


@pytest.mark.req("AQL-A.2-1")
@in_frozen_time
async def test_ten_operations_cost_little_to_learn_of(tmp_path: Path) -> None:
    item = {**TEXT, "description": "Which one."}
    takes = [schema(("item",), item=item), schema(("item", "text"), item=item, text={**TEXT, "description": "What."})]
    names = ("get_note", "list_notes", "search_notes", "create_note", "run_report")
    names += ("get_user", "list_users", "send_message", "create_issue", "run_query")
    tools = [
        tool(name, description=f"Does {name}.", inputSchema=takes[number % 2]) for number, name in enumerate(names)
    ]
    async with aql_node(tmp_path) as here:
        await here.leaf(tools=tools)
        client = here.modern("aql-single")
        registered = tokens((await client.client.request("tools/list"))["result"]["tools"])
        details = []
        for name in names:
            asked = {"operation": "introspect", "params": {"query": "operations", "name": f"docs__{name}"}}
            details.append(tokens(await client.send("mcp_aql", asked)))
        measured = json.loads((Path(__file__).parents[3] / "bench" / "tokens" / "counts.json").read_text())
        listed = measured["table"]["10"]["aql-single"]
        share = 4 * listed["listed"] / listed["listed_bytes"]  # of what four characters each would be
        assert share * sum(details) / len(details) <= 150
        assert share * (registered + sum(details)) <= 2600
