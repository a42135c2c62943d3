"""Train methods side by side on one seed after the other."""
