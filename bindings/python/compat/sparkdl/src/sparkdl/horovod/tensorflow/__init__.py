"""What belongs to TensorFlow; see keras."""
