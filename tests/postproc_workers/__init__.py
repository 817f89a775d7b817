"""Tests of the post-processing workers."""
