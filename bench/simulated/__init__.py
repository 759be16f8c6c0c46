"""The parts of bench/scaling. Standard library only, except for plots."""
