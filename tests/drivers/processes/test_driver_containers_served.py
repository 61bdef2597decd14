"""Is a container that serves HTTP started, met at its own port of the loopback, and ended with its driver?"""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.drivers.driver_stage import SERVER, alive, driver_stage, until, wait_until_settled
from tests.drivers.installs import Place
from tests.drivers.processes.test_driver_containers import Client

from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import Installed, InstallFailed
from interlock.drivers.protocol.model import Driver

EVERYTHING = Path(__file__).parents[2] / "servers" / "everything.py"


def serving(client: Client, *words: str) -> None:
    client.state(server=[sys.executable, *words])


@pytest.mark.req("AIP-server-6")
async def test_a_container_that_serves_http_is_met_where_its_port_is_published(tmp_path: Path) -> None:
    client, place = Client(tmp_path), Place(tmp_path)
    place.env["PATH"] = f"{client.folder}:/usr/bin:/bin"
    serving(client, str(EVERYTHING), "--http", "{port}")
    async with driver_stage(tmp_path) as stage:

        async def install(driver: Driver, folder: Path, say: Any) -> Installed | InstallFailed:
            return await place.install(driver)

        stage.environment = msgspec.structs.replace(stage.environment, install=install)
        server = {"kind": "docker", "image": "acme/server:1.0", "port": 8080}
        network = {"egress": ["*"]}
        provider = stage.provider(server=server, transport="http", network=network, tools={"test_simple_text": "says"})
        await wait_until_settled(provider)
        await until(lambda: provider.state in (DriverState.READY, DriverState.UNAVAILABLE, DriverState.REJECTED))
        assert provider.state is DriverState.READY, (provider.reason, provider.problems)
        (keeper,) = [each for key, each in stage.node.calls.keepers.items() if key.startswith("driven-mcp@1")]
        assert keeper.link.transport == "http"
        pid = keeper.link.pid
        assert pid is not None
        assert alive(pid)
        (name,) = [each.name for each in (client.folder / "running").iterdir()]
        labels = (client.folder / "running" / name).read_text()
        (client.folder / "running" / ("0" * 64)).write_text(labels.replace("run=", "run=of-another-life-"))
        await provider.stop(at_once=True)
        assert not alive(pid)
        assert [each.name for each in (client.folder / "running").iterdir()] == ["0" * 64]  # what is not its own stays


@pytest.mark.req("AIP-server-6")
@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_after_the_host_has_shut_down_no_container_of_the_driver_is_there(
    tmp_path: Path, is_stubborn: bool
) -> None:
    """Over stdio, with its values in the client's environment alone; also where the client has to be killed."""
    client, place = Client(tmp_path), Place(tmp_path)
    place.env["PATH"] = f"{client.folder}:/usr/bin:/bin"
    serving(client, str(SERVER), "--log", str(tmp_path / "driven.log"), *(["--ignores-term"] if is_stubborn else []))
    async with driver_stage(tmp_path) as stage:

        async def install(driver: Driver, folder: Path, say: Any) -> Installed | InstallFailed:
            return await place.install(driver)

        stage.environment = msgspec.structs.replace(stage.environment, install=install)
        server = {"kind": "docker", "image": "acme/server:1.0", "env": {"LEVEL": "in the clear"}}
        provider = await wait_until_settled(stage.provider(server=server, network={"egress": []}))
        assert provider.state is DriverState.READY, (provider.reason, provider.problems)
        assert len(list((client.folder / "running").iterdir())) == 1
        (run,) = client.calls("run")
        assert "in the clear" not in " ".join(run["argv"])
        assert run["env"]["LEVEL"] == "in the clear"
        (pid,) = stage.log.pids
    assert not alive(pid)
    assert list((client.folder / "running").iterdir()) == []


async def test_a_container_that_never_serves_says_so(tmp_path: Path) -> None:
    client, place = Client(tmp_path), Place(tmp_path)
    place.env["PATH"] = f"{client.folder}:/usr/bin:/bin"
    serving(client, "-c", "import sys; print('no port here'); sys.stdin.read()")
    async with driver_stage(tmp_path) as stage:

        async def install(driver: Driver, folder: Path, say: Any) -> Installed | InstallFailed:
            return await place.install(driver)

        stage.environment = msgspec.structs.replace(stage.environment, install=install)
        server = {"kind": "docker", "image": "acme/server:1.0", "port": 8080}
        provider = stage.provider(
            server=server,
            transport="http",
            network={"egress": ["*"]},
            tools={"x": "says"},
            connection_options={"timeout_ms": 500, "max_retries": 1},
        )
        await until(lambda: provider.state is DriverState.UNAVAILABLE, 50)
        assert provider.reason
