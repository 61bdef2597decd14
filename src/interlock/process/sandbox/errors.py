"""Why a sandbox is not made.

SandboxFailed - sandbox_unavailable: this machine has none; the operator repairs it, or does without (drivers.sandbox)
              - sandbox_invalid: what is declared cannot be granted; its author corrects it
"""

from typing import Literal


class SandboxFailed(Exception):
    """The server is not started; the message says what to do."""

    def __init__(self, code: Literal["sandbox_unavailable", "sandbox_invalid"], message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
