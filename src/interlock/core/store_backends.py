"""The one table of store backends: a name of `store.backend` -> the classes that serve it, imported when chosen.

Building opens nothing: the caller opens and closes what it gets.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from interlock.store.ports import SharedPlace, Store, StoreRefused
from interlock.store.sqlite.audit import SqliteAudit, SqliteAuditReader


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """The classes that implement one store backend, each as "module:Class"."""

    store: str
    names_log: str
    is_shared: bool = False  # by the replicas of a node; otherwise it is a file in the data folder


BACKENDS = {
    "sqlite": Backend(
        store="interlock.store.sqlite.store:SqliteStore",
        names_log="interlock.store.sqlite.store:SqliteNamesLog",
    ),
    "nats": Backend(
        store="interlock.store.nats.store:NatsStore",
        names_log="interlock.store.nats.store:NatsNamesLog",
        is_shared=True,
    ),
}


class UnknownBackend(Exception):
    """An error raised if the setting `store.backend` names no known store."""


class MissingLibrary(StoreRefused):
    """An error raised if the backend needs a package that is not installed."""


def build_store(backend: str, data: Path, shared: SharedPlace | None = None) -> Store:
    """Build the store of a backend without opening it. `shared` is the location of a store that replicas share."""
    chosen = _backend(backend)
    store: Store = load_class(chosen.store)(shared if chosen.is_shared else data)
    return store


def build_audit(backend: str, data: Path) -> SqliteAudit:
    """Build the audit log in the data folder without opening it.

    It is there with every backend, because each replica keeps the chain of its own work (docs/decisions/0089).
    """
    _backend(backend)
    return SqliteAudit(data)


def build_audit_reader(backend: str, data: Path) -> SqliteAuditReader:
    """Build a reader of the audit log. It changes nothing in the data folder, so a node may be running there."""
    _backend(backend)
    return SqliteAuditReader(data)


def _backend(name: str) -> Backend:
    if name not in BACKENDS:
        raise UnknownBackend(f"There is no store backend {name!r}. Set store.backend to one of: {', '.join(BACKENDS)}.")
    return BACKENDS[name]


def load_class(reference: str) -> Any:
    """Import and return a class named `module:name`. Raise MissingLibrary if the package for NATS is missing."""
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("nats"):
            raise
        raise MissingLibrary(
            "store.backend = \"nats\" needs the package nats-py, which is not installed: pip install 'interlock[nats]'"
        ) from missing
