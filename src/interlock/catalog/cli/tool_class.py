"""Why a class is proposed for a tool, in words. Pure."""

from interlock.cli.terminal.text import one_line

WHY = {
    "annotations": "the server says so",
    "name": "its name suggests it",
    "schema": "its arguments suggest it",
    "nothing": "nothing suggests less",
    "person": "you say so",
    "contract": "its contract says so",
}


def reason(by: str, question: str | None) -> str:
    return WHY.get(by, by) if question is None else f"? {one_line(question)}"
