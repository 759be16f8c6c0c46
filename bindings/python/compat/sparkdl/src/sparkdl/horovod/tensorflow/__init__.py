"""The part for TensorFlow; see keras."""
