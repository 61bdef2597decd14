"""Exceptions with which commands fail, and their exit statuses.

Refused                  whose fault                      what the person does next
│                   1    the node, a server, a file       reads the hint
├── BadUsage        2    the command line                 looks at --help
├── Waits           3    no one's                         decides, or has it decided
└── Unreachable     4    no node answers                  starts the node or corrects --url
"""

from typing import ClassVar

from interlock.wire.refusal import Refused

EXIT_DONE = 0
EXIT_REFUSED = Refused.exit_status
EXIT_USAGE = 2
EXIT_WAITS = 3
EXIT_UNREACHABLE = 4
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE


class BadUsage(Refused):
    """An error for a command line with invalid arguments."""

    exit_status: ClassVar[int] = EXIT_USAGE


class Waits(Refused):
    """An error for a command whose effect begins only when a person has decided about it."""

    exit_status: ClassVar[int] = EXIT_WAITS


class Unreachable(Refused):
    """An error for a command whose node does not answer."""

    exit_status: ClassVar[int] = EXIT_UNREACHABLE
