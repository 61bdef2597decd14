"""Is a downloaded program or installer exactly the one the driver's author named, and nothing else ever kept?"""

import hashlib
import io
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from tests.drivers.installs import Files, Place, declared, output, program, serving
from tests.process.sandboxed_program import SandboxedHome
from tests.servers.caging import needs_sandbox

from interlock.config.plan import DriversPlan, SandboxPlan
from interlock.core.clock import Clock
from interlock.drivers.install.installation import CommandRunner, Locked, request_digest, sandboxed_runner
from interlock.net import download as downloads
from interlock.net.download import DownloadFailed, check_address, download, take_program

PROGRAM = b'#!/bin/sh\necho downloaded "$@"\n'
UNVERIFIED = DriversPlan(allow_unverified_install=True)


@pytest.fixture
def files() -> Iterator[Files]:
    with serving() as here:
        yield here


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fetching(method: str, url: str, **more: Any) -> Any:
    fields = {"extract_bin": "my-server"} if method == "download" else {}
    entry = {"method": method, "url": url, **fields, **more}
    return declared(server={"kind": "binary", "path": "my-server"}, install=[entry])


def tar(members: dict[str, bytes], **links: str) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return raw.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return raw.getvalue()


def left(place: Place) -> list[str]:
    return sorted(path.name for path in place.packages.rglob("*") if path.is_file())


@pytest.mark.req("AIP-30.install-2")
@pytest.mark.parametrize("form", ["plain", "tar", "zip"])
async def test_a_download_with_the_right_hash_runs_and_is_not_fetched_again(
    files: Files, tmp_path: Path, form: str
) -> None:
    packed = {"dist/README": b"x", "dist/bin/my-server": PROGRAM, "dist/lib/else": b"y"}
    data = {"plain": PROGRAM, "tar": tar(packed), "zip": zipped(packed)}[form]
    files.at["/file"] = data
    files.moved["/start"] = f"{files.url}/file"
    place = Place(tmp_path)
    wanted = fetching("download", f"{files.url}/start", verify_sha256=sha256(data))
    done = await place.done(wanted)
    assert output(done.command, "it") == "downloaded it"
    assert done.lock.integrity == f"sha256:{sha256(data)}"
    assert left(place) == ["my-server"]
    files.at.clear()
    assert (await place.done(wanted, done.lock)).command == done.command
    assert files.asked == ["/start", "/file"]


@pytest.mark.req("AIP-30.install-2")
@pytest.mark.parametrize("method", ["download", "curl"])
async def test_a_wrong_hash_leaves_nothing(files: Files, tmp_path: Path, method: str) -> None:
    proof = tmp_path / "it-ran"
    files.at["/file"] = f"#!/bin/sh\ntouch '{proof}'\n".encode()
    place = Place(tmp_path)
    failed = await place.failed(fetching(method, f"{files.url}/file", verify_sha256="0" * 64))
    assert failed.code == "install_failed"
    assert "not the one in verify_sha256" in failed.reason
    assert left(place) == []
    assert not proof.exists()


@pytest.mark.req("AIP-30.install-2")
@pytest.mark.parametrize("method", ["download", "curl"])
async def test_without_a_hash_nothing_is_fetched_unless_the_operator_allows_it(
    files: Files, tmp_path: Path, method: str
) -> None:
    script = b'mkdir -p "$HOME/bin"\nprintf \'#!/bin/sh\\necho downloaded\\n\' > "$HOME/bin/my-server"\n'
    script += b'chmod +x "$HOME/bin/my-server"\n'
    files.at["/file"] = PROGRAM if method == "download" else script
    place = Place(tmp_path)
    wanted = fetching(method, f"{files.url}/file")
    declined = await place.failed(wanted)
    assert "drivers.allow_unverified_install" in declined.reason
    assert files.asked == []
    done = await place.done(wanted, settings=UNVERIFIED)
    assert output(done.command) == "downloaded"
    assert done.lock.integrity == f"sha256:{sha256(files.at['/file'])}"
    # What was accepted once unseen is held to from then on, also when it has to be fetched again.
    files.at["/file"] += b"\n# changed"
    assert output((await place.done(wanted, done.lock)).command) == "downloaded"
    for path in place.packages.rglob("my-server"):
        path.unlink()
    for path in place.packages.rglob("interlock-complete"):
        path.unlink()
    assert "not the one in verify_sha256" in (await place.failed(wanted, done.lock, UNVERIFIED)).reason


