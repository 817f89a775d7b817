"""Tests of the demo checkpoint."""
