"""What the paper's bounds say: smoothness along a run, and the samplers that it favours."""
