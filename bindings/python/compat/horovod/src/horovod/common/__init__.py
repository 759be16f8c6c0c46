"""Shared by all frameworks."""
