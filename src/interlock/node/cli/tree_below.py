"""What lies below a link that is an aggregator: the lines of `interlock status` under it, one per segment.

Pure apart from rich's types.
"""

from rich.text import Text

from interlock.cli.terminal.output import shortened_line
from interlock.cli.terminal.text import count, one_line
from interlock.links.api import Below

BELOW_SHOWN = 30  # lines; the rest is counted


def below_lines(segment: str, below: tuple[Below, ...], *, width: int, ascii_only: bool) -> list[Text]:
    lines = [_line(one, width, "." if ascii_only else "·") for one in below[:BELOW_SHOWN]]
    if len(below) > BELOW_SHOWN:
        rest = count(len(below) - BELOW_SHOWN, "more segment")
        lines.append(
            Text(shortened_line(f"{rest} below: interlock status {one_line(segment)} --json", width), style="dim")
        )
    return lines


def _line(one: Below, width: int, bullet: str) -> Text:
    said = [count(one.tools, "tool"), count(one.hops, "hop")]
    if one.latency_class:
        said.append(one.latency_class)
    troubled = [f"{one.degraded} degraded"] if one.degraded else []
    held = [f"{one.gated} gated"] if one.gated else []
    head = f"{'  ' * (len(one.path) - 1)}{bullet} {one_line(one.path[-1])}"
    return Text.assemble(
        shortened_line(head, max(10, width - 40)),
        (f"  {', '.join(said)}", "dim"),
        (f", {', '.join(troubled)}" if troubled else "", "yellow"),
        (f", {', '.join(held)}" if held else "", "dim"),
    )
