"""Is ../digits.py for the scripts of this folder, which are run by their path."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("digits", Path(__file__).resolve().parents[1] / "digits.py")
assert _spec and _spec.loader
sys.modules["digits"] = module_from_spec(_spec)  # what `import digits` gives
_spec.loader.exec_module(sys.modules["digits"])
