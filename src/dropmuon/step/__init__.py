"""How parameters move: which sets are drawn, how far, and the arithmetic."""
