"""Trust in signatures and certificates: anchors, authority proofs, approval proofs, client certificates, passkeys."""
