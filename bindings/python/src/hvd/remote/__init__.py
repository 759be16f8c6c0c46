"""hvd.remote: calling a function on ranks: what travels to them, the worker that calls it, and what comes back.

It starts no process: that is hvd.launcher's, which hands `program` to workers and reads `results`. What the launcher
needs always, `errors` and `files`, imports no third-party package.
"""