async def test_a_shell_installer_sees_nothing_of_the_node(files: Files, tmp_path: Path) -> None:
    files.at["/file"] = b'mkdir "$HOME/bin"; env > "$HOME/bin/my-server"; chmod +x "$HOME/bin/my-server"'
    place = Place(tmp_path)
    place.env |= {"INTERLOCK_TOKEN": "x", "AWS_SECRET": "y"}
    done = await place.done(fetching("curl", f"{files.url}/file", verify_sha256=sha256(files.at["/file"])))
    seen = dict(line.split("=", 1) for line in Path(done.command[0]).read_text().splitlines())
    assert not {"INTERLOCK_TOKEN", "AWS_SECRET"} & set(seen)
    assert Path(seen["HOME"]).is_relative_to(place.packages)


@needs_sandbox
@pytest.mark.req("AIP-security-1")
async def test_a_shell_installer_in_a_sandbox_writes_its_home_and_reads_nothing_of_the_node(
    files: Files, tmp_path: Path
) -> None:
    place, house = Place(tmp_path), SandboxedHome(tmp_path)
    kept = place.packages.parent / "identity.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("the node's own")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    attempts = f'cat "{kept}" > "$HOME/stolen"; touch "{elsewhere}/written"'
    files.at["/file"] = f'mkdir "$HOME/bin"; echo "#!/bin/sh" > "$HOME/bin/my-server"; {attempts}; :'.encode()
    files.at["/file"] += b'\nchmod +x "$HOME/bin/my-server"\n'
    wanted = fetching("curl", f"{files.url}/file", verify_sha256=sha256(files.at["/file"]))

    def caged(plan: SandboxPlan) -> CommandRunner:
        node = SimpleNamespace(sandboxes=house.sandboxes, clock=Clock(), reaper=None)
        return sandboxed_runner(node, "one", plan)

    place.caged = caged
    done = await place.done(wanted)
    home = Path(done.command[0]).parents[1]
    assert ((home / "stolen").read_text(), list(elsewhere.iterdir())) == ("", [])
    place.caged = None  # where the operator lets it out, the same installer reads and writes
    shutil.rmtree(home)
    await place.done(wanted)
    assert ((home / "stolen").read_text(), (elsewhere / "written").exists()) == ("the node's own", True)


async def test_a_failing_shell_installer_is_reported_and_run_again_next_time(files: Files, tmp_path: Path) -> None:
    files.at["/file"] = b"echo error: no compiler >&2\nexit 3\n"
    place = Place(tmp_path)
    wanted = fetching("curl", f"{files.url}/file", verify_sha256=sha256(files.at["/file"]))
    for _ in range(2):
        assert "exited with code 3; error: no compiler" in (await place.failed(wanted)).reason
    assert files.asked == ["/file", "/file"]


@pytest.mark.parametrize(
    ("data", "wanted", "words"),
    [
        (tar({"else": b"x"}), "my-server", "holds no my-server"),
        (tar({"a/my-server": b"x", "b/my-server": b"y"}), "my-server", "holds more than one my-server"),
        (tar({}, **{"my-server": "/etc/passwd"}), "my-server", "holds no my-server"),
        (zipped({"else": b"x"}), "my-server", "holds no my-server"),
        (zipped({"my-server": PROGRAM})[:-30], "my-server", None),
        (tar({"my-server": PROGRAM * 1000})[:-30], "my-server", "cannot be unpacked"),
    ],
    ids=["none", "two", "a link", "none in a zip", "a broken zip", "a broken tar"],
)
def test_an_archive_without_one_clear_program_is_refused(
    tmp_path: Path, data: bytes, wanted: str, words: str | None
) -> None:
    archive, into = tmp_path / "archive", tmp_path / "out"
    archive.write_bytes(data)
    if words is None:  # too broken to be an archive: it is taken for the program itself, and its hash was checked
        take_program(archive, wanted, into)
        assert into.read_bytes() == data
        return
    with pytest.raises(DownloadFailed, match=words):
        take_program(archive, wanted, into)
    assert not into.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"archive"}


