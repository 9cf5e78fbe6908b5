"""What an OpenAI-compatible server must answer, as data: to test this one, and to be pointed at others."""
