"""HTTP: routes, request models, streaming, command line and supervision."""
