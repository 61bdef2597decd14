"""The tamper check: is a driver's folder still the trusted one? Before and after each start (AIP-security-13).

Between two looks of the registry files may change, and be put back; a program that was started meanwhile would be
another than the one accepted. Whatever touched a file since shows by its marks, which cannot be put back.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interlock.drivers.workspace.folder import read_folder
from interlock.drivers.workspace.scan import FoundFolder, Root, mark_of

BROKEN: Final = "untrusted"
WORDS: Final = "the files of the driver are not those that were trusted"


class TamperCheck:
    def __init__(self, root: Root, folder: Path, files: Mapping[str, str]) -> None:
        """`files`: what trust covers; of it, those in the folder are looked at."""
        self._root = root
        self._folder = folder
        self._files = {name: digest for name, digest in files.items() if not Path(name).is_absolute()}
        self._good: bytes | None = None  # marks under which the files were found to be these

    async def mark(self) -> bytes | None:
        """The marks of the files, if they are the trusted ones; None: they are others."""
        return await asyncio.to_thread(self._mark)

    async def is_same(self, mark: bytes) -> bool:
        """Whether nothing has touched a file since."""
        return await asyncio.to_thread(mark_of, self._folder) == mark

    def _mark(self) -> bytes | None:
        mark = mark_of(self._folder)
        if mark == self._good:
            return mark
        read = read_folder(FoundFolder(root=self._root, path=self._folder, mark=mark))
        if read.problems or dict(read.digests) != self._files or mark_of(self._folder) != mark:
            return None
        self._good = mark
        return mark
