"""Reading what was written for TensorBoard."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """Of all event files: records are a length (8 bytes), its checksum (4), an event, and its checksum (4)."""
    found = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        data, offset = path.read_bytes(), 0
        while offset < len(data):
            (length,) = struct.unpack_from("<Q", data, offset)
            event = Event.FromString(data[offset + 12 : offset + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            offset += 16 + length
    return found
