"""What a participant can raise.

RoomInvalid             what the participant was given cannot work; raised before anything is dialled
RoomError
  RoomUnreachable       no connection now; another try may succeed
  RoomRefused           the gateway does not want this participant, or no longer: another try is of no use
  EnvelopeRefused       the gateway did not publish what was sent
  NoAnswer              nothing came in time, or nobody is there who could answer
  CallFailed            the one who was asked answered with an error
  ProposalEnded         a proposal was rejected, withdrawn, or expired
"""

from typing import Any, Final

SAID: Final = {
    "expired": "the proposal has expired",
    "void": "the proposal counts no more",
    "unknown": "the proposal was performed, and no answer came",
}


class RoomInvalid(ValueError):
    pass


class RoomError(Exception):
    pass


class RoomUnreachable(RoomError):
    pass


class RoomRefused(RoomError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message


class EnvelopeRefused(RoomError):
    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.details = details or {}


class NoAnswer(RoomError):
    pass


class CallFailed(RoomError):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class ProposalEnded(RoomError):
    """`status` is rejected, withdrawn, expired, void or unknown; `by` who did it, where it was somebody."""

    def __init__(self, status: str, by: str | None = None, reason: str | None = None) -> None:
        said = SAID.get(status, f"the proposal was {status}")
        super().__init__(said + (f" by {by}" if by else "") + (f": {reason}" if reason else ""))
        self.status = status
        self.by = by
        self.reason = reason
