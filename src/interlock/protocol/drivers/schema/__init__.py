"""JSON Schema as drivers use it: inclusion, overlap, dialects, bounds, validators."""
