"""What a front process sets up for its server."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

from gateway.config import ServerOptions
from gateway.front import server_config


async def test_the_front_beats_in_place_whatever_happens_to_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "run" / "front.beat"
    file.parent.mkdir()
    beat = server_config(None, ServerOptions(), file).callback_notify
    assert beat is not None

    await beat()
    (first,) = struct.unpack("<d", file.read_bytes())
    await beat()
    (second,) = struct.unpack("<d", file.read_bytes())
    shutil.rmtree(file.parent)
    await beat()

    assert second > first
