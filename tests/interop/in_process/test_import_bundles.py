"""Is a bundle unpacked whole, once, and never outside of its folder?"""

import json
import stat
import zipfile
from pathlib import Path

import pytest

from interlock.interop import source_files
from interlock.interop.source_files import BadBundle, look_into, read_file, unpack

MANIFEST = {
    "manifest_version": "0.3",
    "name": "weather",
    "version": "1.0.0",
    "description": "d",
    "author": {"name": "a"},
    "server": {"type": "binary", "entry_point": "x", "mcp_config": {"command": "${__dirname}/bin/x", "args": []}},
}


def made(path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes], manifest: bool = True) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if manifest:
            archive.writestr("manifest.json", json.dumps(MANIFEST))
        for name, data in entries:
            archive.writestr(name, data)
    return path


def with_mode(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode << 16
    return entry


@pytest.mark.req("AIP-import-12")
def test_a_bundle_is_unpacked_into_a_folder_named_after_its_digest(tmp_path: Path) -> None:
    path = made(tmp_path / "a.mcpb", (with_mode("bin/x", stat.S_IFREG | 0o755), b"#!"), ("lib/y.js", b"1"))
    bundle = look_into(path, tmp_path / "packages")
    assert not (tmp_path / "packages").exists()
    unpack(bundle)
    assert (bundle.target / "bin/x").stat().st_mode & 0o777 == 0o755
    assert (bundle.target / "lib/y.js").stat().st_mode & 0o777 == 0o644
    (bundle.target / "mark").touch()
    unpack(look_into(path, tmp_path / "packages"))
    assert (bundle.target / "mark").exists()
    assert [each.name for each in bundle.target.parent.iterdir()] == [bundle.target.name]


@pytest.mark.req("AIP-import-12")
@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "..\\x", "C:/x", "a/b/../../../x"])
def test_a_name_that_leaves_the_folder_refuses_the_bundle(name: str, tmp_path: Path) -> None:
    path = made(tmp_path / "a.mcpb", (name, b"x"))
    with pytest.raises(BadBundle, match="outside of its folder"):
        look_into(path, tmp_path / "packages")
    source = read_file(path, None, system="linux", packages=tmp_path / "packages")
    assert source.state == "unreadable"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.mcpb"]


def test_links_and_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = made(tmp_path / "l.mcpb", (with_mode("x", stat.S_IFLNK | 0o777), b"/etc/passwd"))
    with pytest.raises(BadBundle, match="link"):
        look_into(link, tmp_path)
    bomb = made(tmp_path / "b.mcpb", ("x", b"\0" * 3_000_000))
    monkeypatch.setattr(source_files, "UNPACKED_BYTES_MAX", 1_000_000)
    with pytest.raises(BadBundle, match="larger than"):
        look_into(bomb, tmp_path)
    monkeypatch.setattr(source_files, "ENTRIES_MAX", 1)
    with pytest.raises(BadBundle, match="more than"):
        look_into(bomb, tmp_path)


def test_a_bundle_that_lies_about_its_size_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "b.mcpb", ("x", b"\0" * 3_000_000))
    raw = path.read_bytes().replace((3_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    path.write_bytes(raw)
    monkeypatch.setattr(source_files, "UNPACKED_BYTES_MAX", 1_000_000)
    bundle = look_into(path, tmp_path / "packages")
    with pytest.raises(BadBundle, match="it cannot be unpacked"):
        unpack(bundle)
    assert list((tmp_path / "packages/bundles").iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\x03\x04" + b"\xff" * 100, b"no zip"])
def test_an_invalid_zip_is_a_bad_bundle(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.dxt"
    path.write_bytes(data)
    with pytest.raises(BadBundle, match="it is not a zip file that can"):
        look_into(path, tmp_path)
    assert read_file(path, None, system="linux", packages=tmp_path).state == "unreadable"
    assert read_file(tmp_path / "none.dxt", None, system="linux", packages=tmp_path).state == "absent"


def test_a_bundle_without_a_manifest_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="manifest"):
        look_into(made(tmp_path / "a.mcpb", ("x", b""), manifest=False), tmp_path)
