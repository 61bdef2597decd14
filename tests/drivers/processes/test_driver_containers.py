"""Is a container composed so that no value is seen, no port is open to others, and the same image runs again?"""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.drivers import fake_docker
from tests.drivers.installs import Place, declared, program

from interlock.config.plan import DriversPlan
from interlock.drivers.install.installation import differences
from interlock.drivers.kinds import DockerKind, remove_leftover_containers
from interlock.drivers.protocol.model import Driver
from interlock.process.child import Child
from interlock.process.stderr import StderrRing

FIRST, SECOND = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
SERVER = (
    "import json, os, sys\n"
    "for line in sys.stdin:\n"
    "    asked = json.loads(line)\n"
    "    told = {'argv': sys.argv[1:], 'env': dict(os.environ), 'asked': asked['method']}\n"
    "    print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], 'result': told}), flush=True)\n"
)


class Client:
    """The fake `docker` on a PATH of its own."""

    def __init__(self, root: Path, name: str = "docker") -> None:
        self.folder = root / f"{name}-client"
        self.folder.mkdir()
        shutil.copy(fake_docker.__file__, self.folder / "fake_docker.py")
        self.path = program(
            self.folder / name, f"#!/bin/sh\nexec '{sys.executable}' '{self.folder}/fake_docker.py' \"$@\"\n"
        )
        (self.folder / "server.py").write_text(SERVER)
        self.state(registry={"acme/server:1.0": FIRST}, images={})

    def state(self, **changed: Any) -> None:
        file = self.folder / "state.json"
        before = json.loads(file.read_text()) if file.exists() else {}
        server = [sys.executable, str(self.folder / "server.py")]
        file.write_text(json.dumps({"server": server, "containers": []} | before | changed))

    def calls(self, first: str) -> list[dict[str, Any]]:
        log = self.folder / "calls.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [line for line in lines if line["argv"][0] == first]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


@pytest.fixture
def place(tmp_path: Path, client: Client) -> Place:
    made = Place(tmp_path)
    made.env["PATH"] = f"{client.folder}:/usr/bin:/bin"
    return made


def container(image: str = "acme/server:1.0", transport: str = "stdio", **more: Any) -> Driver:
    fields = {key: more.pop(key) for key in ("install", "network", "sandbox") if key in more}
    return declared(server={"kind": "docker", "image": image, **more}, transport=transport, **fields)


@pytest.mark.req("AIP-server-6", "AIP-security-2")
async def test_the_command_names_every_variable_and_holds_no_value(place: Place, client: Client) -> None:
    wanted = container(
        args=["--mode", "safe"],
        env={"DATABASE_URL": "${secrets.POSTGRES_URL}", "LEVEL": "in the clear"},
        volumes=["/srv/data:/data:ro", "cache:/cache"],
        cwd="/data",
    )
    done = await place.done(wanted)
    assert done.command[:5] == (str(client.path), "run", "-i", "--rm", "--init")
    words = list(done.command)
    pairs = [(word, words[place + 1]) for place, word in enumerate(words[:-1])]
    assert [value for word, value in pairs if word == "-e"] == ["DATABASE_URL", "LEVEL"]
    assert ("--network", "none") in pairs
    assert [value for word, value in pairs if word == "-v"] == ["/srv/data:/data:ro", "cache:/cache"]
    assert ("-w", "/data") in pairs
    assert ("--pull", "never") in pairs
    assert ("--security-opt", "no-new-privileges") in pairs
    assert "-p" not in words
    assert words[-1] == f"acme/server@{FIRST}"
    joined = " ".join(words)
    assert "in the clear" not in joined
    assert "secrets" not in joined
    assert done.url is None


class Sink:
    def __init__(self) -> None:
        self.line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()

    def on_line(self, data: bytes) -> None:
        if not self.line.done():
            self.line.set_result(data)

    def on_gone(self, reason: str) -> None:
        self.gone.set()
        if not self.line.done():
            self.line.set_exception(AssertionError(reason))

    def on_oversized(self, found: object) -> None:
        pass

    def on_stalled(self) -> None:
        raise AssertionError


@pytest.mark.req("AIP-server-6")
async def test_a_server_in_a_container_answers_and_has_its_values_from_the_clients_environment(place: Place) -> None:
    wanted = container(args=["one", "two words"], env={"TOKEN_NAME": "x"})
    installed = await place.done(wanted)
    secret = "s3cret-value"
    sink = Sink()
    child = Child(
        (*installed.command, *wanted.server.args),  # type: ignore[union-attr]
        {"PATH": "/usr/bin:/bin", "NOT_NAMED": "host", "TOKEN_NAME": secret, **installed.env},
        None,
        max_message_bytes=100_000,
        sink=sink,
        stderr=StderrRing(now=lambda: 0.0),
        reaper=None,
    )
    try:
        await child.start()
        assert child.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        answer = json.loads(await asyncio.wait_for(sink.line, 20))["result"]
        seen = b" ".join((Path("/proc") / str(child.pid) / "cmdline").read_bytes().split(b"\0"))
    finally:
        await child.stop()
    assert answer["asked"] == "ping"
    assert answer["argv"] == ["one", "two words"]
    assert answer["env"]["TOKEN_NAME"] == secret
    assert "NOT_NAMED" not in answer["env"]
    assert secret.encode() not in seen
    assert sink.gone.is_set()


