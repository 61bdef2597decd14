"""Packages that only some verbs need: asked for by name, before anything is begun."""

from importlib.util import find_spec

from interlock.surface.cli.terminal.errors import Refused


def need_driver_files() -> None:
    """Raises Refused where driver files cannot be read or written."""
    for package in ("jsonschema_rs", "ruamel.yaml"):
        try:
            missing = find_spec(package) is None
        except ModuleNotFoundError:
            missing = True
        if missing:
            raise Refused(
                "extra_missing", f"driver files need the package {package}", hint="install Interlock anew: it brings it"
            )
