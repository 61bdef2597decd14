"""interlock open"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from interlock.cli.command import Invocation, verb, verb_app

app = verb_app("Open the console in a browser.")


@verb(
    app,
    "open",
    examples="""
    interlock open
    interlock open --print
    interlock open --json | jq -r .url
    """,
)
def open_console(
    invocation: Invocation,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the link and open nothing.", show_default=False)
    ] = False,
) -> None:
    """Open the operator page in a browser, logged in.

    The link works once and for a minute. Where there is no browser it is printed. The session may look and administer;
    approving takes a passkey or the operator key's passphrase on the page.
    """
    from interlock.access.api import Login

    answer = invocation.node.post("logins")
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    url = answer.as_(Login).url
    if not print_only and _show(url, None if invocation.remote_url else invocation.data_folder / "run"):
        out.advice(f"opened {url.partition('#')[0]} in your browser; interlock open --print shows the link instead")
        return
    out.line(url)
    out.remark("open it in a browser within a minute; it works once")


def _show(url: str, folder: Path | None) -> bool:
    """Whether a browser was told. It is told by a file: other users of the machine can read a program's arguments."""
    import webbrowser

    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        return False
    if folder is None:
        return False
    page = folder / "open.html"
    try:
        page.unlink(missing_ok=True)
        with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={url}">\n')
        return webbrowser.open(page.as_uri())
    except (OSError, webbrowser.Error):
        return False
