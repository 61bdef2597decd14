"""Everything that touches `cryptography`: signing keys, encrypted key files, certificates, verification."""
