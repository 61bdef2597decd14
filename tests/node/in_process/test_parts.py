"""The parts of a node: opened in their order, closed in the reverse order, whatever fails?"""

import os
from pathlib import Path

import pytest

from interlock.config.load import load
from interlock.core.part import Part, PartStack
from interlock.node.node import Node


class Broken(Exception):
    pass


class Noted:
    """A part that writes down its life; one that `breaks` does not open."""

    def __init__(self, name: str, life: list[str], part: Part | None = None, *, breaks: str = "") -> None:
        self._name, self._life, self._part, self._breaks = name, life, part, breaks

    async def open(self) -> None:
        if self._breaks == "open":
            raise Broken(self._name)
        if self._part is not None:
            await self._part.open()
        self._life.append(f"open {self._name}")

    async def close(self) -> None:
        self._life.append(f"close {self._name}")
        if self._part is not None:
            await self._part.close()
        if self._breaks == "close":
            raise Broken(self._name)


async def test_parts_are_opened_in_order_and_closed_in_reverse_once() -> None:
    life: list[str] = []
    stack = PartStack([Noted(name, life) for name in "abc"])
    await stack.open()
    await stack.close()
    await stack.close()
    assert life == ["open a", "open b", "open c", "close c", "close b", "close a"]


@pytest.mark.parametrize("position", range(3))
async def test_a_part_that_fails_to_close_keeps_no_other_open(position: int) -> None:
    life: list[str] = []
    stack = PartStack([Noted(name, life, breaks="close" if at == position else "") for at, name in enumerate("abc")])
    await stack.open()
    with pytest.raises(Broken):
        await stack.close()
    assert life[3:] == ["close c", "close b", "close a"]


def node_at(folder: Path, number: int) -> Node:
    config = folder / "interlock.toml"
    config.write_text('[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n')
    loaded = load(config, os.environ, {"data": str(folder / f"data{number}")})
    return Node(
        loaded.plan, lambda operations, authenticate, own: None, files=loaded.paths, read=lambda: loaded, listen=True
    )


async def test_whichever_part_of_a_node_fails_those_before_it_are_closed_once(tmp_path: Path) -> None:
    count = len(node_at(tmp_path, 0)._stack.parts)
    assert count > 20
    for position in range(count):
        node, life = node_at(tmp_path, position), list[str]()
        node._stack = PartStack(
            [
                Noted(str(at), life, part, breaks="open" if at == position else "")
                for at, part in enumerate(node._stack.parts)
            ]
        )
        with pytest.raises(Broken, match=f"^{position}$"):
            await node.open()
        await node.close()
        await node.close()
        before = range(position)
        assert life == [*(f"open {at}" for at in before), *(f"close {at}" for at in reversed(before))]


async def test_a_closed_node_opens_again_over_the_same_data(tmp_path: Path) -> None:
    for _ in range(2):
        node = node_at(tmp_path, 0)
        await node.open()
        await node.close()
