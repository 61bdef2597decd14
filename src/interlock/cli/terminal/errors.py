"""How a command ends when it does not succeed: the exit codes, and one error tree.

CommandFailed            whose fault                      what the person does next
├── Refused         1    the node, a server, a file       reads the hint
├── BadUsage        2    the command line                 looks at --help
├── Waits           3    no one's                         decides, or has it decided
└── Unreachable     4    no node answers                  starts the node or corrects --url
"""

from typing import Any, ClassVar, Self

EXIT_DONE = 0
EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_WAITS = 3
EXIT_UNREACHABLE = 4
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE


class CommandFailed(Exception):
    """`error` is the name a program acts on, the message one line for a person, the hint what to do next."""

    exit_code: ClassVar[int]

    def __init__(
        self, error: str, message: str, *, hint: str | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.hint = hint
        self.details = details or {}

    def with_hint(self, hint: str) -> Self:
        """The same, with what to do next."""
        return type(self)(self.error, self.message, hint=hint, details=self.details)


class Refused(CommandFailed):
    exit_code = EXIT_REFUSED


class BadUsage(CommandFailed):
    exit_code = EXIT_USAGE


class Waits(CommandFailed):
    """Nothing was done yet: a person has to decide first."""

    exit_code = EXIT_WAITS


class Unreachable(CommandFailed):
    exit_code = EXIT_UNREACHABLE
