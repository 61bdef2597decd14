"""Whom the node believes: anchors, authority proofs, approval proofs, client certificates, passkeys."""
