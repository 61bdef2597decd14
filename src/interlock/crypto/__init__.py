"""JOSE, WebAuthn, certificates and signing keys."""
