"""The command `interlock version`."""

import platform

from interlock import __version__
from interlock.cli.command import Invocation, verb, verb_app

app = verb_app("Show the version.")


@verb(app, "version")
def version(invocation: Invocation) -> None:
    """Show the version.

    Examples:
    interlock version
    interlock version --json
    """
    python, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    if invocation.out.as_json:
        invocation.out.json({"version": __version__, "python": python, "platform": system})
    else:
        invocation.out.line(f"interlock {__version__} (Python {python}, {system})")
