"""The bundled JSON Schemas (2020-12) of driver, contract and inventory files, one module each."""
