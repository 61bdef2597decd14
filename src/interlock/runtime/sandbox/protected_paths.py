"""Places that no sandbox shows unless somebody writes them out: the root, the user's home, /etc and the node's data."""

from pathlib import Path
from typing import Final

import msgspec

from interlock.runtime.sandbox.link_roots import LinkRoots

ROOT: Final = Path("/")
ETC: Final = Path("/etc")


class ProtectedPaths(msgspec.Struct, frozen=True, kw_only=True):
    home: Path  # of the user the node runs as
    state: Path  # the data folder
    roots: LinkRoots
    private: tuple[Path, ...] = ()  # with it, the operator's keys and settings
    rules: tuple[Path, ...] = ()  # what says what the node runs: no sandbox writes there, whatever is around it

    def may_imply(self, path: Path) -> bool:
        """Whether a path follows from an argument alone (AIP-security-5)."""
        if path.is_relative_to(self.state) or path.is_relative_to(ETC):
            return False
        return not any(each.is_relative_to(path) for each in (self.home, self.state, ETC))

    def may_lead_to(self, path: Path, real: Path) -> bool:
        """Whether a declared path that is a link may mean this: nothing outside of its root, nor a protected place."""
        is_protected = any(real.is_relative_to(each) for each in (*self.private, *self.rules))
        shows_private = any(each.is_relative_to(real) for each in self.private)
        return not (is_protected or shows_private or self.roots.leaves(path)) and self.may_imply(real)

    def may_imply_folder(self, path: Path) -> bool:
        """Whether a whole folder follows from a program in it. Not ~/.local or ~/.config, which hold far more."""
        hidden_in_home = path.parent == self.home and path.name.startswith(".")
        return self.may_imply(path) and not hidden_in_home and len(path.parts) > 2
