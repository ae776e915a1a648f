"""What this process has printed so far."""

from __future__ import annotations

import os

from harness.waiting import wait_until


class CapturedOutput:
    """All that this process has written so far to its standard output and standard error.

    It reads pytest's capture files and leaves them as they are. `readouterr` would empty them, and
    lose what another thread writes at that moment.
    """

    def __init__(self) -> None:
        self.out = self.err = ""

    def look(self) -> CapturedOutput:
        self.out, self.err = (os.pread(fd, os.fstat(fd).st_size, 0).decode() for fd in (1, 2))
        return self

    def wait_until(self, text: str) -> None:
        wait_until(
            lambda: f"{text!r} is in the output {self.out + self.err!r}",
            lambda: self.look().shows(text),
        )

    def shows(self, text: str) -> bool:
        return text in self.out or text in self.err
