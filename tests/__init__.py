"""Tests. Their workers send small images, for which the shared memory of any container is enough."""

import shutil
from typing import Any

_disk_usage = shutil.disk_usage


def _usage(path: Any) -> Any:
    found = _disk_usage(path)
    return found._replace(free=max(found.free, 1 << 30)) if path == "/dev/shm" else found


shutil.disk_usage = _usage
