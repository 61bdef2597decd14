"""Configuration: the plan in effect."""

from typing import Any

EffectiveConfiguration = dict[str, Any]  # the tables of interlock.toml, every key with its value, no secret among them
