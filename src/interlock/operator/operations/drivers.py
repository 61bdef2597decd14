"""The drivers of a node for an operator; the modules behind them are imported when the first is asked for."""

from typing import TYPE_CHECKING

from interlock.drivers.registry.service import Drivers

if TYPE_CHECKING:
    from interlock.drivers.registry.operations import DriverService


class DriverOperations:
    def __init__(self, drivers: Drivers) -> None:
        self._drivers = drivers

    async def open(self) -> "DriverService":
        """Where drivers are looked at and decided on. Raises StoreError."""
        return await self._drivers.service()
