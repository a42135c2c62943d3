"""Training of several methods side by side, one seed after the other."""
