"""python3 install.py FOLDER [--group NAME]: a virtual environment with Interlock in it, and what is going on meanwhile.

It needs Python's own library alone. On a terminal one line says what is done and for how long; elsewhere each step is a
line when it begins and a line when it has ended. With --group it installs that dependency group of pyproject.toml.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent
TICK_S = 0.2
STILL_S = 10.0  # between two lines about one step, where there is no terminal
PACKAGE = re.compile(r"(?:Collecting|Obtaining|Requirement already satisfied:) (?:file:\S+|([\w.-]+))")
INSTALLING = re.compile(r"Installing collected packages: (.*)")


class Step:
    """One step, told while it lasts."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._detail = ""
        self._began = time.monotonic()
        self._is_live = sys.stdout.isatty()
        self._over = threading.Event()
        self._teller = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> "Step":
        if not self._is_live:
            print(f"{self._title} ...", flush=True)
        self._teller.start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self._over.set()
        self._teller.join()
        if failed is None:
            print(f"{self._erased()}{self._title}: done in {self._seconds():.1f} s", flush=True)

    def say(self, detail: str) -> None:
        self._detail = detail

    def run(self, *command: str) -> None:
        """Each line of its output may be about a package. Ends the program where the command fails."""
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT, env=env
        )
        lines, found = [], set()
        for line in process.stdout or ():
            lines.append(line)
            if (package := PACKAGE.match(line.strip())) and package[1]:
                found.add(package[1].lower())
                self.say(f"{len(found)} packages found, now {package[1]}")
            elif installing := INSTALLING.match(line.strip()):
                self.say(f"installing {len(installing[1].split(', '))} packages")
        if process.wait() != 0:
            self._over.set()
            print(f"{self._erased()}{self._title}: failed", "".join(lines[-30:]), sep="\n", flush=True)
            sys.exit(f"{' '.join(command[:4])} ... ended with code {process.returncode}")

    def _tell(self) -> None:
        told = 0
        while not self._over.wait(TICK_S):
            if self._is_live:
                width = shutil.get_terminal_size().columns
                print(f"{self._erased()}{self._line()[: width - 1]}", end="", flush=True)
            elif self._seconds() // STILL_S > told:
                told = int(self._seconds() // STILL_S)
                print(f"  {self._line()}", flush=True)

    def _line(self) -> str:
        return f"{self._title}: {self._detail + ', ' if self._detail else ''}{self._seconds():.0f} s"

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _erased(self) -> str:
        return "\r\033[K" if self._is_live else ""


def python_of(folder: Path) -> str:
    return str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")


def make_environment(folder: Path) -> None:
    """With a pip of its own, which is what installs servers later: ours, if there is one, puts it there soonest."""
    with Step(f"[1/2] virtual environment in {folder}") as step:
        if importlib.util.find_spec("pip") is None:
            step.run(sys.executable, "-m", "venv", str(folder))
        else:
            step.run(sys.executable, "-m", "venv", "--without-pip", str(folder))


def install_product(folder: Path) -> None:
    own = importlib.util.find_spec("pip", None) is not None
    pip = (sys.executable, "-m", "pip", "--python", python_of(folder)) if own else (python_of(folder), "-m", "pip")
    with Step("[2/2] Interlock and the packages it needs") as step:
        # Modules are compiled when they are first imported; most never are.
        step.run(
            *pip, "install", "--no-compile", "--progress-bar", "off", *(("pip",) if own else ()), "--editable", "."
        )


def install_group(folder: Path, name: str) -> None:
    import tomllib

    with (ROOT / "pyproject.toml").open("rb") as file:
        packages = tomllib.load(file)["dependency-groups"].get(name)
    if packages is None:
        sys.exit(f"pyproject.toml has no dependency group {name}")
    with Step(f"the packages of the group {name}") as step:
        step.run(python_of(folder), "-m", "pip", "install", "--progress-bar", "off", *packages)


def main() -> None:
    if sys.version_info < OLDEST:
        sys.exit("Interlock needs Python 3.11 or newer")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--group")
    options = parser.parse_args()
    if options.group is not None:
        install_group(options.folder, options.group)
        return
    if not Path(python_of(options.folder)).exists():
        make_environment(options.folder)
    install_product(options.folder)


if __name__ == "__main__":
    main()
