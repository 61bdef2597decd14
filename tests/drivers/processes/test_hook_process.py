"""A driver.py in its process: what it can do, what it cannot, and what happens to those who ask it meanwhile."""

import asyncio
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from tests.drivers.driver_stage import DriverStage, alive, driver_stage, until
from tests.servers.caging import needs_sandbox

from interlock.drivers.protocol.binding.match import HookEntry
from interlock.drivers.provider import hooks
from interlock.drivers.provider.hooks import HookFailed, HookProcess
from interlock.drivers.workspace.folder import digest_of
from interlock.process.sandbox.host_paths import SandboxFailed

pytestmark = [needs_sandbox, pytest.mark.asyncio(loop_scope="module")]

ARGS = {"input": {"n": 1}, "mapped": {"m": 2}, "context": {}, "tool_id": "demo.a", "tool_name": "a"}
# Each as a statement, at import or in a hook.
REACHING = {
    "a socket": "__import__('socket').socket()",
    "a name": "__import__('socket').getaddrinfo('localhost', 80)",
    "a connection": "__import__('urllib.request').request.urlopen('http://127.0.0.1:1')",
    "a file outside": "open(SECRET).read()",
    "a file outside, at the lowest": "__import__('os').open(SECRET, 0)",
    "a file outside, through its folder": "open(__file__ + '/../../secret').read()",
    "a folder outside": "__import__('os').listdir('/')",
    "its own file, to write": "open(__file__, 'a')",
    "a new file": "open('new', 'w')",
    "a program": "__import__('subprocess').run(['true'])",
    "a shell": "__import__('os').system('true')",
    "a fork": "__import__('os').fork()",
    "a library": "__import__('ctypes').CDLL(None)",
    "a signal": "__import__('os').kill(1, 9)",
    "a file to remove": "__import__('os').remove(__file__)",
}


class Bench:
    def __init__(self, stage: DriverStage) -> None:
        self.stage = stage
        self.secret = stage.folder / "secret"
        self.secret.write_text("for nobody's eyes")
        self.made: list[HookProcess] = []

    def process(self, text: str, **changed: Any) -> HookProcess:
        """Of a driver.py with this text; SECRET is a file outside of its folder."""
        number = len(self.made)
        folder = self.stage.folder / f"driver{number}"
        folder.mkdir()
        (folder / "beside.py").write_text("WORD = 'beside'\n")
        (folder / "table.json").write_text('{"a": 1}')
        file = folder / "driver.py"
        file.write_text(f"SECRET = {str(self.secret)!r}\n{textwrap.dedent(text)}")
        digests = {each.name: digest_of(each) for each in folder.iterdir()}
        home = self.stage.folder / "data" / "homes" / "_hooks" / str(number)
        files = {"name": f"d{number}@1", "folder": folder, "home": home, "digests": digests}
        parts = self.stage.node.links.connector_parts
        process = HookProcess(**files, connector_parts=parts, **changed)
        self.made.append(process)
        return process

    def hook(self, *lines: str, **changed: Any) -> HookProcess:
        """With these lines in build_arguments; the last is what it returns."""
        *before, last = lines
        body = "\n    ".join([*before, f"return {last}"])
        text = "import json, os, sys, time\nfrom interlock import define_driver\nasked = []\n"
        text += f"def build(args):\n    asked.append(1)\n    {body}\ndefine_driver(build_arguments=build)\n"
        return self.process(text, **changed)


async def built(process: HookProcess, **changed: Any) -> Any:
    async with asyncio.timeout(30):
        return await process.ask("build_arguments", args={**ARGS, **changed})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with driver_stage(tmp_path_factory.mktemp("hooks")) as stage:
        made = Bench(stage)
        yield made
        await asyncio.gather(*(process.stop() for process in made.made))


@pytest.mark.req("AIP-define-5")
@pytest.mark.parametrize("what", REACHING)
async def test_a_driver_py_that_reaches_out_when_it_is_imported_is_not_loaded(bench: Bench, what: str) -> None:
    process = bench.process(f"from interlock import define_driver\n{REACHING[what]}\ndefine_driver()\n")
    with pytest.raises(HookFailed, match="PermissionError"):
        await process.load()
    assert process.pid is None


