"""OpenAI's wire format: Structs, bounds and translation; no I/O, no Litestar."""
