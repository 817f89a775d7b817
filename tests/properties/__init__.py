"""Properties that hold for all inputs, by hypothesis."""
