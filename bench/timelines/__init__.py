"""The parts of bench/timeline_page.py."""
