"""What bench/tensor_parallel.py is made of."""
