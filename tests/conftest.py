"""Rules of every test run, and fixtures that tests of several packages use.

Markers name ledger entries, and a full run records which entries it showed. Fixtures import what they need when they
are used, so that a run of pure tests imports nothing else.
"""

import contextlib
import gc
import importlib.util
import json
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings
from tests import preloaded
from tests.support import prompt_server
from tests.support.process_guard import ProcessGuard
from tests.support.scale import examples

ROOT = Path(__file__).resolve().parent.parent
LAST_RUN = ROOT / ".cache" / "requirements.json"
DURATIONS = ROOT / "tests" / "durations.json"
WORST_FIRST = ("failed", "skipped", "passed")

# A property is about values; how long a shared machine takes for one example says nothing about it.
settings.register_profile(
    "interlock",
    deadline=None,
    max_examples=examples(60, 2000),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("interlock")


class Record(TypedDict):
    ids: list[str]
    outcome: str


def pytest_configure(config: pytest.Config) -> None:
    # A run started in the background inherits SIGINT ignored, and so would every program that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    preloaded.install()
    prompt_server.install()
    config.pluginmanager.register(Requirements(config), "interlock-requirements")
    config.pluginmanager.register(ProcessGuard(), "interlock-process-guard")
    if worker := getattr(config, "workerinput", None):
        position = int(worker["workerid"].removeprefix("gw")) / worker["workercount"]
        config.pluginmanager.register(SharedCollection(position), "interlock-shared-collection")
    if (seconds := _recorded_seconds()) or config.getoption("write_durations"):
        config.pluginmanager.register(Durations(config, seconds), "interlock-durations")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-durations", action="store_true", help=f"record the seconds of each slow file in {DURATIONS.name}"
    )
    parser.addoption("--req", metavar="ID", help="run only the tests of this ledger entry, or of all that begin so")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collections, and exclude the tests, about a million objects, from later ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Exclude objects that survive the tests of a file from later garbage collections.

    Tests collect garbage to see whether anything is left open. After some thousand tests each collection would visit
    all objects that are still in use, which took a second for every test.
    """
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


class SharedCollection:
    """The order in which a worker collects: each begins at another folder, and all end with the same order of tests.

    Every worker needs every file, but the first that compiles a file with its assertions rewritten does so for all.
    """

    def __init__(self, position: float) -> None:
        self.position = position

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if path != ROOT / "tests":
            return None
        folder: RotatedFolder = RotatedFolder.from_parent(parent, path=path)
        folder.position = self.position
        return folder

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.path.parts)


class RotatedFolder(pytest.Dir):
    """A folder whose entries are collected from another position on."""

    position = 0.0

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        entries = list(super().collect())
        first = int(self.position * len(entries))
        return entries[first:] + entries[:first]


def _recorded_seconds() -> dict[str, float]:
    return dict(json.loads(DURATIONS.read_text(encoding="utf-8"))) if DURATIONS.exists() else {}


class Durations:
    """The order of files: the slowest come first, so that no worker is left alone with one at the end of the run."""

    SLOW_S = 1.0  # a faster file can come at any place
    LAST = "tests/conformance/test_suite_page.py"  # checks the results of the others

    def __init__(self, config: pytest.Config, seconds: dict[str, float]) -> None:
        self.config = config
        self.recorded = seconds
        self.seen: dict[str, float] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def order(item: pytest.Item) -> tuple[bool, float]:
            file = item.nodeid.partition("::")[0]
            return file == self.LAST, -self.recorded.get(file, 0.0)

        items.sort(key=order)  # stable: the tests of a file stay together, in their order

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.seen[file] = self.seen.get(file, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        if not self.config.getoption("write_durations") or hasattr(self.config, "workerinput"):
            return
        seconds = self.recorded | self.seen
        slow = {file: round(taken, 1) for file, taken in seconds.items() if taken >= self.SLOW_S}
        DURATIONS.write_text(json.dumps(slow, indent=0, sort_keys=True) + "\n", encoding="utf-8")


class Requirements:
    """The ledger entries that tests are marked with, and their outcomes in this run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.conformance = _load("conformance", ROOT / "tools" / "conformance.py")
        self.ids_of: dict[str, list[str]] = {}
        self.outcomes: dict[str, str] = {}
        self.deselected = False
        self.complaints: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = self.conformance.ledger_ids()
        for item in items:
            ids = [identifier for mark in item.iter_markers("req") for identifier in mark.args]
            if unknown := [identifier for identifier in ids if identifier not in known]:
                raise pytest.UsageError(
                    f"{item.nodeid}: the ledger in spec/ has no entry {', '.join(map(str, unknown))}"
                )
            if ids:
                item.user_properties.append(("req", ids))  # the controller of several workers sees only reports
                self.ids_of[item.nodeid] = ids
        if wanted := self.config.getoption("req"):
            chosen = {node for node, ids in self.ids_of.items() if any(each.startswith(wanted) for each in ids)}
            self.config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
            items[:] = [item for item in items if item.nodeid in chosen]

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        self.deselected = self.deselected or bool(list(items))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ids = dict(report.user_properties).get("req")
        if isinstance(ids, list):
            self.ids_of.setdefault(report.nodeid, ids)
            self.outcomes[report.nodeid] = _worst([self.outcomes.get(report.nodeid, "passed"), report.outcome])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(self.config, "workerinput"):  # one of several workers; their controller sees the whole run
            return
        ran_to_the_end = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not ran_to_the_end or not self._is_full() or set(self.outcomes) != set(self.ids_of):
            return
        LAST_RUN.parent.mkdir(exist_ok=True)
        LAST_RUN.write_text(json.dumps(self._by_test(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        on_the_page = {tie.id for tie in self.conformance.ties()}
        collected = {identifier for ids in self.ids_of.values() for identifier in ids}
        self.complaints += [
            f"{entry}: its test is in the source but was not collected" for entry in on_the_page - collected
        ]
        self.complaints += [f"{entry}: its marker cannot be read from the source" for entry in collected - on_the_page]
        if self.complaints:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        skipped = {test: record for test, record in self._by_test().items() if record["outcome"] == "skipped"}
        if skipped:
            terminalreporter.section("requirements NOT shown by this run: their tests were skipped", yellow=True)
        for test, record in skipped.items():
            terminalreporter.line(f"{test}: {', '.join(record['ids'])}")
        if self.complaints:
            terminalreporter.section("requirement markers", red=True)
        for complaint in sorted(self.complaints):
            terminalreporter.line(complaint)

    def _is_full(self) -> bool:
        whole_tree = [Path(argument).resolve() for argument in self.config.args] == [ROOT / "tests"]
        narrowing = ("keyword", "markexpr", "collectonly", "lf", "ignore", "ignore_glob")
        return (
            whole_tree and not self.deselected and not any(self.config.getoption(option, None) for option in narrowing)
        )

    def _by_test(self) -> dict[str, Record]:
        """Return a record for each test function. The outcome of a parametrised test is that of its worst case."""
        tests: dict[str, Record] = {}
        for nodeid, outcome in self.outcomes.items():
            test = nodeid.partition("[")[0]
            before = tests.get(test, Record(ids=[], outcome="passed"))
            tests[test] = Record(
                ids=sorted({*before["ids"], *self.ids_of[nodeid]}), outcome=_worst([before["outcome"], outcome])
            )
        return tests


def _worst(outcomes: list[str]) -> str:
    return min(outcomes, key=WORST_FIRST.index)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """Start one node in front of five servers, with clients; all tests of a run share it and its event loop."""
    from tests.support.fleet import starting

    async with starting(tmp_path_factory.mktemp("fleet")) as started:
        yield started


@pytest.fixture(scope="session")
def idle_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Connect clients that do nothing to a node; the first test that names this starts their time."""
    from tests.servers.start import raw
    from tests.support.idle_clients import HUGE, IdleClients
    from tests.support.node_process import running_node

    servers = {"good": {"command": raw("all")}, "huge": {"command": raw("huge-answer", "--bytes", str(HUGE))}}
    with (
        running_node(tmp_path_factory.mktemp("lingering"), servers) as node,
        contextlib.closing(IdleClients(node)) as opened,
    ):
        yield opened


@pytest.fixture
def interlock(tmp_path: Path) -> Any:
    """Return the program `interlock` as a process, in a temporary folder."""
    from tests.cli.program import Interlock

    return Interlock(tmp_path)


@pytest.fixture
def inline(interlock: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the program `interlock`, run in this process."""
    from tests.cli.program import Inline

    return Inline(interlock, monkeypatch, capsys)


@pytest.fixture
def operations() -> Any:
    """Return the operations of a fake node, with fixed data."""
    from tests.operator.fake_node import FakeOperations

    return FakeOperations()


@pytest.fixture
def node(interlock: Any, operations: Any) -> Iterator[Any]:
    """Serve a fake node on the data folder's admin.sock."""
    from tests.operator.fake_node import serving, unix_listener

    from interlock.operator.app import operator_app

    listener = unix_listener(interlock.data / "run" / "admin.sock")
    with serving(operator_app(operations.handlers, authenticate=None), listener):
        yield operations


@pytest.fixture
def public_endpoint(operations: Any) -> Iterator[Any]:
    """Serve the public endpoint of the fake node."""
    from tests.operator.fake_node import FakePublicEndpoint, serving, tcp_listener, url_of

    door = FakePublicEndpoint()
    listener = tcp_listener()
    operations.url = url_of(listener) + "/mcp"
    with serving(door.app, listener):
        yield door
