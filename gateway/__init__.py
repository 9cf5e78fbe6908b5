"""The front: what a client or an operator touches."""
