"""Secrets at the operator endpoint: set, listed by name, forgotten."""

from typing import get_args

from starlette.exceptions import HTTPException

from interlock.credentials.api import RemovedSecret, SecretKind, Secrets, SetSecret, StoredSecret
from interlock.operator.endpoint import Endpoint, OperatorExchange
from interlock.operator.error_cases import BAD_SECRET_NAME, NOT_FOUND


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


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/admin/secrets",
        handler=list_secrets,
        summary="The names of everything that is kept, never the values.",
    ),
    Endpoint(
        method="POST",
        path="/admin/secrets",
        handler=set_secret,
        summary="Keep a secret. Servers that name it are started afresh with it.",
        role="admin",
        status=201,
        errors=(BAD_SECRET_NAME,),
    ),
    Endpoint(
        method="DELETE",
        path="/admin/secrets/{kind}/{name:path}",
        handler=remove_secret,
        summary="Forget a secret, a token for a server or a client registration.",
        role="admin",
        errors=(NOT_FOUND,),
    ),
)
