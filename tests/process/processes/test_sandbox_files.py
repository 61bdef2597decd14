"""What a sandbox shows of the disk, lets be started and hands over, by what its plan says."""

import asyncio
import ctypes
import errno
import json
import platform
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.process.sandboxed_program import SandboxedHome
from tests.servers.caging import find_marked_processes, needs_sandbox
from tests.support.node_process import wait_for

from interlock.config.plan import ServerPlan, Spawn
from interlock.process.sandbox.host_paths import SandboxFailed
from interlock.process.sandbox.sandbox import seccomp_filter

pytestmark = needs_sandbox

READ = "tell([tried(lambda: open(path).read()) for path in sys.argv[1:]])"
ADD_KEY, KEYCTL = 248, 250  # of x86_64
GONE, KEPT_FROM = "FileNotFoundError", "PermissionError"


@pytest.fixture
def house(tmp_path: Path) -> SandboxedHome:
    return SandboxedHome(tmp_path)


def filled(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


@pytest.mark.req("AIP-security-5")
async def test_read_paths_are_read_and_not_written_and_write_paths_are_both(
    house: SandboxedHome, tmp_path: Path
) -> None:
    seen, used = filled(tmp_path / "seen", "a"), filled(tmp_path / "used", "b")
    text = f"""
tell([tried(lambda: open({str(seen / "a")!r}).read()), tried(lambda: open({str(seen / "a")!r}, "w").close()),
      tried(lambda: open({str(used / "b")!r}).read()), tried(lambda: open({str(used / "c")!r}, "w").write("new"))])
"""
    plan = house.plan(read=(seen,), write=(used,))
    assert await house.python(plan, text) == ["a", "OSError", "b", 3]
    assert (used / "c").read_text() == "new"


@pytest.mark.req("AIP-security-5")
async def test_denied_paths_are_removed_from_readable_and_writable_paths(house: SandboxedHome, tmp_path: Path) -> None:
    folder = filled(tmp_path / "data", "open", "secret", "vault/deep/key", "vault/beside")
    plan = house.plan(
        read=(folder / "vault" / "deep",), write=(folder,), deny=(folder / "secret", folder / "vault" / "deep")
    )
    paths = [str(folder / name) for name in ("open", "secret", "vault/deep/key", "vault/beside")]
    assert await house.python(plan, READ, *paths) == ["open", KEPT_FROM, GONE, "vault/beside"]
    text = f"""
tell([tried(lambda: os.rename({paths[1]!r}, {paths[1] + "2"!r})), tried(lambda: os.unlink({paths[1]!r})),
      tried(lambda: os.rename({str(folder / "vault")!r}, {str(folder / "other")!r})),
      tried(lambda: open({str(folder / "vault" / "deep" / "made")!r}, "w").close())])
"""
    assert await house.python(plan, text) == ["OSError"] * 4
    assert (folder / "secret").read_text() == "secret"
    assert (folder / "vault" / "deep" / "key").exists()


@pytest.mark.req("AIP-security-1")
@pytest.mark.parametrize("around", [False, True], ids=["the workspace", "a folder around it"])
async def test_a_server_that_may_write_the_workspace_cannot_write_files_the_node_runs(
    house: SandboxedHome, around: bool
) -> None:
    space = filled(house.workspace, "interlock.toml", ".drivers/a/DRIVER.md", "note")
    (space / "pyproject.toml").write_text("")
    config, made = space / "interlock.toml", space / ".drivers" / "pwn"
    text = f"""
tell([tried(lambda: open({str(config)!r}, "a").write("x")), tried(lambda: os.unlink({str(config)!r})),
      tried(lambda: os.rename({str(config)!r}, {str(space / "other")!r})), tried(lambda: os.mkdir({str(made)!r})),
      tried(lambda: os.rename({str(space / ".drivers")!r}, {str(space / "moved")!r})),
      tried(lambda: os.rename({str(space)!r}, {str(space) + "2"!r})),
      tried(lambda: open({str(space / "note")!r}, "a").write("x"))])
"""
    plan = house.plan(write=(space.parent if around else space,))
    assert await house.python(plan, text) == ["OSError"] * 6 + [1]
    assert (config.read_text(), made.exists()) == ("interlock.toml", False)


@pytest.mark.req("AIP-security-5")
async def test_the_marks_of_a_package_do_not_show_the_whole_workspace(house: SandboxedHome) -> None:
    space = filled(house.workspace, "pyproject.toml", ".env", "servers/own", "servers/here.py")
    (space / "servers" / "here.py").write_text(
        "import json, sys\n"
        "def read(path):\n"
        "    try: return open(path).read()\n"
        "    except OSError as failed: return type(failed).__name__\n"
        "print(json.dumps([read(path) for path in sys.argv[1:]]), flush=True)\n"
    )
    paths = (str(space / "servers" / "own"), str(space / ".env"))
    done = await house.run(house.plan(), sys.executable, str(space / "servers" / "here.py"), *paths)
    assert done.said == ["servers/own", GONE]


@pytest.mark.req("AIP-security-5")
async def test_a_link_that_leads_out_leads_nowhere(house: SandboxedHome, tmp_path: Path) -> None:
    outside, allowed = filled(tmp_path / "outside", "note"), filled(tmp_path / "allowed", "own")
    (allowed / "way").symlink_to(outside / "note")
    (allowed / "folder").symlink_to(outside)
    paths = [str(allowed / "way"), str(allowed / "folder" / "note"), str(allowed / ".." / "outside" / "note")]
    assert await house.python(house.plan(write=(allowed,)), READ, *paths) == [GONE] * 3


async def test_a_declared_path_that_is_a_link_is_found_under_both_names(house: SandboxedHome, tmp_path: Path) -> None:
    real = filled(tmp_path / "real", "note")
    (tmp_path / "alias").symlink_to(real)
    paths = [str(tmp_path / "alias" / "note"), str(real / "note")]
    assert await house.python(house.plan(read=(tmp_path / "alias",)), READ, *paths) == ["note", "note"]


async def test_a_link_to_a_protected_place_is_not_granted_under_another_name(
    house: SandboxedHome, tmp_path: Path
) -> None:
    for target in (house.home, house.state, Path("/etc"), Path("/")):
        link = tmp_path / "link"
        link.symlink_to(target)
        with pytest.raises(SandboxFailed, match=r"sandbox_invalid: .* is a link to") as failed:
            await house.run(house.plan(write=(link,)), "true")
        assert failed.value.code == "sandbox_invalid"
        link.unlink()


@pytest.mark.req("AIP-security-5")
async def test_a_link_at_a_declared_path_never_leads_out_of_its_root(house: SandboxedHome, tmp_path: Path) -> None:
    keys, elsewhere = filled(house.home / ".ssh", "id"), filled(tmp_path / "elsewhere", "note")
    inside = filled(house.workspace / "inside", "note")
    link = house.workspace / "out"
    for target, path in ((keys, link), (elsewhere, link), (house.home, link / ".ssh"), (tmp_path, link / "elsewhere")):
        link.symlink_to(target)
        for use in ("read", "write"):
            with pytest.raises(SandboxFailed, match=r"sandbox_invalid: .*out.* is a link to"):
                await house.run(house.plan(**{use: (path,)}), "true")
        link.unlink()
    link.symlink_to("inside")
    assert await house.python(house.plan(write=(link,)), READ, str(link / "note")) == ["note"]
    assert inside.is_dir()


@pytest.mark.req("AIP-security-5")
async def test_a_link_in_the_home_does_not_lead_to_what_is_hidden_there(house: SandboxedHome) -> None:
    keys, shared = house.home / ".ssh", house.home / "shared"
    keys.mkdir(exist_ok=True)
    shared.mkdir()
    (shared / "inside").mkdir()
    (shared / "out").symlink_to(keys)
    for use in ("read", "write"):
        with pytest.raises(SandboxFailed, match=r"sandbox_invalid: .*out is a link to .*ssh"):
            await house.run(house.plan(**{use: (shared / "out",)}), "true")
    (keys / "again").symlink_to(keys / "deep")
    (keys / "deep").mkdir()
    (shared / "other").symlink_to(shared / "inside")
    for path in (keys / "again", shared / "other"):
        assert (await house.run(house.plan(write=(path,)), "true")).reason == "exited with code 0"


@pytest.mark.req("AIP-security-5")
@pytest.mark.parametrize("place", ["workspace", "home"])
async def test_a_link_among_the_arguments_opens_nothing(house: SandboxedHome, place: str) -> None:
    filled(house.home / ".ssh", "id")
    out = getattr(house, place) / "out"
    out.symlink_to(house.home / ".ssh")
    plan = house.plan(from_arguments=True)
    assert await house.python(plan, READ, str(out / "id")) == [GONE]
    assert await house.python(plan, "tell(os.path.exists(sys.argv[1]))", str(out)) is False


@pytest.mark.req("AIP-security-5")
async def test_a_link_in_place_of_its_package_or_script_is_refused(house: SandboxedHome) -> None:
    keys = filled(house.home / ".ssh", "id")
    (house.workspace / "module").symlink_to(keys)
    (house.workspace / "script").symlink_to(keys / "id")
    for arguments in (("-m", "module"), ("script",)):
        with pytest.raises(SandboxFailed, match="is a link to"):
            await house.run(house.plan(), sys.executable, *arguments)


@pytest.mark.req("AIP-security-5")
async def test_rules_of_the_node_are_not_written_through_a_link_to_them(house: SandboxedHome) -> None:
    filled(house.workspace / ".drivers", "other/a")
    link = house.workspace / "out"
    for target in (".drivers", ".drivers/other"):
        link.symlink_to(target)
        with pytest.raises(SandboxFailed, match="is a link to"):
            await house.run(house.plan(write=(link,)), "true")
        link.unlink()
    link.symlink_to(".")
    text = f"tell(tried(lambda: open({str(link / '.drivers' / 'b')!r}, 'w')))"
    assert await house.python(house.plan(write=(link,)), text) == "OSError"


@pytest.mark.req("AIP-security-5")
async def test_a_path_that_became_another_since_it_was_accepted_is_not_mounted(house: SandboxedHome) -> None:
    one, other = filled(house.workspace / "one", "note"), filled(house.workspace / "other", "note")
    link = house.workspace / "out"
    link.symlink_to(one)
    for use in ("read", "write", "deny"):
        plan = house.plan(**{use: (link,)}, accepted={link: one})
        assert await house.python(plan, "tell(1)") == 1
        link.unlink()
        link.symlink_to(other)
        with pytest.raises(SandboxFailed, match=f"sandbox_invalid: {link} is {other} now and was {one}"):
            await house.run(plan, "true")
        link.unlink()
        link.symlink_to(one)


@pytest.mark.req("AIP-security-5")
async def test_a_link_that_comes_between_the_check_and_the_mount_opens_nothing(house: SandboxedHome) -> None:
    """A neighbour that may write the workspace swaps the folder for a link and back, as fast as it can."""
    keys, out, aside = filled(house.home / ".ssh", "note"), house.workspace / "out", house.workspace / "aside"
    filled(out, "note")
    (keys / "note").write_text("private\n")
    (out / "note").write_text("own\n")
    stopped = threading.Event()

    def swap() -> None:
        while not stopped.is_set():
            out.rename(aside)
            out.symlink_to(keys)
            time.sleep(0.002)
            out.unlink()
            aside.rename(out)
            time.sleep(0.002)

    swapping = threading.Thread(target=swap)
    swapping.start()
    said: list[str] = []
    refused = 0
    try:
        for _ in range(40):
            try:
                said += (await house.run(house.plan(write=(out,)), "cat", str(out / "note"))).lines
            except SandboxFailed:
                refused += 1
    finally:
        stopped.set()
        swapping.join()
    assert refused
    assert "private" not in said
    assert await house.python(house.plan(write=(out,)), READ, str(out / "note")) == ["own\n"]


async def test_a_link_that_a_server_put_into_its_folder_grants_nothing_at_the_next_start(
    house: SandboxedHome, tmp_path: Path
) -> None:
    own, outside = filled(tmp_path / "own", "sub/a"), filled(tmp_path / "outside", "note")
    plan = house.plan(write=(own, own / "sub"), read=(own / "sub",))
    text = "import shutil; shutil.rmtree(sys.argv[1]); os.symlink(sys.argv[2], sys.argv[1]); tell(1)"
    assert await house.python(plan, text, str(own / "sub"), str(outside)) == 1
    assert await house.python(plan, READ, str(own / "sub" / "note")) == [GONE]


async def test_a_path_to_write_that_is_not_there_is_named(house: SandboxedHome, tmp_path: Path) -> None:
    with pytest.raises(SandboxFailed, match=f"sandbox_invalid: {tmp_path}/none, which it may write, is not there"):
        await house.run(house.plan(write=(tmp_path / "none",)), "true")


@pytest.mark.req("AIP-security-5")
async def test_existing_paths_among_the_arguments_are_implied_but_never_protected_paths(
    house: SandboxedHome, tmp_path: Path
) -> None:
    data = filled(tmp_path / "data", "a")
    filled(house.home, "diary")
    filled(house.state, "store.db")
    words = [str(each) for each in (data, house.home, house.state, "/", "/etc")]
    text = """
tell([tried(lambda: sorted(os.listdir(path))) for path in sys.argv[1:4]] + [os.path.exists("/etc/shadow"),
     tried(lambda: open(sys.argv[1] + "/b", "w").write("x"))])
"""
    plan = house.plan(from_arguments=True)
    listed = await house.python(plan, text, *words)
    assert listed == [["a"], GONE, ["homes"], False, 1]
    assert (await house.python(house.plan(), text, *words))[0] == GONE
    inner = filled(house.home / "project", "x")
    assert (await house.python(plan, text, str(inner), *words))[0] == ["x"]


@pytest.mark.req("AIP-security-5")
async def test_the_node_s_data_is_hidden_below_what_is_declared_unless_it_is_written_out(house: SandboxedHome) -> None:
    filled(house.state, "store.db")
    path = str(house.state / "store.db")
    around = house.plan(read=(house.state.parent,))
    assert await house.python(around, READ, path) == [GONE]
    assert await house.python(house.plan(read=(Path("/"),)), READ, path) == [GONE]
    assert await house.python(house.plan(read=(house.state / "store.db",)), READ, path) == ["store.db"]


@pytest.mark.req("AIP-security-5")
async def test_a_failure_names_the_path_among_the_arguments_that_is_not_shown(
    house: SandboxedHome, tmp_path: Path
) -> None:
    database = tmp_path / "data" / "t.db"
    (tmp_path / "data").mkdir()
    text = "import sqlite3, sys; sqlite3.connect(sys.argv[2]).execute('create table if not exists t (a)')"
    arguments = (sys.executable, "-c", text, "--db-path", str(database))
    without = await house.run(house.plan(), *arguments)
    assert without.reason == "exited with code 1"
    assert str(database) in without.remark
    allowed = await house.run(house.plan(write=(tmp_path / "data",)), *arguments)
    assert (allowed.reason, allowed.remark) == ("exited with code 0", "")
    assert database.exists()


@pytest.mark.req("AIP-security-5")
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed: named programs are not shown")
async def test_only_the_runtime_and_named_programs_can_be_started(house: SandboxedHome) -> None:
    text = """
def start(*argv): return tried(lambda: subprocess.run(argv, capture_output=True, text=True, check=True).stdout[:11])
tell([start(sys.executable, "-c", "print('own runtime')"), start("git", "--version"),
      start("/usr/lib/git-core/git", "--version"), start("sh", "-c", "echo x"), start("ls"),
      start("/bin/cat", "/etc/hosts")])
"""
    own, *rest = await house.python(house.plan(), text)
    assert (own, set(rest)) == ("own runtime", {GONE})
    named = await house.python(house.plan(programs=("git",)), text)
    assert named[:2] == ["own runtime", "git version"]
    assert set(named[3:]) == {GONE}
    anything = await house.python(house.plan(any_program=True), text)
    assert anything[1] == "git version"
    assert anything[3] == "x\n"


async def test_a_named_program_that_is_missing_is_reported(house: SandboxedHome) -> None:
    with pytest.raises(SandboxFailed, match="there is no program 'no-such-program' on the PATH"):
        await house.run(house.plan(programs=("no-such-program",)), "true")


@pytest.mark.req("AIP-security-14")
async def test_passed_and_declared_variables_are_there_and_nothing_else(
    house: SandboxedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "of the host")
    monkeypatch.setenv("WANTED", "passed")
    monkeypatch.setenv("TZ", "UTC")
    inside = await house.python(
        house.plan(passed=("WANTED", "NOT_SET")), "tell(dict(os.environ))", env={"OWN": "declared"}
    )
    assert set(inside) == {"PATH", "HOME", "TMPDIR", "LANG", "TZ", "PWD", "OWN", "WANTED"}
    assert (inside["OWN"], inside["WANTED"], inside["TZ"]) == ("declared", "passed", "UTC")
    monkeypatch.delenv("LANG", raising=False)
    assert (await house.python(house.plan(), "tell(os.environ['LANG'])")) == "C.UTF-8"
    assert inside["HOME"] == str(house.state / "homes" / "one")


async def test_a_secret_is_in_no_argument_of_any_process(house: SandboxedHome) -> None:
    text = "tell([open(f'/proc/{pid}/cmdline').read() for pid in os.listdir('/proc') if pid.isdigit()])"
    lines = await house.python(house.plan(), text, env={"TOKEN": "s3cret-value"})
    assert lines
    assert "s3cret-value" not in str(lines)
    assert find_marked_processes("s3cret-value") == []


async def test_a_declared_variable_reaches_nothing_outside_of_the_sandbox(house: SandboxedHome, tmp_path: Path) -> None:
    """The dynamic linker obeys LD_*: in bubblewrap's own environment it would load a stranger's code on the host."""
    plan = house.plan()
    text = "tell([os.environ['LD_AUDIT'], os.environ['PYTHONSTARTUP']])"
    env = {"LD_AUDIT": str(tmp_path / "evil.so"), "PYTHONSTARTUP": "evil.py"}
    ended = await house.run(
        plan, sys.executable, "-c", "import json, os\ndef tell(v): print(json.dumps(v))\n" + text, env=env
    )
    assert ended.said == [env["LD_AUDIT"], "evil.py"]
    loaded = [line for line in ended.errors if "evil.so" in line]
    assert len(loaded) == 1  # by the program inside, which has no such file; bwrap would complain too


@pytest.mark.req("AIP-security-1")
async def test_nothing_is_inherited_but_the_pipes(house: SandboxedHome) -> None:
    # os.listdir has one of its own.
    assert await house.python(house.plan(), "tell(sorted(os.listdir('/proc/self/fd')))") == ["0", "1", "2", "3"]


@pytest.mark.req("AIP-security-1")
async def test_there_is_no_privilege_inside_and_no_way_to_another_namespace(house: SandboxedHome) -> None:
    text = """
import ctypes
caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")]
spaces = {name: os.readlink("/proc/self/ns/" + name) for name in os.listdir("/proc/self/ns")}
tell([caps, ctypes.CDLL(None).unshare(0x10000000), os.getpid() < 10, os.uname().nodename, spaces, os.getsid(0) > 0])
"""
    caps, entered, small, name, spaces, of_its_own = await house.python(house.plan(), text)
    assert set(caps) == {"0000000000000000"}
    assert (entered, small, name) == (-1, True, "sandbox")
    assert of_its_own  # a session of its own, which has no terminal of ours
    for kind in ("user", "ipc", "pid", "net", "uts", "cgroup", "mnt"):
        assert spaces[kind] != str(Path(f"/proc/self/ns/{kind}").readlink()), kind


@pytest.mark.req("AIP-security-1")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86_64")
async def test_the_keys_of_the_users_session_are_not_reached(house: SandboxedHome) -> None:
    """They belong to the user, and no namespace separates them."""
    kernel = ctypes.CDLL(None, use_errno=True)
    key = kernel.syscall(ADD_KEY, b"user", b"interlock-test", b"secret", 6, -2)  # to this process
    if key < 0:
        pytest.skip("NO KEYS: this machine keeps none, so nothing is shown of them")
    kernel.syscall(KEYCTL, 5, key, 0x3F3F0000)  # readable for whoever is the same user
    text = f"""
import ctypes, json, sys
kernel = ctypes.CDLL(None, use_errno=True)
held = ctypes.create_string_buffer(100)
print(json.dumps([kernel.syscall({KEYCTL}, 11, {key}, held, 100), ctypes.get_errno(), held.value.decode()]))
"""
    free = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=asyncio.subprocess.PIPE)
    assert json.loads((await free.communicate())[0]) == [6, 0, "secret"]
    assert (await house.run(house.plan(), sys.executable, "-c", text)).said == [-1, errno.EPERM, ""]
    kernel.syscall(KEYCTL, 3, key)  # revoked


