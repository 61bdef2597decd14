"""Contract lookup: finds the TOOL.md that implements[].tool means, reads it and compares it with the binding. Blocking.

Looked up in the driver's folder, then in the workspace, then in .tools/<folder name>/; an id in the driver's folder,
then below .tools, then in the folders of other drivers (AIP-30.implements-2). Nothing outside of the workspace and of
the driver's own root is read, whatever links say.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from interlock.drivers.protocol.binding.match import UNAVAILABLE, check_binding, unfit
from interlock.drivers.protocol.files.contract import TOOL_FILE, read_contract
from interlock.drivers.protocol.files.driver import ENTRY
from interlock.drivers.protocol.model import Contract, Driver, ToolBinding
from interlock.drivers.protocol.problems import FileProblem, ParsedFile
from interlock.drivers.workspace.declaration import Parsed, same
from interlock.drivers.workspace.folder import FolderUnreadable, read_file
from interlock.drivers.workspace.scan import TOOLS, Stat, inside, maybe_stat
from interlock.wire.jsontext.canonical import quoted

CONFLICT = "contract_conflict"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A contract's file, as read. `digest` is given for one outside of the driver's folder."""

    path: Path
    reading: ParsedFile[Contract]
    digest: str | None = None


class Bindings(msgspec.Struct, frozen=True, kw_only=True):
    contracts: Mapping[int, Contract]
    outside: Mapping[str, str]  # files elsewhere that are bound, and their digests
    problems: tuple[FileProblem, ...]


class ContractLookup:
    """Every contract that lies below .tools, and whichever is named elsewhere; each is read once per change."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._read: dict[Path, tuple[Stat, Place]] = {}
        self._below: tuple[Place, ...] = ()
        self.asked: set[Path] = set()  # looked for elsewhere, found or not

    def take(self, contracts: Sequence[tuple[Path, Stat | None]]) -> None:
        """Read the contracts below .tools, and forget files that are gone or no longer needed."""
        paths = {path for path, _ in contracts} | self.asked
        self._read = {path: reading for path, reading in self._read.items() if path in paths}
        self.asked = set()
        places = (self.maybe(path) for path, _ in contracts if inside(path, self._workspace))
        self._below = tuple(place for place in places if place is not None)

    def maybe(self, path: Path) -> Place | None:
        """Return the contract in a file, or None if there is no such file."""
        seen = maybe_stat(path)
        if seen is None:
            return None
        before = self._read.get(path)
        if before is not None and before[0] == seen:
            return before[1]
        try:
            data, digest = read_file(Path(os.path.realpath(path)))
            place = Place(path=path, reading=read_contract(data, str(path)), digest=digest)
        except FolderUnreadable as fault:
            problem = FileProblem(file=str(path), code="file_unreadable", message=str(fault), hint="mend or remove it")
            place = Place(path=path, reading=ParsedFile(problems=(problem,)))
        self._read[path] = (seen, place)
        return place

    def bind(self, driver: Driver, parsed: Parsed, others: Sequence[Parsed]) -> Bindings:
        contracts: dict[int, Contract] = {}
        outside: dict[str, str] = {}
        problems: list[FileProblem] = []
        # Which transforms a driver.py has is known when it is loaded.
        skipped = {"transform_missing"} if ENTRY in parsed.digests else set()
        for binding in driver.implements:
            match = self._find(driver, binding, parsed, others)
            if isinstance(match, FileProblem):
                problems.append(match)
                continue
            if match.digest is not None:
                outside[str(match.path)] = match.digest
            contract = match.reading.value
            problems += match.reading.problems
            if contract is None:
                continue
            twin = next((index for index, bound in contracts.items() if bound.id == contract.id), None)
            if twin is not None:
                message = f"entries {twin} and {binding.index} bind the same contract"
                place = f"{binding.pointer}/tool"
                problems.append(driver.places.problem(place, "duplicate_binding", message, "keep one of the two"))
            problems += unfit(driver, binding, contract)
            problems += (each for each in check_binding(driver, binding, contract) if each.code not in skipped)
            contracts[binding.index] = contract
        return Bindings(contracts=contracts, outside=outside, problems=tuple(problems))

    def _find(
        self, driver: Driver, binding: ToolBinding, parsed: Parsed, others: Sequence[Parsed]
    ) -> Place | FileProblem:
        named = binding.tool
        if "/" in named or named.endswith(".md"):
            return self._by_path(driver, binding, parsed)
        looked = [parsed.path, self._workspace / TOOLS, *(other.path for other in others if other is not parsed)]
        for level in self._by_id(named, parsed, others):
            if level and any(not same(_value(level[0]), _value(place)) for place in level[1:]):
                files = " and ".join(str(place.path) for place in level[:2])
                return _problem(driver, binding, CONFLICT, f"{quoted(named)} is described differently in {files}")
            if level:
                return level[0]
        return _nowhere(driver, binding, looked)

    def _by_id(self, named: str, parsed: Parsed, others: Sequence[Parsed]) -> Iterator[list[Place]]:
        """Yield the contracts with that id, one list per place, from the nearest place to the farthest."""
        yield [place for place in _own(parsed) if _is(place, named)]
        yield [place for place in self._below if _is(place, named)]
        yield [
            msgspec.structs.replace(place, digest=other.digests.get(name))
            for other in others
            if other is not parsed
            for name, place in zip(other.contracts, _own(other), strict=True)
            if _is(place, named)
        ]

    def _by_path(self, driver: Driver, binding: ToolBinding, parsed: Parsed) -> Place | FileProblem:
        escapes = 0
        looked = list(self._places(binding.tool, parsed))
        for path in looked:
            if path.is_relative_to(parsed.path):
                name = path.relative_to(parsed.path).as_posix()
                if name in parsed.contracts:
                    return Place(path=path, reading=parsed.contracts[name])
            elif not (inside(path, self._workspace) or inside(path, parsed.root.path)):
                escapes += 1
            else:
                self.asked.add(path)
                place = self.maybe(path)
                if place is not None:
                    return place
        if escapes:
            return _problem(driver, binding, "path_escape", "the contract's path leaves the workspace")
        return _nowhere(driver, binding, looked)

    def _places(self, written: str, parsed: Parsed) -> Iterator[Path]:
        file = written if written.endswith(".md") else f"{written.rstrip('/')}/{TOOL_FILE}"
        yield Path(os.path.normpath(parsed.path / file))
        yield Path(os.path.normpath(self._workspace / file))
        folder = Path(os.path.normpath(file)).parent.name
        if folder not in ("", ".."):
            yield self._workspace / TOOLS / folder / TOOL_FILE


def _own(parsed: Parsed) -> list[Place]:
    return [Place(path=parsed.path / name, reading=reading) for name, reading in parsed.contracts.items()]


def _is(place: Place, named: str) -> bool:
    return place.reading.value is not None and place.reading.value.id == named


def _value(place: Place) -> Contract:
    assert place.reading.value is not None  # noqa: S101  (only such are compared)
    return place.reading.value


def _nowhere(driver: Driver, binding: ToolBinding, looked: Sequence[Path]) -> FileProblem:
    places = ", ".join(str(path) for path in looked)
    return _problem(driver, binding, UNAVAILABLE, f"there is no contract {quoted(binding.tool)}; looked in {places}")


def _problem(driver: Driver, binding: ToolBinding, code: str, message: str) -> FileProblem:
    hint = "write the path of a TOOL.md in the folder or the workspace, or the id of a contract below .tools"
    return driver.places.problem(f"{binding.pointer}/tool", code, message, hint)
