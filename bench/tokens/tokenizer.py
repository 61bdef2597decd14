"""Tokens as o200k_base counts them: the npm package gpt-tokenizer, which carries the encoding inside it."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from bench.environments import NotInstalled
from bench.processes import CACHE

PACKAGE = "gpt-tokenizer@4.0.0"
NAME = f"o200k_base ({PACKAGE})"


def count(texts: Sequence[str]) -> list[int]:
    asked = [shutil.which("node") or "node", str(Path(__file__).with_name("count.mjs")), str(_home())]
    done = subprocess.run(asked, input=json.dumps(list(texts)), capture_output=True, text=True, check=True)
    found: list[int] = json.loads(done.stdout)
    return found


@cache
def _home() -> Path:
    home = CACHE / "bench-tokenizer"
    if not (home / "node_modules" / "gpt-tokenizer").exists():
        npm = shutil.which("npm")
        if npm is None:
            raise NotInstalled("npm is not installed (Debian: apt install npm)")
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text("{}")
        subprocess.run([npm, "install", "--silent", PACKAGE], cwd=home, check=True, capture_output=True)
    return home
