"""Packages that only some configurations need, and what is said where one is not installed."""

from interlock.runtime.base.start_errors import ExtraMissing


def require_cryptography(what: str, extra: str = "keys") -> None:
    """Its name alone is imported here; its library takes 10 MiB and is left for the first signature."""
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError as error:
        raise ExtraMissing(f"{what} needs the package {error.name}: install interlock[{extra}]") from None
