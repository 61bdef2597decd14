"""What a driver.py imports: `define_driver`, and what its hooks are given.

    from interlock import define_driver

    def build_arguments(args):
        return {**args.mapped, "limit": min(args.input.get("limit", 10), 50)}

    driver = define_driver(build_arguments=build_arguments)

It needs nothing but Python's own library, for it is imported where there is nothing else: in the process that runs the
hooks of one driver (`worker`).
"""

from interlock.drivers.hooks.define import (
    BuildArgumentsArgs,
    DriverHandle,
    DriverRefused,
    ParseToolResultArgs,
    define_driver,
    defineDriver,
)

__all__ = [
    "BuildArgumentsArgs",
    "DriverHandle",
    "DriverRefused",
    "ParseToolResultArgs",
    "defineDriver",
    "define_driver",
]
