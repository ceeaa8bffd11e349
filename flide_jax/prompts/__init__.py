"""From a request to the tokens a model reads (a plan), and from its logits back to answers."""
