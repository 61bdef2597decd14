"""WebAuthn: what a passkey signed, parsed and checked."""
