"""Places that no sandbox shows unless somebody writes them out: the root, the user's home, /etc and the node's data."""

from pathlib import Path
from typing import Final

import msgspec

from interlock.process.sandbox.link_roots import LinkRoots

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

    def may_be(self, path: Path, real: Path) -> bool:
        """Whether a path means what is really there: there is no link on the way, or one that may lead there."""
        return real == self.roots.plain_path(path) or self._may_lead_to(path, real)

    def _may_lead_to(self, path: Path, real: Path) -> bool:
        """Whether a declared path that is a link may mean this: nothing outside of its root, nor a protected place, nor
        what is hidden in the home, unless the path says so."""
        hidden = self._maybe_hidden(real)
        if hidden is not None and not self.roots.plain_path(path).is_relative_to(hidden):
            return False
        is_protected = any(real.is_relative_to(each) for each in (*self.private, *self.rules))
        shows_private = any(each.is_relative_to(real) for each in self.private)
        return not (is_protected or shows_private or self.roots.leaves(path)) and self.may_imply(real)

    def _maybe_hidden(self, path: Path) -> Path | None:
        """The hidden folder or file of the home that the path is in: ~/.ssh, ~/.aws and the like."""
        below = path.relative_to(self.home).parts if path.is_relative_to(self.home) else ()
        return self.home / below[0] if below and below[0].startswith(".") else None

    def may_imply_folder(self, path: Path) -> bool:
        """Whether a whole folder follows from a program in it. Not ~/.local or ~/.config, which hold far more."""
        hidden_in_home = path.parent == self.home and path.name.startswith(".")
        return self.may_imply(path) and not hidden_in_home and len(path.parts) > 2
