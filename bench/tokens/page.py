"""The tables of the token benchmark in docs/benchmarks.md, between two marks."""

from typing import Any

from bench.processes import ROOT
from bench.tokens import tokenizer
from bench.tokens.surfaces import FOUND_MAX
from bench.tokens.tasks import TASKS

PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- tokens -->", "<!-- /tokens -->"


def write_tables(table: dict[int, dict[str, dict[str, Any]]], tools: int, servers: int) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{_tables(table, tools, servers)}\n{END}{after}", encoding="utf-8")


def _tables(table: dict[int, dict[str, dict[str, Any]]], tools: int, servers: int) -> str:
    names = list(next(iter(table.values())))
    lines = [
        f"Definitions of {tools} tools of {servers} real servers; tokens are {tokenizer.NAME}. A catalogue holds the "
        "ten tools of the tasks and others beside them.",
        "",
        "What `tools/list` costs, in bytes and tokens:",
        "",
        "| tools | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for size, row in table.items():
        cells = [f"{row[name]['listed_bytes']:,} B, {row[name]['listed']:,}" for name in names]
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Whole tasks: the mean of {len(TASKS)} scripted tasks, five of them with a wrong first call. A model on a "
        f"surface with a search searches (at most {FOUND_MAX} found), reads one definition, then calls. Tokens in the "
        "context at the end, in brackets those read over all turns where nothing is kept between them, and the number "
        "of calls:",
        "",
        "| tools | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for size, row in table.items():
        cells = [f"{row[name]['context']:,} ({row[name]['processed']:,}), {row[name]['calls']:.1f}" for name in names]
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
