"""The parts of bench/tensor_parallel.py."""
