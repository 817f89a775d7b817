"""The steps, in the order that each tells."""
