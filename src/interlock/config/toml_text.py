"""How a value is written in TOML, for hints and for the starter file. Pure."""

import json
from typing import Any


def toml_text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON allows DEL, TOML does not
        case list() | tuple():
            return f"[{', '.join(toml_text(each) for each in value)}]"
        case dict():
            pairs = (f"{json.dumps(name)} = {toml_text(each)}" for name, each in value.items())
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
        case _:
            raise TypeError(f"no TOML for {type(value).__name__}")
