"""Construction of the node's store from the configuration.

With the backend sqlite, the store is a file in the data folder, for a single node. With other backends, the store is on
servers that the replicas of the node share. The secret for these servers is read for every connection, so that a
changed secret needs no restart.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from interlock.config.loosening import SIGNED, join_bindings, withhold_secrets
from interlock.config.plan import Plan
from interlock.config.secret_uses import BINDINGS, STORE, SecretUse, read_bindings
from interlock.core.clock import Clock
from interlock.core.store_backends import BACKENDS, build_store, load_class
from interlock.credentials.secret_references import SecretResolver, Unobtainable, withheld_reason
from interlock.store.ports import NamesLog, NatsServers, SharedPlace, Store, StoreError, StoreRefused
from interlock.store.sqlite.secrets import SealedSecrets
from interlock.store.sqlite.store import read_buckets

if TYPE_CHECKING:
    from interlock.store.nats.connection import Connection

# Used in place of a node's name for data that all nodes share. No node can have this name.
ALL_NODES: Final = " "


def build_shared_store(plan: Plan, data: Path, clock: Clock | None = None) -> Store:
    """Construct the store of a node. All replicas of the node use the same store."""
    return build_store(plan.store.backend, data, _find_shared_place(plan, data, clock or Clock()))


def build_names_log(plan: Plan, data: Path, clock: Clock | None = None) -> NamesLog:
    """Construct the log of the names registry, which is kept in the same place as the node's store."""
    place = _find_shared_place(plan, data, clock or Clock())
    names_log: NamesLog = load_class(BACKENDS[plan.store.backend].names_log)(data if place is None else place)
    return names_log


def find_tree_store(plan: Plan, clock: Clock) -> Store | None:
    """Return the store that all aggregators of a tree share, or None if there is none.

    It is in a folder, or on the servers of the node's store.
    """
    if plan.store.shared is not None:
        return build_store("sqlite", plan.store.shared)
    place = _find_shared_place(plan, plan.data, clock)
    return None if place is None else build_store(plan.store.backend, plan.data, replace(place, node=ALL_NODES))


async def find_store_problem(plan: Plan, data: Path) -> str | None:
    """Return why the servers of the store reject this node. Return None if they accept it, or if the store is a file.

    Nothing is written.
    """
    place = _find_shared_place(plan, data, Clock())
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


def _find_withheld(plan: Plan, data: Path) -> SecretUse | None:
    """Return the use of a secret by the store if no person has confirmed this use, otherwise None. The confirmed uses
    are read from the data folder, because the store is opened before the node has compared its configuration with the
    signed one.
    """
    stored = read_buckets(data, SIGNED[0], BINDINGS)
    signed = stored.pop(SIGNED, None)
    if signed is None:
        return None
    confirmed = join_bindings(msgspec.json.decode(signed, type=dict[str, Any]), read_bindings(stored.values()))
    # AX-11.N-3: nor does another server of the store get a secret
    return next((use for use in withhold_secrets(confirmed, plan).withheld_secrets if use.segment == STORE), None)


def _find_shared_place(plan: Plan, data: Path, clock: Clock) -> SharedPlace | None:
    if not BACKENDS[plan.store.backend].is_shared:
        return None
    ca_file, secret = plan.store.nats_ca_file, plan.store.nats_secret

    async def resolve() -> str:
        if (use := await asyncio.to_thread(_find_withheld, plan, data)) is not None:
            raise StoreRefused(f"The store on NATS cannot be opened: {withheld_reason(use)}")
        secrets = SealedSecrets(data)
        await secrets.open()
        try:
            return await SecretResolver(secrets, clock).text(secret or "")
        except Unobtainable as missing:
            raise StoreRefused(f"The store on NATS cannot be opened: {missing}") from None
        finally:
            await secrets.close()

    servers = NatsServers(
        urls=plan.store.nats_url,
        secret=resolve if secret is not None else None,
        ca_file=str(ca_file) if ca_file is not None else None,
    )
    return SharedPlace(servers=servers, node=plan.node.name, replicas=plan.store.nats_replicas)
