"""A changed configuration of which one part cannot be taken up: what becomes of the others, and of that part?"""

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest
from tests.ax.levels import until

from interlock.config.keys import AT_ONCE
from interlock.config.load import Loaded, load
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.part import CannotStart
from interlock.node.node import Node
from interlock.node.reload import Reload, ReloadSteps

ANCHOR = '[[anchor]]\nname = "ada"\nkey = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="\napproves = ["*"]\n'
BEFORE = f"{ANCHOR}[gate]\nmode = 'gated'\n"
AFTER = "[gate]\nmode = 'gated'\n[budget]\nmax_calls_per_minute = 5\n[[access]]\nwho = ['*']\nscope = 'read'\n"


def keys_at_once(plan: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """Yield the sections and dotted keys that are declared to change without a restart."""
    for field in msgspec.structs.fields(plan):
        kind, *notes = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
        if AT_ONCE in notes:
            yield prefix + field.name
        elif not prefix and inspect.isclass(kind) and issubclass(kind, msgspec.Struct):
            yield from keys_at_once(kind, f"{field.name}.")


class Parts:
    """What is in effect; `broken` cannot be taken up."""

    def __init__(self, broken: str | None) -> None:
        self.broken = broken
        self.took: list[str] = []

    def take(self, name: str):  # type: ignore[no-untyped-def]
        async def taken(old: Plan, new: Plan) -> None:
            if name == self.broken:
                raise CannotStart(f"{name} cannot be used")
            self.took.append(name)

        return taken


@pytest.mark.parametrize("broken", ["access", "budget", "anchors"])
async def test_a_part_that_cannot_be_taken_up_keeps_no_other_back_and_is_tried_again(
    tmp_path: Path, broken: str
) -> None:
    config = tmp_path / "interlock.toml"

    def read() -> Loaded:
        return load(config, os.environ, {"data": str(tmp_path / "data")})

    config.write_text(BEFORE)
    names = ("access", "anchors", "budget")
    parts = Parts(broken)
    reload = Reload(read, (config,), read().plan, {name: parts.take(name) for name in names}, Clock())
    config.write_text(AFTER)
    with pytest.raises(CannotStart):
        await reload.take_up()
    assert sorted(parts.took) == sorted(set(names) - {broken})

    parts.broken, parts.took = None, []
    await reload.take_up()
    assert parts.took == [broken]
    await reload.take_up()
    assert parts.took == [broken]
    assert reload.plan == read().plan


async def test_a_file_that_is_written_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor that writes in place empties the file first."""
    config = tmp_path / "interlock.toml"
    config.write_text(BEFORE)

    def read() -> Loaded:
        found = load(config, os.environ, {"data": str(tmp_path / "data")})
        if not config.stat().st_size:
            config.write_text(AFTER)
        return found

    monkeypatch.setattr("interlock.node.reload.LOOK_S", 0.01)
    parts = Parts(None)
    takes = {name: parts.take(name) for name in ("access", "anchors", "budget", "gate")}
    reload = Reload(read, (config,), read().plan, takes, Clock())
    config.write_text("")
    await reload.open()
    try:
        await until(lambda: reload.plan.budget.max_calls_per_minute == 5)
    finally:
        await reload.close()
    assert reload.plan == read().plan
    assert parts.took.count("anchors") == 1  # nothing of the empty file was in effect


def test_the_node_has_a_step_for_every_key_that_takes_effect_at_once_and_for_no_other(
    tmp_path: Path,
) -> None:
    node = Node(Plan(workspace=tmp_path, data=tmp_path / "data"), _no_operator_endpoint, listen=False)
    assert ReloadSteps(node.parts).by_key().keys() == set(keys_at_once(Plan))


def _no_operator_endpoint(*_: Any) -> None:
    raise AssertionError("nothing is opened")
