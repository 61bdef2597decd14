"""Other people's proxies, each in an environment of its own under .cache/, or the reason why it is not there."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from bench.processes import CACHE


class NotInstalled(Exception):
    """The contestant cannot be had here; the message says why."""


def python_with(name: str, *requirements: str) -> Path:
    """The interpreter of an environment that holds these packages; made once, kept in .cache/."""
    home = CACHE / "bench-venvs" / name
    interpreter = home / "bin" / "python"
    wanted = "\n".join([sys.version, *requirements])
    stamp = home / "requirements.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return interpreter
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        reason = next((line for line in reversed(done.stderr.splitlines()) if "ERROR" in line), "pip failed")
        raise NotInstalled(f"{', '.join(requirements)}: {reason.strip()}")
    stamp.write_text(wanted)
    return interpreter


def nginx() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise NotInstalled("nginx is not installed (Debian: apt install nginx-light)")
    return found
