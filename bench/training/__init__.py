"""What bench/torch_step.py is made of."""
