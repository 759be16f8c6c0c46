"""hvd.remote: calls a function on ranks: the data sent to them, the worker that calls it, and the results.

It starts no process. hvd.launcher does, passes `program` to workers and reads `results`. The launcher always needs
`errors` and `files`, so these import no third-party package.
"""
