"""Anthropic's Messages API: wire Structs and translation, no I/O."""
