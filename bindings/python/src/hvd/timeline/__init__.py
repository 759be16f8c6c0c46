"""hvd/timeline: reads timelines while they grow, tells what they say of a job, and shows them on a page.

Importing this package imports neither the engine nor a framework, and starts nothing.
"""
