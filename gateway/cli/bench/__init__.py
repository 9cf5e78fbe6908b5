"""`laneway bench`: measures any OpenAI-compatible server from a client's side."""
