"""What was counted of tokens: `counts.json`, and its section of docs/benchmarks.md."""

import json
import re
from pathlib import Path
from typing import Any, Final

from bench import instruction_counts
from bench.tokens import tokenizer
from bench.tokens.surfaces import FOUND_MAX
from bench.tokens.tasks import TASKS

FILE: Final = Path(__file__).with_name("counts.json")
TITLE: Final = "## Tokens"
Table = dict[str, dict[str, dict[str, Any]]]


def keep(table: Table, tools: int, servers: int) -> None:
    FILE.write_text(json.dumps({"tools": tools, "servers": servers, "table": table}, indent=2) + "\n")
    page = instruction_counts.PAGE
    before = re.split(
        rf"^(?:{re.escape(TITLE)}|{re.escape(instruction_counts.TITLE)})$", page.read_text(), flags=re.MULTILINE
    )[0].rstrip()
    page.write_text(f"{before}\n\n{section()}\n\n{instruction_counts.section()}\n")


def section() -> str:
    kept = json.loads(FILE.read_text())
    table: Table = kept["table"]
    names = list(next(iter(table.values())))
    wrong = sum(any(step.wrong for step in task) for task in TASKS)
    head = ["| tools | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    lines = [
        TITLE,
        "",
        f"`python -m bench.tokens`: definitions of {kept['tools']:,} tools of {kept['servers']} real servers, served "
        f"from a recording; tokens are {tokenizer.NAME}. A catalogue holds the ten tools of the tasks and others "
        "beside them. The search proxy is FastMCP 4.1.2 with its BM25 search. What `tools/list` costs, in bytes, in "
        "characters/4 (all of them are ASCII) and in tokens:",
        "",
        *head,
    ]
    for size, row in table.items():
        cells = [
            f"{row[name]['listed_bytes']:,} B, {row[name]['listed_bytes'] / 4:,.0f}, {row[name]['listed']:,}"
            for name in names
        ]
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Whole tasks: the mean of {len(TASKS)} scripted tasks, {wrong} of them with a wrong first call. On a surface "
        f"with a search the script searches (at most {FOUND_MAX} found, once more where it misses), reads one "
        "definition, then calls. Tokens in the context at the end; after + those of them beside the list, which is "
        "introspection and calls; in brackets those read over all turns, where nothing is kept between them; and the "
        "number of calls:",
        "",
        *head,
    ]
    for size, row in table.items():
        cells = [
            f"{row[name]['context']:,} +{row[name]['context'] - row[name]['listed']:,} "
            f"({row[name]['processed']:,}), {row[name]['calls']:.1f}"
            for name in names
        ]
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    lines += ["", _break_even(table)]
    return "\n".join(lines)


def _break_even(table: Table) -> str:
    """From how many tokens of the flat list on the semantic surface costs less, by both ways of counting."""
    dearest = max(table.values(), key=lambda row: row["aql"]["processed"])
    calls = dearest["flat"]["calls"]
    kept, again = dearest["aql"]["context"], round(dearest["aql"]["processed"] / calls)
    return (
        f"The semantic surface costs less than the flat list from about {kept:,} tokens of that list on where the "
        f"context is kept between turns, and from about {again:,} on where it is read again each time. "
        "`aql.auto_tokens` (4,000) is above both."
    )
