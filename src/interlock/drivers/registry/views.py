"""Views of a driver in plain values: what an operator is shown of it, and what has changed since it was accepted."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.approvals.protocol.digests import DRIVER
from interlock.approvals.protocol.folder_digest import folder_digest
from interlock.core.clock import rfc3339
from interlock.core.operator_errors import Refused
from interlock.drivers.api import Acceptance, Binding, ServedContract
from interlock.drivers.api import Problem as ProblemView
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.model import Binding as DriverBinding
from interlock.drivers.protocol.model import Contract, Driver, Secret
from interlock.drivers.protocol.problems import Problem
from interlock.drivers.workspace.declaration import Declared
from interlock.drivers.workspace.folder import read_folder
from interlock.drivers.workspace.scan import FoundFolder, mark_of
from interlock.drivers.workspace.trust_store import Trusted

JsonObject = dict[str, Any]

DIFFERENCE_LINES_MAX: Final = 2_000


def problem_view(problem: Problem) -> ProblemView:
    return ProblemView(**msgspec.structs.asdict(problem))


def server_kind(driver: Driver) -> str:
    return driver.server.kind


def declared_facts(one: Declared, driver: Driver) -> JsonObject:
    """What a person looks at before trusting it: command, sandbox, egress, secrets, tags (AIP-security-13). With the
    environment as it is written: it decides what a program does, and holds placeholders where it would hold secrets.

    These are fields of `DriverDetail`, and a part of what is stored of a trusted driver."""
    return {
        "description": driver.description,
        "server": msgspec.to_builtins(driver.server),
        "sandbox": _sandbox(one, driver),
        "egress": list(driver.network.egress) if driver.network is not None else [],
        "install": [" ".join((each.method, *_what(each.options))) for each in driver.install],
        "secrets": {
            name: _place(one.secrets[name]) if name in one.secrets else None
            for name in dict.fromkeys((*driver.secret_names, *one.secrets))
        },
        "policy_tags": list(driver.policy_tags),
        "region": list(driver.region),
        "protocol_version": driver.protocol_version or "latest",
        "extension_keys": list(driver.extension_keys),
        "expose": driver.interlock.expose,
        "isolation": driver.interlock.isolation,
        "bindings": [_binding(binding, one.contracts.get(binding.index)) for binding in driver.implements],
    }


def _sandbox(one: Declared, driver: Driver) -> JsonObject | None:
    """The block with the real paths in it, and those that the file opens elsewhere: a login's state, arguments."""
    block: JsonObject = msgspec.to_builtins(driver.sandbox) if driver.sandbox is not None else {}
    fs: dict[str, list[str]] = {}
    for each in kind_of(driver.server).declared_paths(driver, one.folder):
        fs.setdefault(each.use, []).append(str(one.real_paths.get(each.path, each.real)))
    return ({**block, "fs": fs} if fs else block) or None


def _binding(binding: DriverBinding, contract: Contract | None) -> Binding:
    if contract is None:
        return Binding(tool_name=binding.tool_name, contract=binding.tool, version=None, file=None)
    file = contract.places.file
    return Binding(tool_name=binding.tool_name, contract=contract.id, version=contract.version, file=file)


def summary(one: Declared) -> JsonObject:
    """What the digest is made of, and what it means."""
    declared = declared_facts(one, one.driver) if one.driver is not None else {}
    return {DRIVER: one.key, "folder": str(one.folder), **declared, "files": one.covered}


def accepted_view(trusted: Trusted | None) -> Acceptance | None:
    if trusted is None:
        return None
    return Acceptance(digest=trusted.digest, by=trusted.by, at=rfc3339(trusted.at), policy_tags=trusted.tags)


def texts_of(one: Declared) -> dict[str, str]:
    """The short files of a folder, the contracts elsewhere and what its names lead to, as they are now. Raises Refused
    when they are others than those that were declared. Blocking."""
    folder = read_folder(FoundFolder(root=one.root, path=one.folder, mark=mark_of(one.folder)))
    outside = {name: digest for name, digest in one.files.items() if Path(name).is_absolute()}
    if folder_digest({**folder.digests, **outside, **one.resolved}) != one.digest:
        raise Refused("changed", f"the files of {one.segment} are changing", {"driver": one.key})
    texts = {name: data.decode("utf-8", "replace") for name, data in folder.texts.items()} | dict(one.resolved)
    for name in outside:
        try:
            texts[name] = Path(name).read_text("utf-8", "replace")
        except OSError:
            continue
    return texts


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    left = DIFFERENCE_LINES_MAX
    for name in sorted({**before, **now}):
        old, new = before.get(name, ""), now.get(name, "")
        if old == new:
            continue
        for line in difflib.unified_diff(
            old.splitlines(), new.splitlines(), f"{name} (accepted)", f"{name} (now)", lineterm="", n=2
        ):
            if not left:
                yield f"... more than {DIFFERENCE_LINES_MAX} lines"
                return
            left -= 1
            yield line


def _what(options: Mapping[str, Any]) -> Iterator[str]:
    """What is installed by it."""
    return (str(options[key]) for key in ("package", "url", "path", "image") if key in options)


def _place(secret: Secret) -> str:
    """With where it is, which may be a file or a variable that has nothing to do with the driver."""
    return secret.slug if secret.backend is None else f"{secret.slug} from {secret.backend}"


def unserved_contract(contract: Contract, name: str | None) -> ServedContract:
    """The view of a contract that no driver serves now, in the form of a served one (`CompiledContract.explained`)."""
    return ServedContract(
        contract=contract.id,
        version=contract.version,
        name=name or contract.id,
        file=contract.places.file,
        pinned=None,
        decided_by="",
        ranked=(),
        rejected=(),
        error="no_route",
    )
