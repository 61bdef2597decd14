"""Field selection (C.fields-*): reduces the data of an answer by a preset or by dotted paths.

Paths are compared with the snake_case form of the keys. Selected members keep their original keys, nesting and order.
In a collection, the fields of every item are selected; paging data beside the items is kept.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from interlock.aql.protocol.errors import AqlFailure, invalid_value
from interlock.aql.protocol.model import snake

PRESETS: Final = ("minimal", "standard", "full")
PATH: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*|_computed\.[a-z][a-z0-9_]*")
PATHS_MAX: Final = 200
PATH_CHARS_MAX: Final = 200
FIELDS_SHOWN_MAX: Final = 30
OBJECTS_READ_MAX: Final = 1000  # that are searched before a path is reported as unmatched
_ITEMS: Final = frozenset({"items", "edges", "results"})
_PAGING: Final = frozenset({"page_info", "pagination", "next_cursor", "total_count"})
_ID_ENDS: Final = ("_id", "_key", "_name", "_path", "_number", "_slug", "_url", "_uri")
_IDS: Final = frozenset(["id", "name", "title", "path", "uri", "url", "key", "slug", "number", "_etag"])
_ALWAYS: Final = frozenset(["_etag", "_version"])  # of a versioned resource; a client needs them for its next update

Selection = str | tuple[tuple[str, ...], ...]


def read_selection(value: Any) -> Selection | AqlFailure:
    """Read the parameter `fields`. Return the selection, or a failure if it is invalid."""
    if isinstance(value, str) and value in PRESETS:
        return value
    if not isinstance(value, list) or len(value) > PATHS_MAX:
        return invalid_value("fields", "it must be minimal, standard, full or an array of paths")
    for path in value:
        if not isinstance(path, str) or PATH.fullmatch(path) is None:
            # Suggest the path in snake_case, as paths are written here: userName becomes user_name.
            text = path[:PATH_CHARS_MAX] if isinstance(path, str) else ""
            meant = ".".join(snake(part) for part in text.split("."))
            is_path = PATH.fullmatch(meant) is not None
            hint = f"; did you mean '{meant}'?" if is_path else ""
            details = {"did_you_mean": {path: meant}} if is_path else None
            return invalid_value("fields", f"'{str(path)[:60]}' is no path such as id or owner.login{hint}", details)
    return tuple(tuple(path.split(".")) for path in value)


def unmatched(data: Any, selection: Selection) -> list[str]:
    """Return the paths that match nothing in the data. The result is empty if the data contains no objects."""
    if isinstance(selection, str):
        return []
    objects = _objects(data)
    return [".".join(path) for path in selection if objects and not any(_has(item, path) for item in objects)]


def known_fields(data: Any) -> list[str]:
    """Return the names of the top-level members of the objects in the data, written as paths."""
    return sorted({snake(key) for item in _objects(data) for key in item})[:FIELDS_SHOWN_MAX]


def _objects(data: Any) -> list[dict[str, Any]]:
    if isinstance(data, dict):
        items = [value for key, value in data.items() if key in _ITEMS and isinstance(value, list)]
        return [item for several in items for item in _objects(several)] if items else [data]
    return [item for item in data if isinstance(item, dict)][:OBJECTS_READ_MAX] if isinstance(data, list) else []


def _has(value: Any, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    if isinstance(value, list):
        return any(_has(item, path) for item in value[:OBJECTS_READ_MAX])
    if not isinstance(value, dict):
        return False
    return any(snake(key) == path[0] and _has(inner, path[1:]) for key, inner in value.items())


def select(data: Any, selection: Selection) -> Any:
    """Return the selected members of decoded data. Data that is not an object or an array of objects is returned
    unchanged.
    """
    if selection == "full":
        return data
    if isinstance(data, list):
        return [select(item, selection) for item in data]
    if not isinstance(data, dict):
        return data
    items = [key for key, value in data.items() if key in _ITEMS and isinstance(value, list)]
    if items:
        return {
            key: select(value, selection) if key in items else value
            for key, value in data.items()
            if key in items or snake(key) in _PAGING
        }
    if isinstance(selection, str):
        plain = {key: value for key, value in data.items() if not isinstance(value, dict | list)}
        names = {key: snake(key) for key in plain} if selection == "minimal" else {}
        dropped = {key for key, name in names.items() if name not in _IDS and not name.endswith(_ID_ENDS)}
        return {key: value for key, value in plain.items() if key not in dropped}
    return _paths(data, selection)


def _paths(data: dict[str, Any], paths: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Return the members that the paths select, with their original keys and nesting."""
    selected: dict[str, Any] = {}
    for key, value in data.items():
        name = snake(key)
        under = [path[1:] for path in paths if path[0] in (key, name)]
        if key in _ALWAYS or () in under:
            selected[key] = value
        elif under:
            inner = _inside(value, under)
            if inner is not None:
                selected[key] = inner
    return selected


def _inside(value: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    if isinstance(value, list):
        return [inner for item in value if (inner := _inside(item, paths)) is not None]
    return _paths(value, paths) if isinstance(value, dict) else None
