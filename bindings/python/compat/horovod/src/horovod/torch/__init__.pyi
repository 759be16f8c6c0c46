# For type checkers; when a program runs, horovod.torch is hvd.torch itself.
from hvd.torch import *  # noqa: F403
