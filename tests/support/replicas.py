"""Two replicas of one node, as real processes on one real NATS server."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.store.nats_server import NatsServer
from tests.support.node_process import RunningNode, running_node

SOON = {
    "interlock.core.replicas:LEASE_S": 3.0,
    "interlock.core.replicas:RENEW_S": 0.5,
    "interlock.approvals.inbox:LEASE_S": 1.0,  # how often the inbox looks for approvals of lost replicas
}


class Replicas(NamedTuple):
    one: RunningNode
    other: RunningNode
    server: NatsServer


def replica_config(server: NatsServer, extra: str) -> str:
    return f'{extra}\n[store]\nbackend = "nats"\nnats_url = "{server.url}"\n'


@contextlib.contextmanager
def running_replicas(
    folder: Path, servers: Mapping[str, Mapping[str, Any]] | None = None, extra: str = ""
) -> Iterator[Replicas]:
    server = NatsServer(folder / "nats")
    server.start()
    config = replica_config(server, extra)
    try:
        with (
            running_node(folder / "one", servers or {}, config, settings=SOON) as one,
            running_node(folder / "other", servers or {}, config, settings=SOON) as other,
        ):
            yield Replicas(one, other, server)
    finally:
        server.kill()
