"""Views of domain objects: what is copied, what is converted, and what is refused."""

from enum import Enum

import msgspec
import pytest

from interlock.core.views import view_of


class Colour(Enum):
    RED = "red"


class Lamp(msgspec.Struct, kw_only=True):
    name: str = "lamp"
    colour: Colour = Colour.RED
    lit_at: float | None = 0.0
    watts: float = 4.5
    hidden: int = 1


class LampView(msgspec.Struct, kw_only=True):
    name: str
    colour: str | None
    lit_at: str | None
    watts: float
    room: str = "hall"


def test_members_of_one_name_are_copied_and_converted() -> None:
    view = view_of(LampView, Lamp())
    assert view == LampView(name="lamp", colour="red", lit_at="1970-01-01T00:00:00Z", watts=4.5)


def test_given_members_go_first_and_then_the_first_source() -> None:
    view = view_of(LampView, Lamp(name="first"), Lamp(name="second", lit_at=None), lit_at=None, colour=Colour.RED)
    assert (view.name, view.lit_at, view.colour) == ("first", None, "red")


def test_a_missing_or_unknown_member_is_an_error() -> None:
    with pytest.raises(TypeError):
        view_of(LampView, name="lamp")
    with pytest.raises(TypeError):
        view_of(LampView, Lamp(), colours="red")
