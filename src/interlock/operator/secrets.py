"""Secrets at the operator endpoint: set, listed by name, forgotten."""

from typing import get_args

from starlette.exceptions import HTTPException

from interlock.credentials.api import (
    LIST_SECRETS,
    REMOVE_SECRET,
    SET_SECRET,
    RemovedSecret,
    SecretKind,
    Secrets,
    SetSecret,
    StoredSecret,
)
from interlock.operator.endpoint import OperatorExchange, RequestHandlers


async def list_secrets(exchange: OperatorExchange[None]) -> Secrets:
    return await exchange.operations.secrets.list_all()


async def set_secret(exchange: OperatorExchange[SetSecret]) -> StoredSecret:
    wanted, secrets = exchange.body, exchange.operations.secrets
    put = secrets.keep if wanted.unless_kept else secrets.set
    return await put(wanted.name, wanted.value, exchange.principal)


async def remove_secret(exchange: OperatorExchange[None]) -> RemovedSecret:
    kind = next((known for known in get_args(SecretKind) if known == exchange.path("kind")), None)
    if kind is None:
        raise HTTPException(404)
    return await exchange.operations.secrets.remove(kind, exchange.path("name"), exchange.principal)


REQUEST_HANDLERS: RequestHandlers = {
    LIST_SECRETS: list_secrets,
    SET_SECRET: set_secret,
    REMOVE_SECRET: remove_secret,
}
