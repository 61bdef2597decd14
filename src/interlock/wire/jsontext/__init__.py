"""JSON as text: canonical form, unambiguous decoding, display to a person."""
