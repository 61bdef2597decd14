"""Types of the operator API about budgets."""

from typing import Annotated

from msgspec import Meta, Struct


class Spent(Struct, frozen=True, kw_only=True):
    """Usage of one limit of a budget."""

    limit: Annotated[int, Meta(description="What may be used.")]
    used: Annotated[int, Meta(description="What is used so far.")]


class Budget(Struct, frozen=True, kw_only=True):
    """A budget of one caller or one tool, with its limits and usage."""

    scope: Annotated[str, Meta(description="Whose it is: caller or tool.")]
    name: Annotated[str, Meta(description="The principal, or the qualified name of the tool.")]
    limits: Annotated[dict[str, Spent], Meta(description="By the name of the limit.")]