def test_a_filter_is_made_for_machines_that_are_known() -> None:
    assert seccomp_filter("s390x") is None
    for machine in ("x86_64", "aarch64", "riscv64"):
        made = seccomp_filter(machine)
        assert made is not None
        assert len(made) == 8 * 15


@pytest.mark.req("AIP-security-1")
async def test_undeclared_places_are_read_only_and_bounded(house: SandboxedHome) -> None:
    text = """
places = ("/x", "/usr/x", "/etc/x", "/dev/x", "/proc/sys/kernel/core_pattern")
tell([tried(lambda: open(path, "w").close()) for path in places]
     + [tried(lambda: open("/" + "tmp/full", "wb").write(b"x" * (80 * 1024 * 1024)))])
"""
    assert await house.python(house.plan(), text) == ["OSError"] * 6


async def test_the_home_is_kept_and_the_temporary_folder_is_not(house: SandboxedHome) -> None:
    text = """
home = os.environ["HOME"]
before = [os.path.exists(home + "/kept"), os.listdir(os.environ["TMPDIR"])]
open(home + "/kept", "w").close(); open(os.environ["TMPDIR"] + "/passing", "w").close()
tell(before)
"""
    assert await house.python(house.plan(), text) == [False, []]
    assert await house.python(house.plan(), text) == [True, []]


