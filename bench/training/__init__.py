"""The parts of bench/torch_step.py, bench/tensorflow_step.py and bench/spark_start.py."""
