"""Roots of declared paths: how far a symbolic link on the way to one may lead.

A path that is declared for a sandbox means what stands there. A program that writes around it could put a link there,
and what is mounted would be another place. So a link may lead elsewhere inside the root, and never out of it.
"""

import os
from pathlib import Path

import msgspec


class LinkRoots(msgspec.Struct, frozen=True):
    """`folders`: the workspace, the home and other places that belong together. The nearest around a path is its root;
    where there is none, the folder that holds the path."""

    folders: tuple[Path, ...]

    def plain_path(self, path: Path) -> Path:
        """The real path if there is no link below the root."""
        root, below = self._split(path)
        return Path(os.path.realpath(root), below)

    def leaves(self, path: Path) -> bool:
        """Whether a link leads out of the root."""
        root, _ = self._split(path)
        return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))

    def _split(self, path: Path) -> tuple[Path, Path]:
        path = Path(os.path.normpath(path))
        around = [each for each in self.folders if path.is_relative_to(each)]
        root = max(around, key=lambda each: len(each.parts), default=path.parent)
        return root, path.relative_to(root)
