"""The operator API about budgets."""

from typing import Annotated

from msgspec import Meta, Struct


class Spent(Struct, frozen=True, kw_only=True):
    """Use of one limit of a budget."""

    limit: Annotated[int, Meta(description="What may be used.")]
    used: Annotated[int, Meta(description="What is used so far.")]


class Budget(Struct, frozen=True, kw_only=True):
    """The budget of one caller or one tool."""

    scope: Annotated[str, Meta(description="Whose it is: caller or tool.")]
    name: Annotated[str, Meta(description="The principal, or the qualified name of the tool.")]
    limits: Annotated[dict[str, Spent], Meta(description="By the name of the limit.")]
