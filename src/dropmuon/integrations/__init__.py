"""Frameworks that own the training loop; each module needs the framework that it is named after."""
