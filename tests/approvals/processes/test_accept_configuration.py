"""Does `interlock serve --accept-configuration` let a person with an enrolled key, and no one else, accept an edit?"""

import json
from typing import Any

import pytest
from tests.cli.program import Interlock

PASSPHRASE = {"INTERLOCK_PASSPHRASE": "correct horse battery"}
NODE = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'


class Workplace:
    """A data folder whose approver `ada` may approve only what is in `approves`, after its first start."""

    def __init__(self, interlock: Interlock, approves: str) -> None:
        self.interlock = interlock
        self.interlock("init", "--key", "ada", "--json", **PASSPHRASE)
        key = interlock("access", "key", "ada", "--show", "--json").json["anchor"]["key"]
        self.anchor = f'[[anchor]]\nname = "ada"\nkey = "{key}"\napproves = ["{approves}"]\n'
        self.write("gated")
        assert not self.status()["loosened"]
        self.write("open")

    def write(self, mode: str, more: str = "") -> None:
        text = f'{NODE}{self.anchor}{more}[gate]\nmode = "{mode}"\n'
        (self.interlock.folder / "interlock.toml").write_text(text)

    def status(self, *flags: str, **env: str) -> dict[str, Any]:
        """Start the node and return the status that it prints."""
        with self.interlock.start("serve", "--json", *flags, **env) as running:
            shown: dict[str, Any] = json.loads(running.next_line())
            running.interrupt()
        return shown


@pytest.mark.req("AX-11.N-8")
@pytest.mark.parametrize("approves", ["*", "office.*"])
def test_an_enrolled_key_accepts_the_written_configuration_and_is_on_record(
    interlock: Interlock, approves: str
) -> None:
    place = Workplace(interlock, approves)
    assert any("gate.mode" in line for line in place.status()["loosened"])
    assert not place.status("--accept-configuration", **PASSPHRASE)["loosened"]
    assert not place.status()["loosened"]
    records = [json.loads(line) for line in interlock("audit", "export").lines]
    (accepted,) = [each for each in records if each.get("method") == "config/accept"]
    assert (accepted["verdict"], accepted["outcome"]) == ("signed", "in effect")
    assert accepted["who"] == "ada"
    assert any("gate.mode" in line for line in accepted["lines"])


@pytest.mark.req("AX-11.N-8")
def test_the_difference_is_shown_and_nothing_is_accepted_without_the_passphrase_of_an_enrolled_key(
    interlock: Interlock,
) -> None:
    place = Workplace(interlock, "*")
    accept = ("serve", "--accept-configuration")
    unasked = interlock(*accept)
    assert (unasked.code, "gate.mode" in unasked.err, "INTERLOCK_PASSPHRASE" in unasked.err) == (1, True, True)
    assert interlock(*accept, INTERLOCK_PASSPHRASE="wrong horse battery").code == 1
    keys = interlock.folder / ".config" / "interlock" / "keys"
    (keys / "ada.key").rename(keys / "ada.old")
    refused = interlock(*accept, **PASSPHRASE)
    assert (refused.code, "is enrolled as an approver" in refused.err) == (1, True)
    eve = interlock("access", "key", "eve", **PASSPHRASE).out
    (keys / "eve.key").rename(keys / "ada.key")  # beside the public half of ada
    place.write("open", eve)
    assert "the key ada is not enrolled" in interlock(*accept, **PASSPHRASE).err
    interlock("access", "key", "open", "--no-passphrase")
    (keys / "open.key").rename(keys / "ada.key")
    assert "has no passphrase" in interlock(*accept, **PASSPHRASE).err
    assert place.status()["loosened"]


@pytest.mark.req("AX-11.N-8")
def test_a_revoked_approver_accepts_nothing(interlock: Interlock) -> None:
    Workplace(interlock, "*")
    kept = (interlock.folder / ".config" / "interlock" / "keys" / "ada.key").read_bytes()
    public = (interlock.folder / ".config" / "interlock" / "keys" / "ada.pub").read_bytes()
    assert interlock("access", "key", "ada", "--revoke").code == 0
    for name, text in (("ada.key", kept), ("ada.pub", public)):
        path = interlock.folder / ".config" / "interlock" / "keys" / name
        path.write_bytes(text)
        path.chmod(0o600)
    refused = interlock("serve", "--accept-configuration", **PASSPHRASE)
    assert (refused.code, "is enrolled as an approver" in refused.err) == (1, True)
