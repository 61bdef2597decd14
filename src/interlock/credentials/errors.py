"""Why there is no token for a server. The message is for the operator: it says what happened and what to do.

Unobtainable
  NoOAuth        the server refuses us and says nothing of OAuth: its headers are to be looked at
  TokenRefused   its authorization server was asked and said no; `code` is its own name for that
"""


class Unobtainable(Exception):
    """`passing`: the same may work in a while."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


class NoOAuth(Unobtainable):
    """The server names no authorization server that could give a token."""


class TokenRefused(Unobtainable):
    def __init__(self, code: str) -> None:
        super().__init__(f"its authorization server refuses us a token: {code}")
        self.code = code
