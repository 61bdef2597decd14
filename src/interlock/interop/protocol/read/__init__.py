"""Parsers of other programs' files: client configurations, registry entries, Docker files, bundles."""
