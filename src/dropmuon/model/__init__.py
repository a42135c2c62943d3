"""What a layer is: a model as ordered layers, and a norm for each parameter."""
