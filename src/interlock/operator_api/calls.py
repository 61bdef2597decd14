"""Calls that an operator makes: what comes back, as it comes."""

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType


class CallProgress(Struct, frozen=True, kw_only=True):
    """How far a call is, as its server says it."""

    progress: Annotated[float, Meta(description="How far.")]
    total: Annotated[float | None, Meta(description="Of how much; null: not known.")] = None
    message: Annotated[str | None, Meta(description="In words.")] = None


class CallHeld(Struct, frozen=True, kw_only=True):
    """A call that waits for a person. Once it is approved the same call runs, once."""

    approval_id: Annotated[str, Meta(description="The approval that it waits for.")]
    url: Annotated[str | None, Meta(description="Its page, at the node that holds the call.")]


class CallEvent(Struct, frozen=True, kw_only=True):
    """Progress any number of times, then a result or an error. The stream ends with it."""

    progress: Annotated[CallProgress | UnsetType, Meta(description="How far it is.")] = UNSET
    result: Annotated[Raw | UnsetType, Meta(description="The result, as clients get it.")] = UNSET
    held: Annotated[CallHeld | UnsetType, Meta(description="With a result that says that the call waits.")] = UNSET
    error: Annotated[Raw | UnsetType, Meta(description="Why there is none: code, message and data.")] = UNSET
