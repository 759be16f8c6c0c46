"""What bench/scaling is made of. Standard library only, but for plots."""
