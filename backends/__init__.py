"""Backends: everything that can answer a request, behind one small contract (`backends.base`)."""
