"""Which folders a driver may use: the absolute paths its source names, and nothing wider (AIP-import-11)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_ABSOLUTE: Final = re.compile(r"(?:/[^\s\x00,;:*?\"<>|]*|[A-Za-z]:[\\/][^\x00*?\"<>|]*)")
_ASSIGNED: Final = re.compile(r"-{0,2}[A-Za-z][\w-]*=(?P<value>.*)", re.DOTALL)
_SYSTEM: Final = ("", "etc", "home", "root", "Users", "usr", "var", "proc", "sys", "dev", "tmp")
_NEVER: Final = frozenset(f"/{each}" for each in _SYSTEM)  # AIP-security-5, and what everybody shares


class Sandboxing:
    def __init__(self, home: str, folder: str | None = None, fresh: Mapping[str, str] | None = None) -> None:
        self._home = home.rstrip("/\\")
        self._folder = folder  # of an unpacked bundle, which does not change
        self._fresh = fresh or {}  # what is not there yet: its folder is what the server has to write
        self._read: dict[str, None] = {}
        self._write: dict[str, None] = {}
        self.withheld: list[str] = []

    def look_at(self, args: Sequence[str], env: Mapping[str, str], *, script: bool = False) -> None:
        """A path that stands alone among the arguments is what the server works on; others are only read. `script`: the
        first of them is the program itself."""
        for each in args:
            if _ABSOLUTE.fullmatch(each):
                if script:
                    self._open(each, self._read)
                else:
                    self._work_on(each, self._write)
                script = False
            elif (assigned := _ASSIGNED.fullmatch(each)) and _ABSOLUTE.fullmatch(assigned["value"]):
                self._work_on(assigned["value"], self._read)
        for value in env.values():
            if _ABSOLUTE.fullmatch(value):
                self._work_on(value, self._read)

    def write(self, path: str) -> None:
        self._open(path, self._write)

    def _work_on(self, path: str, where: dict[str, None]) -> None:
        if path in self._fresh:
            self._open(self._fresh[path], self._write)
        else:
            self._open(path, where)

    def _open(self, path: str, where: dict[str, None]) -> None:
        plain = path.rstrip("/\\") or "/"
        if ".." in re.split(r"[/\\]", plain):
            wide = True
        else:
            below = f"{plain.rstrip('/')}/"
            wide = plain in _NEVER or (bool(self._home) and f"{self._home}/".startswith(below))
        if self._folder is not None and f"{plain}/".startswith(f"{self._folder}/"):
            self._read[self._folder] = None
        elif not wide:
            where[plain] = None
        elif plain not in self.withheld:
            self.withheld.append(plain)

    def block(self, passed: Sequence[str], defaults: Mapping[str, str]) -> dict[str, Any]:
        """AIP-29's sandbox block; empty when there is nothing to say."""
        files = {"read": [each for each in self._read if each not in self._write], "write": list(self._write)}
        files = {key: paths for key, paths in files.items() if paths}
        env: dict[str, Any] = {"pass": list(passed)} if passed else {}
        env |= {"set": dict(defaults)} if defaults else {}
        return ({"fs": files} if files else {}) | ({"env": env} if env else {})
