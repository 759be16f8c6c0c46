"""What bench/torch_step.py and bench/tensorflow_step.py are made of."""
