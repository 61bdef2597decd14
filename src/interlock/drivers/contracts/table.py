"""The contract table: every contract that the registry offers, and who serves it."""

from collections.abc import Mapping

import msgspec

from interlock.drivers.interfaces import Provider
from interlock.drivers.protocol.model import Contract


class ContractTable(msgspec.Struct, frozen=True, kw_only=True):
    contracts: Mapping[str, Contract] = {}  # by their id
    providers: Mapping[str, tuple[Provider, ...]] = {}  # by the same id, in the order of the drivers' keys
    drivers: tuple[Provider, ...] = ()  # every trusted one, whatever it serves: unbound tools, prompts, resources
