"""Keys that sign: made once, readable by their owner alone, and verified here by somebody else's library."""

import base64
import json
import stat
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa, x448
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from interlock.ax.protocol.registration.authority import PROOF_S_MAX
from interlock.crypto.jose import format_key
from interlock.crypto.signing import (
    FileDamaged,
    FileUnusable,
    KeyExposed,
    PassphraseWrong,
    jwk_of,
    make_signing_key,
    read_signing_key,
)

CLAIMS = {"sub": "dns:edge01.example.com", "n": 1}


def kept(path: Path, key: Any, mode: int = 0o600) -> Path:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(mode)
    return path


def verified(token: str, public: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What another library makes of the token, with the key as it is published."""
    members = {"kty": public.kty, "crv": public.crv, "x": public.x, "y": public.y, "n": public.n, "e": public.e}
    key = jwt.PyJWK(
        {name: value for name, value in members.items() if value}, algorithm=jwt.get_unverified_header(token)["alg"]
    )
    said = jwt.decode(token, key, algorithms=["EdDSA", "ES256", "RS256"], options={"verify_aud": False})
    return jwt.get_unverified_header(token), said


def test_a_key_is_made_once_for_its_owner_alone_and_signs(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "node.key"
    made = make_signing_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == ["node.key"]
    again = make_signing_key(path)
    assert again.public == made.public
    header, said = verified(again.sign("JWT", CLAIMS), made.public)
    assert (header, said) == ({"alg": "EdDSA", "kid": made.public.kid, "typ": "JWT"}, CLAIMS)
    assert format_key(made.public).startswith("ed25519:")
    assert len(base64.b64decode(format_key(made.public).removeprefix("ed25519:"))) == 32


@pytest.mark.parametrize(
    ("private", "alg"),
    [(ec.generate_private_key(ec.SECP256R1()), "ES256"), (rsa.generate_private_key(65537, 2048), "RS256")],
    ids=["P-256", "RSA"],
)
def test_keys_made_elsewhere_sign_too(tmp_path: Path, private: Any, alg: str) -> None:
    key = read_signing_key(kept(tmp_path / "k", private))
    header, said = verified(key.sign("JWT", CLAIMS), key.public)
    assert (header["alg"], said) == (alg, CLAIMS)
    assert json.loads(format_key(key.public))["kid"] == key.public.kid
    assert '"d"' not in format_key(key.public)


def test_a_proof_is_for_one_aggregator_short_and_never_the_same(tmp_path: Path) -> None:
    key = make_signing_key(tmp_path / "k")
    one, two = (key.prove("edge01.example.com", "wss://hub.example.com:7411/ax", 1_800_000_000.9) for _ in range(2))
    said = [jwt.decode(proof.token, options={"verify_signature": False}) for proof in (one, two)]
    assert said[0]["sub"] == "dns:edge01.example.com" and said[0]["aud"] == "https://hub.example.com:7411/ax"
    assert said[0]["iat"] == 1_800_000_000 and 0 < said[0]["exp"] - said[0]["iat"] <= PROOF_S_MAX
    assert said[0]["jti"] != said[1]["jti"] and len(said[0]["jti"]) >= 16


def test_a_passphrase_seals_the_file(tmp_path: Path) -> None:
    path = tmp_path / "k"
    private = ec.generate_private_key(ec.SECP256R1())
    sealed = BestAvailableEncryption(b"correct horse")
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed))
    path.chmod(0o600)
    assert b"ENCRYPTED" in path.read_bytes()
    assert read_signing_key(path, b"correct horse").public == jwk_of(private.public_key())
    for wrong in (None, b"", b"wrong"):
        with pytest.raises(PassphraseWrong, match="passphrase"):
            read_signing_key(path, wrong)
    with pytest.raises(PassphraseWrong, match="no passphrase"):
        read_signing_key(kept(tmp_path / "open", ec.generate_private_key(ec.SECP256R1())), b"any")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(KeyExposed, match="chmod 600"):
        read_signing_key(kept(tmp_path / "k", ec.generate_private_key(ec.SECP256R1()), mode))


def test_an_invalid_key_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(FileUnusable, match="No such file"):
        read_signing_key(tmp_path / "none")
    with pytest.raises(FileUnusable, match="cannot be read: Is a directory"):
        read_signing_key(tmp_path)
    with pytest.raises(FileDamaged, match="another kind"):
        read_signing_key(kept(tmp_path / "x448", x448.X448PrivateKey.generate()))
    with pytest.raises(FileDamaged, match="another kind"):
        read_signing_key(kept(tmp_path / "p384", ec.generate_private_key(ec.SECP384R1())))
    for number, text in enumerate(
        (b"", b"s3cret", b"-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----\n")
    ):
        path = tmp_path / str(number)
        path.write_bytes(text)
        path.chmod(0o600)
        with pytest.raises(FileDamaged) as refused:
            read_signing_key(path)
        assert "s3cret" not in str(refused.value)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileUnusable, match="file"):
        make_signing_key(tmp_path / "file" / "k")
