"""docs/ax-reference.md from interlock.ax.protocol: keys, methods, transport classes and the AgentX table.

`--check` compares and writes nothing.
"""

import argparse
import json
import sys
from pathlib import Path

from interlock.ax.protocol.transport_classes import TRANSPORT_CLASSES, check_classes
from interlock.ax.protocol.wire_names import AGENTX, KEYS, METHODS, Correspondence, Method

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/ax-reference.md")


def page() -> str:
    lines = [
        "# MCP-AX on the wire",
        "",
        "Written by `python tools/ax_reference.py` from `interlock.ax.protocol`. Clauses are those of",
        "draft-abbott-mcp-ax-00; what it leaves open and we settled says *ours*.",
        "",
        "## Methods and notifications",
        "",
        "| name | kind | direction | meaning | source |",
        "|---|---|---|---|---|",
    ]
    for method in METHODS:
        cells = (_link(method.name), method.kind, method.direction, method.meaning, method.source)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Any other method that begins with `mcpax/` is answered -32601."]
    for method in METHODS:
        lines += _method(method)
    lines += ["", "## Metadata keys", "", "| key | place | written by | meaning | source |", "|---|---|---|---|---|"]
    for key in KEYS:
        name = f'<a id="{key.name}"></a>`{key.name}`'
        lines.append(f"| {name} | {key.place} | {key.writer} | {key.meaning} | {key.source} |")
    lines += ["", "## Transport classes", "", "A private class begins with `x-`."]
    lines += ["", "| class | framing | payload | reference | status |", "|---|---|---|---|---|"]
    for one in TRANSPORT_CLASSES:
        lines.append(f"| `{one.id}` | {one.framing} | {one.payload} | {one.reference} | {one.status} |")
    lines += ["", "## From AgentX", "", "Appendix A of the draft, and where each concept is found here."]
    lines += ["", "| AgentX | MCP-AX | here |", "|---|---|---|"]
    lines += [f"| {row.agentx} | {row.mcpax} | {_here(row)} |" for row in AGENTX]
    return "\n".join(lines) + "\n"


def _method(method: Method) -> list[str]:
    lines = ["", f'### <a id="{_anchor(method.name)}"></a>`{method.name}`', "", "params:", "", *_schema(method.params)]
    if method.result is not None:
        lines += ["", "result:", "", *_schema(method.result)]
    return lines


def _schema(schema: dict[str, object]) -> list[str]:
    return ["```json", json.dumps(schema, indent=2), "```"]


def _link(method: str) -> str:
    return f"[`{method}`](#{_anchor(method)})"


def _anchor(name: str) -> str:
    return name.replace("/", "-")


def _here(row: Correspondence) -> str:
    found = [_link(method) for method in row.see]
    if row.field:
        found.append(f"[`{row.field}`](#{row.field})" if row.field.startswith("x-mcpax-") else f"`{row.field}`")
    return " ".join(found)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="tools/ax_reference.py", description="Write docs/ax-reference.md.")
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date; write nothing")
    check = parser.parse_args(arguments).check
    if wrong := check_classes(TRANSPORT_CLASSES):
        print(wrong, file=sys.stderr)
        return 2
    text = page()
    if check:
        if (root / PAGE).exists() and (root / PAGE).read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE} is out of date; run: python tools/ax_reference.py", file=sys.stderr)
        return 1
    (root / PAGE).parent.mkdir(exist_ok=True)
    (root / PAGE).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