def test_of_two_programs_the_one_at_the_path_is_taken_and_nothing_is_written_elsewhere(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(tar({"a/my-server": b"a", "b/my-server": b"b", "../escape": b"x", "/abs": b"y"}))
    take_program(archive, "./b/my-server", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"b"
    take_program(archive, "../escape", tmp_path / "out2")
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "out", "out2"}
    assert not (tmp_path.parent / "escape").exists()


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "FILE_BYTES_MAX", 1000)
    archive = tmp_path / "archive"
    archive.write_bytes(zipped({"my-server": b"0" * 100_000}))
    with pytest.raises(DownloadFailed, match="larger than 1000"):
        take_program(archive, "my-server", tmp_path / "out")
    assert not (tmp_path / "out").exists()


async def test_a_file_that_is_too_large_is_not_kept(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "FILE_BYTES_MAX", 1000)
    files.at["/file"] = b"0" * 1001
    with pytest.raises(DownloadFailed, match="larger than 1000"):
        await download(f"{files.url}/file", None, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_ends_early_is_not_kept(files: Files, tmp_path: Path) -> None:
    files.at["/file"] = PROGRAM
    files.cut.add("/file")
    with pytest.raises(DownloadFailed, match="try again"):
        await download(f"{files.url}/file", None, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


async def test_an_answer_that_is_no_file_is_reported(files: Files, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="answered 404"):
        await download(f"{files.url}/absent", None, tmp_path / "out")


@pytest.mark.parametrize("target", ["http://example.com/x", "file:///etc/passwd", "ftp://127.0.0.1/x"])
async def test_a_redirect_to_an_open_way_is_refused(files: Files, tmp_path: Path, target: str) -> None:
    files.moved["/file"] = target
    with pytest.raises(DownloadFailed):
        await download(f"{files.url}/file", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "url", ["http://example.com/x", "file:///etc/passwd", "ftp://x/y", "", "x", "https://", "http://[::1", "data:,x"]
)
def test_only_encrypted_addresses_are_asked(url: str) -> None:
    with pytest.raises(DownloadFailed, match="https"):
        check_address(url)


@pytest.mark.req("AIP-30.install-2")
async def test_an_unknown_experimental_method_is_skipped_with_a_warning(tmp_path: Path) -> None:
    place = Place(tmp_path)
    program(tmp_path / "bin" / "my-server", "#!/bin/sh\n")
    place.env["PATH"] = str(tmp_path / "bin")
    install = [{"method": "teleport", "experimental": True}]
    done = await place.done(declared(server={"kind": "binary", "path": "my-server"}, install=install))
    assert [attempt.method for attempt in done.attempts] == ["teleport", "present"]
    assert "skipped" in (done.attempts[0].reason or "")


async def test_a_repeated_download_without_a_usable_folder_fails_with_what_to_do(files: Files, tmp_path: Path) -> None:
    files.at["/my-server"] = PROGRAM
    place = Place(tmp_path)
    wanted = fetching("download", f"{files.url}/my-server", verify_sha256=sha256(PROGRAM))
    first = await place.done(wanted)
    shutil.rmtree(place.packages)
    place.packages.write_text("a file, where the folder of packages was")
    failed = await place.failed(wanted, first.lock)
    assert "what was recorded cannot be run" in failed.reason
    assert "cannot be used: Not a directory; correct its rights" in failed.reason


@pytest.mark.parametrize("method", ["download", "curl"])
async def test_a_record_of_a_method_that_the_driver_does_not_have_fails_with_what_is_missing(
    tmp_path: Path, method: Literal["download", "curl"]
) -> None:
    wanted = declared(server={"kind": "binary", "path": "my-server"})
    lock = Locked(asked=request_digest(wanted), method=method, integrity=f"sha256:{sha256(PROGRAM)}")
    failed = await Place(tmp_path).failed(wanted, lock)
    assert "is missing in its entry of install" in failed.reason
    assert failed.code == "install_failed"
