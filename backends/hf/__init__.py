"""The built-in engine: continuous batching over unmodified transformers models."""
