"""Registries of our own, for tests that install: wheels in a folder, and a small npm registry on the loopback."""

import base64
import hashlib
import http.server
import io
import json
import os
import shutil
import tarfile
import threading
import urllib.parse
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

needs_node = pytest.mark.skipif(
    shutil.which("npm") is None or shutil.which("node") is None, reason="Node.js is not installed: npm is not shown"
)


class WheelFolder:
    """Wheels in a folder, and the environment in which pip knows nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(folder),
        }

    def put(self, name: str, version: str = "1.0", scripts: tuple[str, ...] = (), program: str | None = None) -> None:
        """`program`: a module with a function main, in place of one that prints its name and arguments."""
        module = name.replace("-", "_")
        info = f"{module}-{version}.dist-info"
        files = {
            f"{module}_program.py": program
            or f"import sys\ndef main():\n    print('{name} {version}', *sys.argv[1:])\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": "[console_scripts]\n"
            + "".join(f"{script} = {module}_program:main\n" for script in scripts),
        }
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
        with zipfile.ZipFile(self.folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)

    def put_source(self, name: str, statement: str, version: str = "1.0") -> None:
        """A source distribution; `statement` runs whenever something of it is built."""
        # A backend of its own: a build in isolation can get nothing from an index that is not there.
        backend = (
            f"{statement}\n"
            "def build_wheel(*_, **__): raise SystemExit(1)\n"
            "def build_sdist(*_, **__): raise SystemExit(1)\n"
        )
        project = f'[project]\nname = "{name}"\nversion = "{version}"\n'
        build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        base = f"{name}-{version}"
        with tarfile.open(self.folder / f"{base}.tar.gz", "w:gz") as archive:
            for path, text in {"backend.py": backend, "pyproject.toml": build + project, "PKG-INFO": about}.items():
                entry = tarfile.TarInfo(f"{base}/{path}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture
def wheel_folder(tmp_path: Path) -> WheelFolder:
    return WheelFolder(tmp_path / "shelf")


class RecordedProgress(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


class NpmRegistry:
    """A small npm registry on the loopback."""

    def __init__(self, port: int, home: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.packages: dict[str, dict[str, Any]] = {}
        self.tarballs: dict[str, bytes] = {}
        drop = ("npm_config_", "PIP_")
        self.env = {name: value for name, value in os.environ.items() if not name.lower().startswith(drop)} | {
            "npm_config_registry": self.url,
            "npm_config_cache": str(home / "npm-cache"),
            "npm_config_userconfig": str(home / "no-npmrc"),
            "npm_config_globalconfig": str(home / "no-global-npmrc"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def put(self, name: str, version: str = "1.0.0", *, program: str = "", **manifest: Any) -> None:
        manifest = {"name": name, "version": version} | manifest
        program = program or f"console.log({json.dumps(f'{name} {version}')}, ...process.argv.slice(2))\n"
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for path, text in {"package.json": json.dumps(manifest), "main.js": program, "other.js": program}.items():
                entry = tarfile.TarInfo(f"package/{path}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        tarball = f"/tarballs/{len(self.tarballs)}.tgz"
        self.tarballs[tarball] = raw.getvalue()
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(raw.getvalue()).digest()).decode()
        known = self.packages.setdefault(name, {"name": name, "versions": {}, "dist-tags": {}})
        known["versions"][version] = manifest | {"dist": {"tarball": self.url + tarball, "integrity": integrity}}
        known["dist-tags"]["latest"] = version


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[NpmRegistry]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urllib.parse.unquote(self.path)
            body = serving.tarballs.get(path)
            if body is None and path[1:] in serving.packages:
                body = json.dumps(serving.packages[path[1:]]).encode()
            self.send_response(404 if body is None else 200)
            body = body or b"{}"
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        serving = NpmRegistry(server.server_port, tmp_path)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        server.shutdown()
        thread.join()