async def test_a_second_program_in_the_same_home_leaves_the_temporary_files_of_the_first(house: SandboxedHome) -> None:
    """A health check runs where its server does."""
    wait = """
import time
open(os.environ["TMPDIR"] + "/mine", "w").close()
while not os.path.exists(os.environ["HOME"] + "/seen"): time.sleep(0.01)
tell(os.path.exists(os.environ["TMPDIR"] + "/mine"))
"""
    mine = house.state / "homes" / "one" / "tmp" / "mine"
    first = asyncio.create_task(house.python(house.plan(), wait))
    await asyncio.to_thread(wait_for, mine.exists)
    assert await house.python(house.plan(), "tell(os.listdir(os.environ['TMPDIR']))") == ["mine"]
    (house.state / "homes" / "one" / "seen").touch()
    assert await first is True
    assert await house.python(house.plan(), "tell(os.listdir(os.environ['TMPDIR']))") == []


async def test_a_script_sees_the_folder_it_lies_in_and_not_the_workspace(house: SandboxedHome) -> None:
    filled(house.workspace, "interlock.toml", "servers/one/other")
    script = house.workspace / "servers" / "one" / "server.py"
    script.write_text(
        "import json, os; print(json.dumps([os.path.exists(each) for each in ('other', '../../interlock.toml')]))"
    )
    ended = await house.run(house.plan(), sys.executable, "server.py", cwd=script.parent)
    assert ended.said == [True, False]
    alone = house.workspace / "alone.py"
    alone.write_text("import json, os; print(json.dumps(sorted(os.listdir('.'))))")
    ended = await house.run(house.plan(), sys.executable, "alone.py")
    assert ended.said == ["alone.py"]


