"""Types of the operator API about budgets."""

from msgspec import Struct


class Spent(Struct, frozen=True, kw_only=True):
    """A limit of a budget, and how much of it is used.

    Members:
        limit: What may be used.
        used: What is used so far.
    """

    limit: int
    used: int


class Budget(Struct, frozen=True, kw_only=True):
    """A budget of one caller or one tool, with its limits and usage.

    Members:
        scope: Whose it is: caller or tool.
        name: The principal, or the qualified name of the tool.
        limits: By the name of the limit.
    """

    scope: str
    name: str
    limits: dict[str, Spent]
