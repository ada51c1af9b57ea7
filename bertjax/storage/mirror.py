"""Uploading files that grow, such as logs, to object storage, which cannot append."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from bertjax.storage.remote import RemotePath
from bertjax.storage.remote_run import Claim, LostClaim

UPLOAD_SECONDS = 60.0  # between two uploads in the background; each sends whole objects


class Mirror:
    """Uploads the files of a directory under the same names whenever they have changed."""

    def __init__(self, folder: Path, place: RemotePath, claim: Claim, seconds: float = UPLOAD_SECONDS) -> None:
        self._folder, self._place, self._claim, self._seconds = folder, place, claim, seconds
        self._sent: dict[Path, tuple[int, int]] = {}
        self._alone = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last = time.monotonic()

    def publish(self) -> None:
        """Upload what has changed, and wait for it. Raises LostClaim if another job owns the run."""
        with self._alone:
            self._last = time.monotonic()
            found = {path: _state(path) for path in sorted(self._folder.rglob("*")) if path.is_file()}
            changed = [path for path, state in found.items() if self._sent.get(path) != state]
            if changed:
                self._claim.require()
                names = [path.relative_to(self._folder).as_posix() for path in changed]
                self._place.upload_all(self._folder, names)
                # A file that was written during the upload has another state, and is uploaded next time.
                self._sent |= {path: found[path] for path in changed}

    @property
    def is_due(self) -> bool:
        """Whether the last upload is long enough ago and none is running."""
        return not self._alone.locked() and time.monotonic() - self._last >= self._seconds

    def publish_beside(self) -> None:
        """Upload what has changed in the background."""
        self._thread = threading.Thread(target=self._try, name="upload of logs", daemon=True)
        self._thread.start()

    def _try(self) -> None:
        # The next `publish` uploads what failed here, and raises if it fails again.
        with contextlib.suppress(OSError, LostClaim):
            self.publish()


def _state(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns
