"""The program `interlock` as a real process, in a folder and an environment of its own."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.cli.app import run

PATIENCE_S = 20.0


class Finished:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Running:
    """A command that goes on until it is interrupted."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def next_line(self) -> str:
        line = self._lines.get(timeout=PATIENCE_S)
        assert line is not None, "the command ended"
        return line

    def interrupt(self) -> Finished:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        rest = []
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            rest.append(line)
        assert self.process.stderr is not None
        return Finished(code, "\n".join(rest), self.process.stderr.read())


class Inline:
    """The same program within this process: for tests that vary the input many times and observe only the words."""

    def __init__(
        self, program: "Interlock", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        for name in [name for name in os.environ if name.startswith("INTERLOCK_")] + ["COLUMNS", "NO_COLOR"]:
            monkeypatch.delenv(name, raising=False)
        for name, value in program.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(program.folder)

    def __call__(self, *arguments: str, **env: str) -> Finished:
        with self._monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            self._capsys.readouterr()
            code = run(list(arguments))
            written = self._capsys.readouterr()
        return Finished(code, written.out, written.err)


class Interlock:
    """The program, run in a folder of its own, with nothing of the outer environment that it could read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        (self.data / "run").mkdir(parents=True)
        # With these as they are, the program is started as a copy of one that has been imported (tests/preloaded.py).
        alike = ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if name in alike}
        self.env = kept | {
            "HOME": str(folder),
            "INTERLOCK_DATA": str(self.data),
            "TZ": "UTC",
        }

    def __call__(self, *arguments: str, stdin: str = "", **env: str) -> Finished:
        done = subprocess.run(
            [sys.executable, "-m", "interlock", *arguments],
            cwd=self.folder,
            env=self.env | env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def start(self, *arguments: str, **env: str) -> Iterator[Running]:
        process = subprocess.Popen(
            [sys.executable, "-m", "interlock", *arguments],
            cwd=self.folder,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield Running(process)
            finally:
                if process.poll() is None:
                    process.kill()
