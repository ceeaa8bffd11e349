"""Training of the demo model: fixed-shape streams, the loss, evaluation and the saved checkpoint."""