@pytest.mark.req("AIP-server-6")
async def test_http_is_published_on_the_loopback_only(place: Place) -> None:
    wanted = container(transport="http", port=8080, path="/api/mcp", network={"egress": ["*"]})
    done = await place.done(wanted)
    published = [done.command[at + 1] for at, word in enumerate(done.command) if word == "-p"]
    assert len(published) == 1
    address, port, inside = published[0].split(":")
    assert (address, inside) == ("127.0.0.1", "8080")
    assert done.url == f"http://127.0.0.1:{port}/api/mcp"
    another = DockerKind().of_new_process(done)
    assert another.url is not None
    assert another.url != done.url
    assert another.url.split("/")[2] in " ".join(another.command)
    assert [word for word in another.command if word not in done.command] == [f"{another.url.split('/')[2]}:8080"]


@pytest.mark.req("AIP-security-2")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"network": {"egress": ["api.example.com"]}}, "sandbox_unavailable"),
        ({"transport": "http", "port": 8080}, "sandbox_unavailable"),
        ({"transport": "http", "port": 8080, "network": {"egress": ["a.example.com"]}}, "sandbox_unavailable"),
    ],
)
async def test_a_network_that_cannot_be_held_to_the_list_is_refused_unless_the_operator_opens_it(
    place: Place, fields: dict[str, Any], code: str
) -> None:
    failed = await place.failed(container(**fields))
    assert failed.code == code
    assert "drivers.sandbox filesystem-mcp = off" in failed.reason
    done = await place.done(container(**fields), settings=DriversPlan(sandbox={"filesystem-mcp": "off"}))
    assert "--network" not in done.command


@pytest.mark.parametrize(
    "name",
    ["DOCKER_HOST", "DOCKER_CONFIG", "LD_PRELOAD", "PATH", "HOME", "CONTAINERS_CONF", "XDG_RUNTIME_DIR", "GODEBUG"],
)
async def test_a_variable_that_the_client_itself_obeys_is_refused(place: Place, name: str) -> None:
    failed = await place.failed(container(env={name: "x"}))
    assert failed.code == "install_failed"
    assert f"{name} would be obeyed by the client" in failed.reason


async def test_names_that_only_look_like_the_clients_are_passed(place: Place) -> None:
    names = ["GOOGLE_API_KEY", "STORAGE_BUCKET", "LDAP_URL", "HOMEPAGE", "PATHS"]
    done = await place.done(container(env=dict.fromkeys(names, "${secrets.X}")))
    assert [done.command[at + 1] for at, word in enumerate(done.command) if word == "-e"] == names


@pytest.mark.parametrize(
    "volume",
    [
        "/:/host",
        "/var/run/docker.sock:/sock",
        "relative/path:/data",
        "../up:/data",
        "/a:/b:exec",
        "nothing",
        ":/x",
        "/a:b",
    ],
)
async def test_a_volume_that_would_open_the_machine_is_refused(place: Place, volume: str) -> None:
    failed = await place.failed(container(volumes=[volume]))
    assert failed.code == "install_failed"
    assert "server.volumes" in failed.reason


