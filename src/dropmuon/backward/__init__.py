"""What backward skips: flags of parameters, and the replay of a frozen prefix."""
