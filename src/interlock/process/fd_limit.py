"""How many files and connections this process may have open.

Systems start a program with a limit of often 1024, for the sake of programs that use `select`, and let it raise its own
as far as a second limit. A node holds one descriptor per connection, so it does.
"""

import sys
from typing import Final

WANTED: Final = 65_536  # two connections of each session, one of each call under way or parked, with all at their most
UNLIMITED: Final = 1_000_000  # where the system names no limit


def raise_limit() -> None:
    """Take what the system grants, up to WANTED. What it does not grant stays as it was."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            pass  # macOS has a third limit, and tells it nowhere


def limit() -> int:
    if sys.platform == "win32":
        return UNLIMITED
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft
