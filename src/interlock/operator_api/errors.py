"""The one form in which the operator endpoint says no."""

from typing import Annotated, Any

from msgspec import Meta, Struct


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """Why a request was refused; with every status from 400 on."""

    error: Annotated[str, Meta(description="A name that a program can act on, for instance not_found.")]
    message: Annotated[str, Meta(description="The reason, for people.")]
    details: Annotated[dict[str, Any], Meta(description="What the message is about, for programs; often empty.")] = {}
