"""What tests of installing share: drivers as values, the operator's settings, files on the loopback."""

import http.server
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.drivers.driver_texts import as_driver, driver

from interlock.config.plan import DriversPlan
from interlock.drivers.install.install import install
from interlock.drivers.install.installation import Caged, Installation, Installed, InstallFailed, Locked
from interlock.drivers.protocol.model import Driver
from interlock.process.packages.package_store import PackageFolders


def declared(**fields: Any) -> Driver:
    reading = as_driver(driver(**fields))
    assert reading.value is not None, reading.problems
    return reading.value


def output(argv: tuple[str, ...], *more: str) -> str:
    return subprocess.run([*argv, *more], capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Place:
    """One node's folders, and its driver's."""

    def __init__(self, root: Path, env: Mapping[str, str] | None = None) -> None:
        self.workspace = root / "work"
        self.folder = self.workspace / ".drivers" / "filesystem-mcp"
        self.folder.mkdir(parents=True)
        self.packages = root / "data" / "packages"
        self.store = root / "store"
        self.env = dict(os.environ if env is None else env)
        self.said: list[str] = []
        self.caged: Caged | None = None

    async def install(
        self, wanted: Driver, lock: Locked | None = None, settings: DriversPlan | None = None
    ) -> Installed | InstallFailed:
        installation = Installation(
            wanted,
            packages=PackageFolders(own=self.packages, store=self.store),
            folder=self.folder,
            workspace=self.workspace,
            progress=self.said.append,
            reaper=None,
            settings=settings or DriversPlan(),
            environment=self.env,
            caged=self.caged,
        )
        return await install(installation, lock)

    async def done(self, wanted: Driver, lock: Locked | None = None, settings: DriversPlan | None = None) -> Installed:
        outcome = await self.install(wanted, lock, settings)
        assert isinstance(outcome, Installed), outcome
        return outcome

    async def failed(
        self, wanted: Driver, lock: Locked | None = None, settings: DriversPlan | None = None
    ) -> InstallFailed:
        outcome = await self.install(wanted, lock, settings)
        assert isinstance(outcome, InstallFailed), outcome
        return outcome


class Files:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.at: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.cut: set[str] = set()  # said to be longer than they are
        self.asked: list[str] = []


@contextmanager
def serving() -> Iterator[Files]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.asked.append(self.path)
            body = files.at.get(self.path)
            if self.path in files.moved:
                self.send_response(302)
                self.send_header("Location", files.moved[self.path])
                body = b""
            else:
                self.send_response(404 if body is None else 200)
                body = body or b""
            self.send_header("Content-Length", str(len(body) + (10 if self.path in files.cut else 0)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        files = Files(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield files
        finally:
            server.shutdown()
            thread.join()
