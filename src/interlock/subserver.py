"""The public import path of the subserver library, `interlock.sdk.subserver`."""

from interlock.sdk.subserver import *  # noqa: F403
from interlock.sdk.subserver import __all__  # noqa: F401
