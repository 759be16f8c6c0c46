"""What bench/timeline_page.py is made of."""
