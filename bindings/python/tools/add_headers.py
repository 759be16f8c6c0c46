"""Copies hvd's headers and license into a source distribution, which has to be built without the checkout around it."""

import os
import shutil
import sys
from pathlib import Path

headers = Path(sys.argv[1]).resolve()
root = Path(os.environ["MESON_DIST_ROOT"])
shutil.copytree(headers / "hvd", root / "include" / "hvd", dirs_exist_ok=True)
license_file = headers.parent / "LICENSE"
if license_file.exists():
    shutil.copy(license_file, root / "LICENSE")
