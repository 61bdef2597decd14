"""What every declaration of the operator API is made of. Imports msgspec alone, so that commands start fast."""

from msgspec import Struct


class RequestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What every request body has in common: members that it does not know are refused."""