async def test_a_program_with_a_first_line_brings_its_interpreter(house: SandboxedHome, tmp_path: Path) -> None:
    program = tmp_path / "tool" / "bin" / "run"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nimport json; print(json.dumps(open(__file__).read(2)))\n")
    program.chmod(0o755)
    link = house.home / "run"
    link.symlink_to(program)
    assert (await house.run(house.plan(), str(program))).said == "#!"
    assert (await house.run(house.plan(), str(link))).said == "#!"


async def test_a_file_in_the_way_of_the_home_is_no_way_out(house: SandboxedHome) -> None:
    """A home is made by the node; what a server left in it as `tmp` is not followed."""
    home, outside = house.state / "homes" / "one", filled(house.workspace / "outside", "kept")
    home.mkdir(parents=True)
    (home / "tmp").symlink_to(outside)
    assert await house.python(house.plan(), "open(os.environ['TMPDIR'] + '/x', 'w').close(); tell(1)") == 1
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert not (home / "tmp").is_symlink()


async def test_a_program_that_cannot_be_started_says_so_with_and_without_a_network(
    house: SandboxedHome, tmp_path: Path
) -> None:
    broken = tmp_path / "tool" / "broken"
    broken.parent.mkdir()
    broken.write_text("#!/nonexistent/interpreter\n")
    broken.chmod(0o755)
    for egress in ((), ("localhost",)):
        ended = await house.run(house.plan(egress=egress), str(broken))
        assert ended.reason == "exited with code 1"
        assert f"bwrap: execvp {broken}: No such file or directory" in ended.remark