@pytest.mark.req("AIP-define-5")
@pytest.mark.parametrize("what", REACHING)
async def test_a_hook_that_reaches_out_fails_and_the_next_call_is_served(bench: Bench, what: str) -> None:
    process = bench.hook(f"if args.input['n'] == 1: {REACHING[what]}", "{'calls': len(asked)}")
    with pytest.raises(HookFailed, match="PermissionError"):
        await built(process)
    assert await built(process, input={"n": 2}) == {"calls": 2}


@pytest.mark.req("AIP-define-5")
async def test_files_outside_the_sandbox_do_not_exist_for_a_hook(bench: Bench) -> None:
    """The guard aside, for a program may get around it: no file is asked for by name here."""
    seen = await built(
        bench.hook(
            "there = [path for path in (SECRET, '/etc/shadow', os.path.expanduser('~/.ssh')) if os.path.exists(path)]",
            "{'there': there, 'env': sorted(os.environ), 'net': os.stat('/proc/self/ns/net').st_ino}",
        )
    )
    assert bench.secret.exists()
    assert seen["there"] == []
    assert set(seen["env"]) <= {"PATH", "HOME", "TMPDIR", "LANG", "LC_CTYPE", "PWD", "TZ"}
    assert seen["net"] != Path("/proc/self/ns/net").stat().st_ino


async def test_a_hook_has_its_folder_and_pythons_library_and_nothing_else(bench: Bench) -> None:
    process = bench.process(
        """
        import datetime, decimal, json, pathlib, re
        from beside import WORD
        from interlock import define_driver

        here = pathlib.Path(__file__).parent
        table = json.loads((here / "table.json").read_text())

        def build_arguments(args):
            try:
                import msgspec
            except ImportError:
                return {"table": table, "word": WORD, "files": sorted(each.name for each in here.iterdir())}

        driver = define_driver(build_arguments=build_arguments)
        """
    )
    assert await built(process) == {
        "table": {"a": 1},
        "word": "beside",
        "files": ["beside.py", "driver.py", "table.json"],
    }


@pytest.mark.req("AIP-define-2")
async def test_data_passes_through_a_hook_unchanged(bench: Bench) -> None:
    odd = {"text": 'ä\n\u2028"\\\0', "big": 2**63, "float": 0.1, "none": None, "deep": [[[{}]]]}
    process = bench.hook("{'input': args.input, 'all': [args.mapped, args.context, args.tool_id, args.tool_name]}")
    assert await built(process, input=odd) == {"input": odd, "all": [{"m": 2}, {}, "demo.a", "a"]}


@pytest.mark.req("AIP-define-2")
@pytest.mark.parametrize(
    "nonsense",
    [
        *("None", "[]", "'{}'", "7", "object()", "{'a': object()}", "{'a': float('nan')}", "{'a': {1, 2}}", "args"),
        *("{(1, 2): 3}", "1 / 0", "[].pop()", "sys.exit(0)", "(_ for _ in ()).throw(KeyboardInterrupt)"),
        "bytearray(1 << 31)",
    ],
)
async def test_a_hook_that_raises_or_returns_no_dict_of_json_fails_alone(bench: Bench, nonsense: str) -> None:
    process = bench.hook(f"if args.input['n'] == 1: return {nonsense}", "{'calls': len(asked)}")
    with pytest.raises(HookFailed):
        await built(process)
    assert await built(process, input={"n": 2}) == {"calls": 2}


@pytest.mark.parametrize(
    "end",
    [
        "os._exit(3)",
        "say(b'no message\\n')",
        """say(b'{"id": 77, "value": {}}\\n')""",
        "[os.close(fd) for fd in FDS]",
        "(os.close(1), os.close(2), os._exit(0))",
    ],
    ids=["exits", "scribbles", "answers another question", "closes all", "leaves quietly"],
)
async def test_a_process_that_ends_or_breaks_the_exchange_is_replaced(bench: Bench, end: str) -> None:
    fds = "FDS = [fd for fd in range(3, 9) if os.path.exists(f'/proc/self/fd/{fd}')]"
    say = (
        "def say(data):\n        for fd in FDS:\n            try: os.write(fd, data)\n            except OSError: pass"
    )
    process = bench.hook(fds, say, f"if args.input['n'] == 1: return {end}", "{'calls': len(asked)}")
    with pytest.raises(HookFailed):
        await built(process)
    assert await built(process, input={"n": 2}) == {"calls": 1}


