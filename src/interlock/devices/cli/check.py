"""`interlock device test`: the checks of a profile against a stub, as lines or as JSON."""

import errno

import msgspec
import typer

from interlock.cli.command import Invocation
from interlock.cli.terminal.errors import EXIT_REFUSED, Refused
from interlock.cli.terminal.text import one_line
from interlock.devices.cli.line import Line
from interlock.devices.cli.stub_checks import StubCheck
from interlock.devices.protocol.description import DeviceDescription

HELD = "a node that has the device holds its port: stop the node, or move the description out of .devices meanwhile"
WORDS = {"passed": "PASS", "failed": "FAIL", "skipped": "SKIP"}


def check_stub(
    invocation: Invocation, description: DeviceDescription, *, within_s: float, gap_s: float, may_call_unknown: bool
) -> None:
    out = invocation.out
    items = []
    try:
        line = Line(description)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = HELD if isinstance(error, OSError) and error.errno == errno.EBUSY else None
        raise Refused("cannot_reach_device", f"{description.link.port} cannot be opened: {why}", hint=hint) from error
    try:
        check = StubCheck(line, description, within_s=within_s, gap_s=gap_s, may_call_unknown=may_call_unknown)
        for item in check.run():
            items.append(item)
            if not out.as_json:
                said = f": {one_line(item.message)}" if item.message else ""
                out.line(f"{WORDS[item.result]}  MCP-AX {item.clause}  {item.name}{said}")
    except OSError as error:
        raise Refused("cannot_reach_device", f"{description.link.port}: {error.strerror or error}") from error
    finally:
        line.close()
    counts = {word: sum(item.result == word for item in items) for word in WORDS}
    if out.as_json:
        out.json({"profile": description.profile, "counts": counts, "checks": msgspec.to_builtins(items)})
    else:
        counted = ", ".join(f"{number} {word}" for word, number in counts.items())
        out.line(f"Profile {description.profile.upper()}: {counted}")
    if counts["failed"]:
        raise typer.Exit(EXIT_REFUSED)
