"""The kind of value that says how OAuth tokens for a server are had: which grant, as which client, for whom."""

from typing import Final

from interlock.config.issuers import OAUTH_SCOPE, Protected
from interlock.config.location import WRONG, At, Wrong
from interlock.config.plan import OAuthPlan
from interlock.config.table_type import Record
from interlock.config.value_types import Choice, FilePath, Kind, Many, Text

_FIELDS: Final[dict[str, Kind]] = {
    "grant": Choice(values=("authorization_code", "client_credentials")),
    "issuer": Protected(),
    "client_id": Text(references=True),
    "client_secret": Text(references=True, stored=True),
    "private_key": FilePath(),
    "scopes": Many(item=Text(pattern=OAUTH_SCOPE, what="an OAuth scope")),
    "per": Choice(values=("server", "user")),
}


class _ServerAuth(Record, frozen=True, kw_only=True):
    def read(self, value: object, at: At) -> OAuthPlan | Wrong:
        plan: OAuthPlan | Wrong = super().read(value, at)
        return WRONG if isinstance(plan, Wrong) or _misfits(plan, at) else plan


def _misfits(plan: OAuthPlan, at: At) -> bool:
    proven = plan.client_secret is not None or plan.private_key is not None
    if plan.client_secret is not None and plan.private_key is not None:
        at.wrong(f"{at.name} has client_secret and private_key", "keep one of them")
    elif plan.grant == "client_credentials" and (plan.client_id is None or not proven):
        hint = "client_secret, or private_key, is what the node proves itself with"
        at.wrong(f"{at.name} with client_credentials needs 'client_id' and a proof", hint)
    elif plan.grant == "client_credentials" and plan.per == "user":
        at.inside("per").wrong(f"{at.name} with client_credentials is nobody's own", "leave 'per' out")
    else:
        return False
    return True


SERVER_AUTH: Final = _ServerAuth(
    what="'auth'",
    where="[servers.SEGMENT.auth]",
    fields=_FIELDS,
    needed=(),
    beside={"client_secret": ("client_id",), "private_key": ("client_id",)},
    make=OAuthPlan,
)
