"""Signing what a change controller states to a registry of names, with a key of the person at this machine."""

import secrets
import time
from typing import Any, Final, get_args

import msgspec

from interlock.approvals.cli.operator_keys import OperatorKeys
from interlock.approvals.cli.passphrases import read_passphrase
from interlock.cli.terminal.errors import BadUsage, Refused
from interlock.names.api import NamesAction
from interlock.names.protocol.statements import CHARS_MAX, STATEMENT_S_MAX, TYP, statement_claims

JTI_BYTES: Final = 16
_OF_PREFIXES: Final = ("consent", "dispute")


class SignedStatement(msgspec.Struct, frozen=True, kw_only=True):
    statement: str
    registry: str
    path: str  # where the registry takes it
    seconds: int  # for how long it counts


def sign_statement(
    action: str,
    subject: str,
    controller: str,
    body: dict[str, Any],
    *,
    key: str,
    registry: str,
    passphrase_fd: int | None,
) -> SignedStatement:
    if action not in get_args(NamesAction):
        raise BadUsage("usage", f"actions are {', '.join(get_args(NamesAction))}")
    keys = OperatorKeys()
    if action == "request":
        body = _request(keys, subject, controller, body, key)
    signer = keys.open(key, lambda: read_passphrase(key, passphrase_fd))
    jti = secrets.token_urlsafe(JTI_BYTES)
    claims = statement_claims(controller, action, subject, body, registry=registry, jti=jti, now=time.time())
    statement = signer.sign(TYP, claims)
    if len(statement) > CHARS_MAX:
        raise Refused("too_large", f"a statement has at most {CHARS_MAX} characters")
    return SignedStatement(
        statement=statement, registry=registry, path=_path(action, subject), seconds=int(STATEMENT_S_MAX)
    )


def _request(keys: OperatorKeys, name: str, controller: str, body: dict[str, Any], key: str) -> dict[str, Any]:
    """With the public half of the key, so that its signatures count from then on."""
    public = keys.maybe_public(key)
    if public is None:
        raise keys.unknown(key)
    if body.get("change_controller", controller) != controller:
        raise BadUsage("usage", f"the file asks for another controller: {str(body['change_controller'])[:100]}")
    return {"controller_key": public, **body, "surface_name": name, "change_controller": controller}


def _path(action: str, subject: str) -> str:
    if action == "request":
        return "/registry/requests"
    if action == "cancel":
        return f"/registry/requests/{subject}/cancel"
    return f"/registry/{'prefixes' if action in _OF_PREFIXES else 'names'}/{subject}/{action}"
