"""The parts of the conformance fixture; `everything.py` puts them together."""