async def test_an_answer_over_the_limit_fails_alone(bench: Bench) -> None:
    process = bench.hook("if args.input['n'] == 1: return {'a': 'x' * 40_000_000}", "{'calls': len(asked)}")
    with pytest.raises(HookFailed):
        await built(process)
    assert await built(process, input={"n": 2}) == {"calls": 2}


async def test_output_printed_by_a_hook_is_harmless(bench: Bench) -> None:
    process = bench.hook(
        "print('out', flush=True); print('err', file=sys.stderr); os.write(1, b'raw\\n'); sys.__stdout__.write('x')",
        "{'read': sys.stdin.read()}",
    )
    assert await built(process) == {"read": ""}
    assert await built(process) == {"read": ""}


@pytest.mark.req("AIP-define-2", "AIP-define-5")
async def test_a_hook_that_takes_too_long_is_ended_and_the_loop_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hooks.HOOK_S == 5
    monkeypatch.setattr(hooks, "HOOK_S", 0.5)
    process = bench.hook("if args.input['n'] == 1: time.sleep(60)", "{'calls': len(asked)}")
    await process.load()
    pid = process.pid
    assert pid is not None
    late = asyncio.create_task(built(process))
    behind = asyncio.create_task(built(process, input={"n": 2}))
    turns = 0
    while not late.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 10
    with pytest.raises(HookFailed, match=r"longer than 0\.5 s"):
        await late
    assert await behind == {"calls": 1}  # by a process of its own
    await until(lambda: not alive(pid))


async def test_an_endless_loop_is_ended_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "HOOK_S", 0.5)
    process = bench.hook("while True: pass", "{}")
    await process.load()
    pid = process.pid
    with pytest.raises(HookFailed, match="longer"):
        await built(process)
    await until(lambda: pid is not None and not alive(pid))


async def test_a_cancelled_hook_call_does_not_affect_the_next_answer(bench: Bench) -> None:
    process = bench.hook("if args.input['n'] == 1: time.sleep(0.5)", "{'n': args.input['n'], 'calls': len(asked)}")
    await process.load()
    gone = asyncio.create_task(built(process))
    await asyncio.sleep(0)
    next_one = asyncio.create_task(built(process, input={"n": 2}))
    gone.cancel()
    assert await next_one == {"n": 2, "calls": 2}


async def test_many_at_once_get_their_own(bench: Bench) -> None:
    process = bench.hook("{'n': args.input['n']}")
    answers = await asyncio.gather(*(built(process, input={"n": n}) for n in range(100)))
    assert answers == [{"n": n} for n in range(100)]


async def test_a_hook_process_sleeps_when_nobody_asks_and_wakes_when_somebody_does(bench: Bench) -> None:
    process = bench.hook("{'calls': len(asked)}", idle_s=0.2)
    assert await built(process) == {"calls": 1}
    pid = process.pid
    await until(lambda: process.pid is None)
    await until(lambda: pid is not None and not alive(pid))
    assert await built(process) == {"calls": 1}


async def test_nothing_is_left_after_stop_and_nothing_starts_again(bench: Bench) -> None:
    process = bench.hook("time.sleep(60)", "{}")
    await process.load()
    pid = process.pid
    asked = asyncio.create_task(built(process))
    await asyncio.sleep(0)
    await process.stop()
    assert pid is not None and not alive(pid)
    with pytest.raises(HookFailed, match="its driver was stopped"):
        await asked
    with pytest.raises(HookFailed, match="stopped"):
        await built(process)


