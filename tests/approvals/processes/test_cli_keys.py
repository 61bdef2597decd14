"""Does a person get a key of their own, kept so that nobody else can use it, and can they take it back?"""

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from tests.cli.program import Inline, Interlock
from tests.operator.fake_node import FakeOperations

from interlock.crypto import signing as sealing
from interlock.crypto.jose import read_key_untrusted, thumbprint
from interlock.crypto.signing import KeyExposed, PassphraseWrong, encrypt_pem, is_sealed, read_signing_key

PASSPHRASE = "correct horse"


@pytest.fixture
def keys(interlock: Interlock) -> Path:
    return interlock.folder / ".config" / "interlock" / "keys"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing takes half a second on purpose."""
    monkeypatch.setattr(sealing, "SCRYPT_N", 2**4)


def private(path: Path, passphrase: str | None = None) -> Any:
    return load_pem_private_key(path.read_bytes(), passphrase.encode() if passphrase else None)


def test_a_sealed_key_opens_with_its_passphrase_alone() -> None:
    key = Ed25519PrivateKey.generate()
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    one, other = encrypt_pem(der, b"horse"), encrypt_pem(der, b"horse")
    assert is_sealed(one) and one != other
    opened = load_pem_private_key(one, b"horse")
    assert isinstance(opened, Ed25519PrivateKey)
    assert opened.private_bytes_raw() == key.private_bytes_raw()
    with pytest.raises(ValueError):
        load_pem_private_key(one, b"house")
    with pytest.raises(TypeError):
        load_pem_private_key(one, None)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 127, 128, 4000])
@pytest.mark.usefixtures("quick")
def test_keys_of_any_length_can_be_encrypted(size: int, tmp_path: Path) -> None:
    path = tmp_path / "sealed.pem"
    path.write_bytes(encrypt_pem(b"x" * size, b"horse"))
    try:
        shown = subprocess.run(["openssl", "asn1parse", "-in", path], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no openssl here")
    assert shown.returncode == 0
    assert all(word in shown.stdout for word in ("PBES2", "aes-256-cbc"))


@pytest.mark.usefixtures("quick")
def test_a_new_key_prints_the_anchor_that_makes_a_node_believe_it(inline: Inline, keys: Path) -> None:
    made = inline("access", "key", "ada", "--approves", "files.*", INTERLOCK_PASSPHRASE=PASSPHRASE)
    assert made.code == 0
    (anchor,) = tomllib.loads(made.out)["anchor"]
    assert (anchor["name"], anchor["approves"]) == ("ada", ["files.*"])
    key = private(keys / "ada.key", PASSPHRASE)
    assert isinstance(key, Ed25519PrivateKey)
    assert read_key_untrusted(anchor["key"])[0] == read_signing_key(keys / "ada.key", PASSPHRASE.encode()).public
    assert str(keys / "ada.key") in made.err
    shown = inline("access", "key", "ada", "--show")
    assert tomllib.loads(shown.out)["anchor"] == [{**anchor, "approves": ["*"]}]


def test_the_file_of_a_key_is_readable_by_its_owner_alone(inline: Inline, keys: Path) -> None:
    assert inline("access", "key", "ada", "--no-passphrase").code == 0
    assert stat.S_IMODE((keys / "ada.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert sorted(path.name for path in keys.iterdir()) == ["ada.key", "ada.pub"]


def test_a_p256_key_can_be_made(inline: Inline, keys: Path) -> None:
    made = inline("access", "key", "bob", "--kind", "es256", "--no-passphrase", "--json").json
    assert isinstance(private(keys / "bob.key"), EllipticCurvePrivateKey)
    assert json.loads(made["anchor"]["key"])["crv"] == "P-256"
    assert read_key_untrusted(made["anchor"]["key"])[0] == read_signing_key(keys / "bob.key").public
    assert (made["made"], made["file"]) == (True, str(keys / "bob.key"))


def test_without_a_passphrase_no_key_is_made_unless_asked_for(inline: Inline, keys: Path) -> None:
    for env in ({}, {"INTERLOCK_PASSPHRASE": ""}):
        done = inline("access", "key", "ada", **env)
        assert (done.code, done.out) == (1, "")
        assert "INTERLOCK_PASSPHRASE" in done.err
    assert not keys.exists()


@pytest.mark.parametrize("passphrase", ["", "x" * 1025])
def test_an_empty_or_endless_passphrase_is_refused(interlock: Interlock, keys: Path, passphrase: str) -> None:
    done = interlock("access", "key", "ada", "--passphrase-fd", "0", stdin=f"{passphrase}\n")
    assert (done.code, done.out) == (1, "")
    assert "passphrase" in done.err
    assert not keys.exists()


def test_a_script_gives_the_passphrase_by_a_descriptor(interlock: Interlock, keys: Path) -> None:
    done = interlock("access", "key", "ada", "--passphrase-fd", "0", stdin="from a pipe\r\nrest")
    assert done.code == 0
    assert private(keys / "ada.key", "from a pipe")
    assert "from a pipe" not in done.out + done.err
    assert interlock("access", "key", "bob", "--passphrase-fd", "77").code == 2


def typed(interlock: Interlock, *arguments: str, words: tuple[str, ...]) -> tuple[int, str]:
    """The program on a terminal of its own, with these words typed at its prompts."""
    import pty

    child, terminal = pty.fork()
    if child == 0:
        os.chdir(interlock.folder)
        os.execve(sys.executable, [sys.executable, "-m", "interlock", *arguments], interlock.env)
    said = b""
    with os.fdopen(terminal, "r+b", buffering=0) as line:
        for word in words:
            while not said.endswith(b": "):
                try:
                    said += line.read(1)
                except OSError:  # the program has ended
                    raise AssertionError(said.decode()) from None
            line.write(word.encode() + b"\n")
            said += b"\n"
        try:
            while more := line.read(4096):
                said += more
        except OSError:
            pass
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.decode()


def test_at_a_terminal_a_new_passphrase_is_typed_twice_and_not_shown(interlock: Interlock, keys: Path) -> None:
    code, said = typed(interlock, "access", "key", "ada", words=("one of them", "the other"))
    assert code == 1
    assert "not the same" in said
    assert not keys.exists()
    code, said = typed(interlock, "access", "key", "ada", words=("s3cret s3cret", "s3cret s3cret"))
    assert code == 0
    assert "s3cret" not in said
    assert private(keys / "ada.key", "s3cret s3cret")


def test_ending_the_input_instead_of_typing_creates_nothing(interlock: Interlock, keys: Path) -> None:
    code, said = typed(interlock, "access", "key", "ada", words=("\x04",))
    assert (code, keys.exists()) == (1, False)
    assert "no passphrase was typed" in said
    assert "--passphrase-fd" in said
    assert "Traceback" not in said


def test_an_anchor_is_called_as_the_parent_calls_us(inline: Inline, interlock: Interlock) -> None:
    parent = '[ax]\nparents = [{url = "wss://up.example/ax", segment = "plant", authority = "dns:plant.example"}]\n'
    (interlock.folder / "interlock.toml").write_text(f'[node]\nname = "ours"\n\n{parent}')
    named = inline("access", "anchor", "--json").json["anchor"]
    assert (named["name"], named["speaks_for"]) == ("plant", ["plant.example"])
    (interlock.folder / "interlock.toml").write_text('[node]\nname = "ours"\n')
    assert inline("access", "anchor", "--speaks-for", "a.example", "--json").json["anchor"]["name"] == "ours"


def test_a_key_is_never_written_over(inline: Inline, keys: Path) -> None:
    first = inline("access", "key", "ada", "--no-passphrase")
    before = (keys / "ada.key").read_bytes()
    again = inline("access", "key", "ada", "--no-passphrase")
    assert (again.code, again.out) == (1, "")
    assert "--show" in again.err
    assert (keys / "ada.key").read_bytes() == before
    (keys / "ada.key").unlink()
    anew = inline("access", "key", "ada", "--no-passphrase")
    assert anew.code == 0 and anew.out != first.out
    assert inline("access", "key", "ada", "--show").out == anew.out


@pytest.mark.parametrize("name", ["", "../ada", "a/b", ".ada", "a b", "ä", "x" * 64])
def test_a_name_that_could_lead_elsewhere_is_refused(inline: Inline, keys: Path, name: str) -> None:
    for flag in ("--no-passphrase", "--show", "--revoke"):
        assert inline("access", "key", flag, "--", name).code == 2
    assert not keys.exists()


def test_a_missing_item_cannot_be_shown(inline: Inline) -> None:
    done = inline("access", "key", "ada", "--show")
    assert done.code == 1
    assert "there is no key ada" in done.err
    assert inline("access", "key", "ada", "--show", "--revoke").code == 2


def test_a_folder_that_cannot_be_written_is_reported(inline: Inline, keys: Path) -> None:
    keys.parent.mkdir(parents=True)
    keys.write_text("a file")
    done = inline("access", "key", "ada", "--no-passphrase")
    assert done.code == 1
    assert "cannot be written" in done.err and "Traceback" not in done.err


def test_a_key_that_others_may_read_or_with_another_passphrase_is_not_used(inline: Inline, keys: Path) -> None:
    inline("access", "key", "ada", "--no-passphrase")
    (keys / "ada.key").chmod(0o640)
    with pytest.raises(KeyExposed, match="chmod 600"):
        read_signing_key(keys / "ada.key")
    (keys / "ada.key").chmod(0o600)
    with pytest.raises(PassphraseWrong, match="has no passphrase"):
        read_signing_key(keys / "ada.key", b"x")


@pytest.mark.parametrize("verb", [("init", "--key", "ada"), ("access", "key", "ada")])
def test_a_new_key_takes_no_passphrase_that_is_soon_guessed(inline: Inline, keys: Path, verb: tuple[str, ...]) -> None:
    done = inline(*verb, INTERLOCK_PASSPHRASE="ä" * 7)
    assert (done.code, done.out) == (1, "")
    assert "at least 8 characters; nothing was made" in done.err
    assert "--no-passphrase" in done.err
    assert not keys.exists() and not Path("interlock.toml").exists()


@pytest.mark.usefixtures("quick")
def test_init_says_when_it_takes_a_key_that_is_there_already(inline: Inline, keys: Path) -> None:
    assert "your key ada approves calls" in inline("init", "--key", "ada", INTERLOCK_PASSPHRASE=PASSPHRASE).out
    Path("interlock.toml").unlink()
    again = inline("init", "--key", "ada", INTERLOCK_PASSPHRASE="another that is not used")
    assert "the key ada, which you had already, approves calls" in again.out


@pytest.mark.usefixtures("quick")
def test_init_makes_the_operators_key_and_a_configuration_that_believes_it(inline: Inline, keys: Path) -> None:
    done = inline("init", "--key", "ada", "--json", INTERLOCK_PASSPHRASE=PASSPHRASE)
    assert done.code == 0
    made = done.json["operator_key"]
    assert (made["name"], made["file"], made["made"]) == ("ada", str(keys / "ada.key"), True)
    assert private(keys / "ada.key", PASSPHRASE)
    effective = inline("check", "--effective", "--json")
    assert effective.code == 0
    text = Path("interlock.toml").read_text()
    assert tomllib.loads(text)["anchor"] == [{"name": "ada", "key": made["key"], "approves": ["*"]}]
    assert "PRIVATE" not in text


def test_init_takes_the_passphrase_from_a_descriptor(interlock: Any, keys: Path, tmp_path: Path) -> None:
    done = interlock("init", "--key", "ann", "--passphrase-fd", "0", stdin="several easy words\n")
    assert done.code == 0, done.err
    assert (keys / "ann.key").exists()


def test_init_where_nobody_can_type_makes_no_key_and_says_how(inline: Inline, keys: Path) -> None:
    done = inline("init")
    assert done.code == 0
    assert "no operator key was made" in done.err
    assert not keys.exists()
    assert "anchor" not in tomllib.loads(Path("interlock.toml").read_text())
    again = inline("init")
    assert (again.code, "adds your key to it" in again.err, "--force" in again.err) == (1, True, False)


def test_init_takes_the_key_that_is_there(inline: Inline) -> None:
    inline("access", "key", "ada", "--no-passphrase")
    done = inline("init", "--key", "ada", "--json").json
    assert done["operator_key"]["made"] is False
    assert inline("init", "--key", "ada", "--force", "--no-key", "--json").json["operator_key"] is None


def test_init_adds_a_key_to_a_file_that_has_nobody_who_approves(inline: Inline, tmp_path: Path) -> None:
    path = tmp_path / "interlock.toml"
    path.write_text("# mine\n[servers.time]\npypi = 'mcp-server-time'")
    done = inline("init", "--key", "ada", "--no-passphrase")
    assert done.code == 0
    assert "added your key ada to interlock.toml" in done.out
    text = path.read_text()
    assert text.startswith("# mine\n[servers.time]\n")
    assert [anchor["name"] for anchor in tomllib.loads(text)["anchor"]] == ["ada"]
    again = inline("init", "--key", "bob", "--no-passphrase")
    assert again.code == 1 and "already there" in again.err
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["lissten = 1\n", "anchor = []\n"])
def test_init_leaves_a_file_that_it_cannot_add_to(inline: Inline, tmp_path: Path, text: str) -> None:
    path = tmp_path / "interlock.toml"
    path.write_text(text)
    assert inline("init", "--key", "ada", "--no-passphrase").code == 1
    assert path.read_text() == text


def test_the_node_learns_of_a_revoked_key_before_it_is_removed_here(
    inline: Inline, node: FakeOperations, keys: Path
) -> None:
    public = inline("access", "key", "ada", "--no-passphrase", "--json").json["anchor"]["key"]
    done = inline("access", "key", "ada", "--revoke", "--json").json
    expected = thumbprint(read_key_untrusted(public)[0])
    assert node.revoked_keys == [(expected, "local")]
    assert done == {"revoked": [expected], "voided": [], "removed": str(keys / "ada.key")}
    assert list(keys.iterdir()) == []


def test_a_key_of_another_machine_is_revoked_by_its_anchors_name(inline: Inline, node: FakeOperations) -> None:
    assert inline("access", "key", "ada", "--revoke").code == 0
    assert node.revoked_keys == [("ada", "local")]
    unknown = inline("access", "key", "nobody", "--revoke")
    assert unknown.code == 1
    assert "nobody" in unknown.err


def test_while_no_node_runs_a_key_is_revoked_in_its_store(inline: Inline, interlock: Interlock, keys: Path) -> None:
    import asyncio

    from interlock.approvals.trust.approval_proofs import REVOKED
    from interlock.core.store_backends import build_store

    inline("init", "--key", "ada", "--no-passphrase")
    public = inline("access", "key", "ada", "--show", "--json").json["anchor"]["key"]
    assert inline("access", "key", "ada", "--revoke").code == 0
    assert not (keys / "ada.key").exists()

    async def revoked() -> list[str]:
        store = build_store("sqlite", interlock.data)
        await store.open()
        try:
            return [entry.key for entry in await store.kv.entries(REVOKED, 0.0)]
        finally:
            await store.close()

    assert asyncio.run(revoked()) == [thumbprint(read_key_untrusted(public)[0])]
    enrolled, record = inline("audit", "export").lines
    assert json.loads(enrolled)["method"] == "approvers/enrol"
    assert (json.loads(record)["method"], json.loads(record)["keys"]) == ("keys/revoke", asyncio.run(revoked()))
    assert inline("access", "key", "ada", "--revoke").code == 0  # by the name of the anchor, once more
    assert inline("access", "key", "nobody", "--revoke").code == 1
