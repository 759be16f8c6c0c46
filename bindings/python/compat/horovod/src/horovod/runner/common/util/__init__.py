"""Helpers that launchers and scripts share."""
