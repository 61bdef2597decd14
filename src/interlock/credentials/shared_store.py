"""The store that replicas of a node share, as the configuration names it.

With the backend sqlite there is one node, and it is the file in the data folder. The secret that opens a server is read
anew for every connection: a changed one needs no restart.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.store_backends import BACKENDS, build_store, load_class
from interlock.credentials.errors import Unobtainable
from interlock.credentials.secret_references import SecretResolver
from interlock.store.nats.servers import NatsServers, SharedPlace
from interlock.store.ports import NamesLog, Store, StoreError, StoreRefused
from interlock.store.sqlite.secrets import Secrets

if TYPE_CHECKING:
    from interlock.store.nats.connection import Connection

ALL_NODES: Final = " "  # stands where else a node's name does, and is none


def build_shared_store(plan: Plan, data: Path, clock: Clock | None = None) -> Store:
    return build_store(plan.store.backend, data, _maybe_place(plan, data, clock or Clock()))


def build_names_log(plan: Plan, data: Path, clock: Clock | None = None) -> NamesLog:
    place = _maybe_place(plan, data, clock or Clock())
    names_log: NamesLog = load_class(BACKENDS[plan.store.backend].names_log)(data if place is None else place)
    return names_log


def maybe_tree_store(plan: Plan, clock: Clock) -> Store | None:
    """Return the store that all aggregators of a tree share: a folder, or the servers of the store. Return None if
    there is none.
    """
    if plan.store.shared is not None:
        return build_store("sqlite", plan.store.shared)
    place = _maybe_place(plan, plan.data, clock)
    return None if place is None else build_store(plan.store.backend, plan.data, replace(place, node=ALL_NODES))


async def maybe_trouble(plan: Plan, data: Path) -> str | None:
    """Return why the servers of the store do not accept this node, or None. Nothing is written."""
    place = _maybe_place(plan, data, Clock())
    if place is None:
        return None
    try:
        connection: Connection = load_class("interlock.store.nats.connection:Connection")(place.servers, "the store")
    except StoreRefused as missing:
        return str(missing)
    try:
        await connection.open()
    except StoreError as refused:
        return str(refused)
    finally:
        await connection.close()
    return None


def _maybe_place(plan: Plan, data: Path, clock: Clock) -> SharedPlace | None:
    if not BACKENDS[plan.store.backend].is_shared:
        return None
    ca_file, secret = plan.store.nats_ca_file, plan.store.nats_secret
    servers = NatsServers(
        urls=plan.store.nats_url,
        secret=_resolver(data, secret, clock) if secret is not None else None,
        ca_file=str(ca_file) if ca_file is not None else None,
    )
    return SharedPlace(servers=servers, node=plan.node.name, replicas=plan.store.nats_replicas)


def _resolver(data: Path, written: str, clock: Clock) -> Callable[[], Awaitable[str]]:
    async def resolve() -> str:
        secrets = Secrets(data)
        await secrets.open()
        try:
            return await SecretResolver(secrets, clock).text(written)
        except Unobtainable as missing:
            raise StoreRefused(f"The store on NATS cannot be opened: {missing}") from None
        finally:
            await secrets.close()

    return resolve
