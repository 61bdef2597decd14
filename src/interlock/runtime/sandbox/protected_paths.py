"""Places that no sandbox shows unless somebody writes them out: the root, the user's home, /etc and the node's data."""

from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path("/")
ETC: Final = Path("/etc")


class ProtectedPaths(msgspec.Struct, frozen=True, kw_only=True):
    home: Path  # of the user the node runs as
    state: Path  # the data folder
    private: tuple[Path, ...] = ()  # with it, the operator's keys and settings
    rules: tuple[Path, ...] = ()  # what says what the node runs: no sandbox writes there, whatever is around it

    def may_imply(self, path: Path) -> bool:
        """Whether a path follows from an argument alone (AIP-security-5)."""
        if path.is_relative_to(self.state) or path.is_relative_to(ETC):
            return False
        return not any(each.is_relative_to(path) for each in (self.home, self.state, ETC))

    def may_imply_folder(self, path: Path) -> bool:
        """Whether a whole folder follows from a program in it. Not ~/.local or ~/.config, which hold far more."""
        hidden_in_home = path.parent == self.home and path.name.startswith(".")
        return self.may_imply(path) and not hidden_in_home and len(path.parts) > 2
