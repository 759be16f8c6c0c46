"""What all frameworks share: the job, process sets, collectives, objects and gradients. Nothing of a framework.

Everything here is for hvd's own modules; programs use ``hvd`` and ``hvd.torch``.
"""
