"""Secrets of drivers: backends, access before the fetch, logins, and what is missing."""
