"""The framework-independent part of hvd: the job, process sets, collectives, objects and gradients.

For hvd's modules only; programs use ``hvd`` and ``hvd.torch``.
"""