@pytest.mark.req("AIP-define-5", "AIP-security-13")
@pytest.mark.parametrize("file", ["driver.py", "beside.py"])
async def test_a_file_that_changed_since_it_was_accepted_is_not_run(bench: Bench, file: str) -> None:
    process = bench.hook("{}", idle_s=0.1)
    assert await built(process) == {}
    await until(lambda: process.pid is None)
    changed = bench.stage.folder / f"driver{len(bench.made) - 1}" / file
    changed.write_text(f"{changed.read_text()}\n")
    with pytest.raises(HookFailed, match=f"{file} is not as it was accepted"):
        await built(process)
    assert process.pid is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "calls define_driver 0 times"),
        ("from interlock import define_driver\ndefine_driver()\ndefine_driver()\n", "2 times"),
        ("from interlock import define_driver\ndefine_driver(unknown=1)\n", "TypeError: .*unknown"),
        ("def (", "SyntaxError"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os; os._exit(0)", "exited with code 0"),
        ("from interlock.runtime import node", "ModuleNotFoundError"),
    ],
)
async def test_a_driver_py_that_is_none_is_refused_with_its_reason(bench: Bench, text: str, why: str) -> None:
    with pytest.raises(HookFailed, match=why) as caught:
        await bench.process(text).load()
    assert caught.value.code == "entry_invalid"


@pytest.mark.req("AIP-define-1")
async def test_functions_for_unbound_contracts_are_reported_with_their_code(bench: Bench) -> None:
    text = "from interlock import define_driver\ndefine_driver(implements=[{'tool': 'a'}], execute={'b': print})\n"
    with pytest.raises(HookFailed, match="b") as caught:
        await bench.process(text).load()
    assert caught.value.code == "execute_binding_mismatch"


async def test_the_declaration_in_driver_py_is_read(bench: Bench) -> None:
    process = bench.process(
        """
        import json
        from json import dumps
        from interlock import define_driver, defineDriver
        from interlock.drivers.hooks import BuildArgumentsArgs

        def upper(value): return value.upper()
        def _private(value): return value
        handle = defineDriver(id="a-mcp", parseToolResult=lambda args: {"ok": True, "value": args.result})
        """
    )
    entry = await process.load()
    assert entry == HookEntry(
        manifest={"kind": "mcp", "id": "a-mcp"}, parses=True, transforms=frozenset({"dumps", "upper"})
    )
    assert await process.ask("transform", values={"x": ("upper", "a")}) == {"x": "A"}
    with pytest.raises(HookFailed, match="KeyError: '_private'"):
        await process.ask("transform", values={"x": ("_private", "a")})


async def test_without_a_sandbox_it_runs_only_where_the_operator_allowed_it(bench: Bench) -> None:
    bare = msgspec.structs.replace(bench.stage.node.links.connector_parts, sandboxes=None)
    process = bench.hook("{}")
    process.connector_parts = bare
    with pytest.raises(SandboxFailed, match="sandbox_unavailable"):
        await process.load()
    process = bench.hook(
        f"if args.input['n'] == 1: {REACHING['a file outside']}", "{'calls': len(asked)}", may_do_without=True
    )
    process.connector_parts = bare
    with pytest.raises(HookFailed, match="PermissionError"):
        await built(process)
    assert await built(process, input={"n": 2}) == {"calls": 2}


async def test_the_example_of_the_documentation_works(bench: Bench) -> None:
    page = (Path(__file__).parents[3] / "docs" / "drivers.md").read_text()
    process = bench.process(page.partition("```python\n")[2].partition("```")[0])
    assert (await process.load()).transforms == {"build_arguments", "parse_tool_result", "ratio"}
    assert await built(process, input={"limit": 99}) == {"m": 2, "limit": 50}
    assert await process.ask("transform", values={"aspect_ratio": ("ratio", "16:8")}) == {"aspect_ratio": 2.0}
    args = {"result": {"structuredContent": {"rows": [1]}}, "tool_id": "a", "tool_name": "b"}
    assert await process.ask("parse_tool_result", args=args) == {"ok": True, "value": {"rows": [1]}}


async def test_a_folder_that_a_link_leads_to_is_shown_as_well(bench: Bench) -> None:
    process = bench.hook("{'there': os.path.exists(__file__)}")
    linked = bench.stage.folder / "linked"
    linked.symlink_to(bench.stage.folder)
    process.folder = linked / process.folder.name
    assert await built(process) == {"there": True}
