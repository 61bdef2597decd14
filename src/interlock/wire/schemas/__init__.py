"""JSON Schemas compared and applied, for drivers and surface names: inclusion, overlap, dialects, bounds."""
