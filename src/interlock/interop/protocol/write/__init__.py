"""Text for other programs: an entry for a client's file, a driver for other hosts and registries.

Nothing written here holds the value of a secret: there is none to write (AIP-export-2).
"""
