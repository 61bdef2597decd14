"""What one driver's files declare, and what the whole workspace declares: values, made by `survey`."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from interlock.drivers.interfaces import DriverState
from interlock.drivers.protocol.model import Contract, Driver, Secret, Secrets
from interlock.drivers.protocol.problems import Places, Problem, Reading
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.drivers.workspace.scan import Root

NOWHERE = Places(file="")


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """One folder as it was read, before anything else was looked at."""

    root: Root
    path: Path
    reading: Reading[Driver]
    contracts: Mapping[str, Reading[Contract]] = {}  # every TOOL.md of the folder, by its path in it
    secrets: Reading[Secrets] | None = None
    digests: Mapping[str, str] = {}
    problems: tuple[Problem, ...] = ()  # of the folder and its further files

    @property
    def file(self) -> str:
        return str(self.path / "DRIVER.md")


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """One driver with everything it binds. `state` is None where nothing keeps it from being started once trusted."""

    key: str  # id@major; the folder where the file does not tell
    root: Root
    folder: Path
    state: DriverState | None
    problems: tuple[Problem, ...] = ()
    driver: Driver | None = None
    contracts: Mapping[int, Contract] = {}  # by the index of the binding
    secrets: Mapping[str, Secret] = {}  # by the NAME the driver uses; one that no inventory has is left out
    own_secrets: Secrets | None = None
    files: Mapping[str, str] = {}  # the digests of every file of the folder, and of contracts elsewhere
    resolved: Mapping[str, str] = {}  # what its files name outside: `secrets://NAME` -> entry, `links://PATH` -> path
    real_paths: Mapping[Path, Path] = {}  # of what it opens to its server
    digest: str = ""  # of what trust covers
    trusted: bool = False

    @property
    def covered(self) -> dict[str, str]:
        """What trust covers. No path has the two slashes of a name in `resolved`."""
        return {**self.files, **self.resolved}

    @property
    def bound_secrets(self) -> frozenset[str]:
        """Slugs that it may have unless their entries say otherwise: those its auth.ref names (AIP-19.access-1)."""
        auth = self.driver.auth if self.driver is not None else None
        if auth is None or auth.ref is None or self.own_secrets is None:
            return frozenset()
        return frozenset(entry.slug for entry in self.own_secrets.entries)

    @property
    def id(self) -> str:
        return self.driver.id if self.driver is not None else self.folder.name

    @property
    def segment(self) -> str:
        """The name of its server for people."""
        return exposed_segment(self.id)

    @property
    def is_fit(self) -> bool:
        return self.state is None and self.driver is not None

    @property
    def reason(self) -> str | None:
        """The first thing that keeps it from being used."""
        first = next((each for each in self.problems if each.severity == "error"), None)
        return None if first is None else f"{first.code}: {first.message}"


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    drivers: tuple[Declared, ...] = ()
    secrets: tuple[Secret, ...] = ()  # one inventory of all (AIP-19.file-3)
    problems: tuple[Problem, ...] = ()  # of no one driver
    others: tuple[Path, ...] = ()  # files elsewhere that were looked for, found or not

    @property
    def opened(self) -> tuple[Path, ...]:
        return tuple(path for one in self.drivers for path in one.real_paths)


def changed_keys(now: Mapping[str, str], before: Mapping[str, str]) -> set[str]:
    """The names of what differs between two states of what trust covers."""
    return {name for name in {**before, **now} if before.get(name) != now.get(name)}


def same(one: Contract, other: Contract) -> bool:
    """Wherever they stand."""
    return msgspec.structs.replace(one, places=NOWHERE) == msgspec.structs.replace(other, places=NOWHERE)
