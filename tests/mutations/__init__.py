"""Planted faults: each must be caught by a named property, or the proof proves nothing."""
