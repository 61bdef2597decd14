from typing import Any

class PackageUnavailable(Exception): pass

async def ensure(*a: Any) -> tuple[str, ...]: raise PackageUnavailable("placeholder")
