"""One module per verb of `interlock`, each with its `app`."""
