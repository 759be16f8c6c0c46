"""`python -m horovod.runner.launch`, which is hvdrun."""

import sys

from hvd.launcher.main import main as run_commandline

__all__ = ["run_commandline"]

if __name__ == "__main__":
    sys.exit(run_commandline())