async def test_an_installed_package_is_seen_whole_also_where_the_data_folder_is_a_link(tmp_path: Path) -> None:
    """The installer names what it made by its real path."""
    tool = filled(tmp_path / "elsewhere" / "pypi" / "tool", "bin/run", "lib/data")
    (tool / "bin" / "run").write_text(f"import json\nprint(json.dumps(open({str(tool / 'lib' / 'data')!r}).read()))\n")
    house = SandboxedHome(tmp_path, packages=tmp_path / "elsewhere")
    ended = await house.run(house.plan(), sys.executable, str(tool / "bin" / "run"))
    assert ended.said == "lib/data"


@pytest.mark.req("AIP-security-5")
@pytest.mark.parametrize(
    "command",
    [
        ("PYTHON", "tools/server.py"),
        ("tools/run",),
        ("tools/linked",),
        ("PYTHON", "-m", "package.main"),
        ("PYTHON", "-u", "outside/linked.py"),
    ],
    ids=["script", "program", "link", "module", "script behind a link"],
)
async def test_no_sandbox_writes_the_program_of_another_server(
    house: SandboxedHome, tmp_path: Path, command: Any
) -> None:
    filled(house.workspace, "tools/server.py", "tools/run", "package/main.py", "notes/a")
    (house.workspace / "tools" / "linked").symlink_to("/bin/true")
    (house.workspace / "outside").symlink_to(tmp_path)
    (tmp_path / "linked.py").symlink_to(house.workspace / "tools" / "server.py")
    argv = tuple(sys.executable if word == "PYTHON" else word for word in command)
    house.servers.append(ServerPlan(segment="other", reach=Spawn(command=argv, cwd=house.workspace)))
    with pytest.raises(SandboxFailed, match=r"sandbox_invalid: what it may write covers .*, a program of other"):
        await house.run(house.plan(write=(house.workspace,)), "true")
    assert await house.python(house.plan(read=(house.workspace,), write=(house.workspace / "notes",)), "tell(1)") == 1
    house.servers[0] = ServerPlan(segment="one", reach=house.servers[0].reach)  # its own it may
    assert await house.python(house.plan(write=(house.workspace,)), "tell(1)") == 1


@pytest.mark.req("AIP-security-1")
async def test_no_sandbox_has_io_uring(house: SandboxedHome) -> None:
    text = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "tell([libc.syscall(each, 0, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() for each in (425, 426, 427)])"
    )
    assert await house.python(house.plan(), text) == [errno.EPERM] * 3


async def test_a_path_that_cannot_be_read_is_a_named_failure(
    house: SandboxedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a link becomes a folder between two looks at it."""

    def swapped(path: object) -> str:
        raise OSError(errno.EINVAL, "Invalid argument", str(path))

    monkeypatch.setattr("interlock.process.sandbox.mounts.os.path.realpath", swapped)
    with pytest.raises(SandboxFailed, match="Invalid argument"):
        await house.run(house.plan(write=(house.workspace,)), "true")
