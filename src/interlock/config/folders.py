"""Folders for a user's configuration and data on this system. Only the environment passed as `env` is read."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_APPLICATION_SUPPORT: Final = "Library/Application Support"


def home_folder(env: Mapping[str, str]) -> Path:
    """Return the user's home folder."""
    home = env.get("HOME", "")
    return Path(home) if Path(home).is_absolute() else Path.home()


def config_folder(env: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return the folder `interlock` in the user's configuration folder."""
    return _folder(env, platform, "XDG_CONFIG_HOME", ".config")


def data_folder(env: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return the folder `interlock` in the user's data folder."""
    return _folder(env, platform, "XDG_DATA_HOME", ".local/share")


def package_folder(env: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return the folder of the packages that all data folders of the user share."""
    # Beside the usual data folder: it outlives a data folder that is deleted to start over.
    return data_folder(env, platform).with_name("interlock-packages")


def guarded_folder(env: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return the folder that records which configuration files belong to a node that has approvers."""
    return data_folder(env, platform).with_name("interlock-guarded")


def _folder(env: Mapping[str, str], platform: str, variable: str, usual: str) -> Path:
    if platform == "darwin":
        return home_folder(env) / _APPLICATION_SUPPORT / "interlock"
    chosen = Path(env.get(variable, ""))
    # A relative path there is to be ignored (XDG Base Directory Specification).
    return (chosen if chosen.is_absolute() else home_folder(env) / usual) / "interlock"
