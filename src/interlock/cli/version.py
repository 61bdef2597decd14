"""The command `interlock version`."""

import platform

from interlock import __version__
from interlock.cli.command import Invocation, verb, verb_app

app = verb_app("Show the version.")


@verb(
    app,
    "version",
    examples="""
    interlock version
    interlock version --json
    """,
)
def version(invocation: Invocation) -> None:
    """Show the version."""
    python, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    if invocation.out.as_json:
        invocation.out.json({"version": __version__, "python": python, "platform": system})
    else:
        invocation.out.line(f"interlock {__version__} (Python {python}, {system})")