async def test_the_nodes_own_data_is_no_volume(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for source in (tmp_path / "data", tmp_path, tmp_path / "link", tmp_path / "data" / "homes"):
        assert "the node itself" in (await place.failed(container(volumes=[f"{source}:/x"]))).reason


async def test_a_volume_is_mounted_by_its_real_path(place: Place, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    done = await place.done(container(volumes=[f"{tmp_path / 'link'}:/x:ro"]))
    assert f"{tmp_path / 'real'}:/x:ro" in done.command


@pytest.mark.req("AIP-server-5", "AIP-30.install-3", "AIP-30.install-1")
async def test_the_digest_of_the_first_pull_is_run_until_somebody_decides_otherwise(
    place: Place, client: Client
) -> None:
    wanted = container("acme/server:latest")
    client.state(registry={"acme/server:latest": FIRST})
    first = await place.done(wanted)
    assert first.lock.integrity == FIRST
    client.state(registry={"acme/server:latest": SECOND, "older": FIRST})
    again = await place.done(wanted, first.lock)
    assert lasting(again.command) == lasting(first.command)
    assert len(client.calls("pull")) == 1
    client.state(images={})  # removed from this machine: pulled again, by digest
    restored = await place.done(wanted, first.lock)
    assert lasting(restored.command) == lasting(first.command)
    assert client.calls("pull")[-1]["argv"] == ["pull", "--quiet", f"acme/server@{FIRST}"]
    newer = await place.done(wanted)
    assert differences(first.lock, newer.lock) == (f"integrity {FIRST} -> {SECOND}",)


@pytest.mark.req("AIP-server-5")
async def test_a_recorded_image_that_is_gone_everywhere_is_a_failure_and_nothing_else_is_run(
    place: Place, client: Client
) -> None:
    wanted = container("acme/server:latest")
    client.state(registry={"acme/server:latest": FIRST})
    lock = (await place.done(wanted)).lock
    other = await place.failed(wanted, msgspec.structs.replace(lock, integrity=SECOND))
    assert "no longer has the digest that was recorded" in other.reason
    client.state(registry={"acme/server:latest": SECOND}, images={})
    failed = await place.failed(wanted, lock)
    assert failed.code == "install_failed"
    assert "not found" in failed.reason


async def test_an_image_that_was_built_here_is_run_by_its_id(place: Place, client: Client) -> None:
    client.state(registry={}, images={FIRST: "mine:dev"}, local=["mine:dev"])
    done = await place.done(container("mine:dev"))
    assert done.command[-1] == FIRST


async def test_an_image_that_podman_made_here_is_run_though_no_registry_has_it(place: Place, client: Client) -> None:
    client.state(registry={}, images={FIRST: "localhost/mine:dev"})
    assert (await place.done(container("localhost/mine:dev"))).command[-1] == f"localhost/mine@{FIRST}"
    client.state(images={FIRST: "acme/server:1.0"})
    assert (await place.failed(container("acme/server:1.0"))).code == "install_failed"  # it may be an old one


@pytest.mark.req("AIP-30.install-2")
async def test_a_docker_address_in_download_is_a_pull_with_a_warning(place: Place, client: Client) -> None:
    """The published postgres example is written so."""
    install = [{"method": "download", "url": "docker://acme/server:1.0", "extract_bin": ""}]
    done = await place.done(container(install=install))
    assert done.command[-1] == f"acme/server@{FIRST}"
    assert [note.code for note in done.notes] == ["docker_url"]


async def test_an_image_that_does_not_exist_says_why(place: Place) -> None:
    failed = await place.failed(container("acme/absent:1"))
    assert "manifest for acme/absent:1 not found" in failed.reason


async def test_podman_is_used_where_docker_is_not(tmp_path: Path) -> None:
    podman = Client(tmp_path, "podman")
    place = Place(tmp_path)
    place.env["PATH"] = str(podman.folder) + ":/bin-without-docker"
    assert (await place.done(container())).command[0] == str(podman.path)
    place.env["PATH"] = str(tmp_path)
    assert "neither docker nor podman" in (await place.failed(container())).reason


async def test_the_client_has_the_address_of_its_engine_and_nothing_of_the_nodes_own(
    place: Place, client: Client
) -> None:
    place.env |= {"DOCKER_HOST": "unix:///run/x.sock", "INTERLOCK_TOKEN": "t", "AWS_SECRET": "y"}
    done = await place.done(container())
    assert done.env == {"DOCKER_HOST": "unix:///run/x.sock"}
    for call in client.calls("pull") + client.calls("image"):
        assert call["env"]["DOCKER_HOST"] == "unix:///run/x.sock"
        assert not {"INTERLOCK_TOKEN", "AWS_SECRET"} & set(call["env"])


def labels(command: tuple[str, ...]) -> dict[str, str]:
    words = [command[at + 1] for at, word in enumerate(command) if word == "--label"]
    return dict(word.split("=", 1) for word in words)


def lasting(command: tuple[str, ...]) -> list[str]:
    """Without the name of the one life it is for."""
    return [word for word in command if not word.startswith("dev.interlock.run=")]


@pytest.mark.req("AIP-server-6")
async def test_leftover_containers_of_a_driver_are_found_by_label_and_removed(place: Place, client: Client) -> None:
    command, other = (await place.done(container())).command, (await place.done(container())).command
    found = labels(command)
    assert found["dev.interlock.driver"] == "filesystem-mcp@1"
    assert found["dev.interlock.node"] == "default"
    assert found["dev.interlock.run"] != labels(other)["dev.interlock.run"]
    client.state(containers=["a" * 64, "not an id; rm", "b" * 64])
    assert await remove_leftover_containers(command, None) == 2
    (listed,) = client.calls("ps")
    assert f"label=dev.interlock.run={found['dev.interlock.run']}" in listed["argv"]
    assert client.calls("rm")[0]["argv"] == ["rm", "--force", "a" * 64, "b" * 64]
