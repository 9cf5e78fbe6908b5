"""What the tests of other projects' clients share.

They run in an environment of their own, which `make test` makes: these clients ask for another OpenAI SDK, and for
plugins of pytest. tests/integration/test_python_clients.py starts the server and says where it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.server import Server, served


@pytest.fixture
def server() -> Server:
    return served()


@pytest.fixture
def is_cancelled(server: Server) -> Iterator[None]:
    """By the end of the test the server has stopped the work on one answer that nobody waits for any more."""
    before = server.count("cancelled")
    yield
    server.wait_for("cancelled", before + 1)
