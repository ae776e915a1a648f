"""Tickets: short-lived tokens that a gRPC client sends instead of the cluster's token.

docs/protocol.md describes them.
"""

from __future__ import annotations

import hmac
import json
import os
import subprocess
import time
from pathlib import Path

TIMEOUT = 30  # seconds


class Tickets:
    """Makes tickets for the cluster at an address.

    `marline token` returns the id of the cluster and the epoch of its controller, after the
    controller has proved that it knows the token.
    """

    def __init__(self, address: str, token_file: str | Path) -> None:
        self.token = Path(token_file).read_text().strip()
        command = [os.environ["MARLINE_BINARY"], "token", "--json"]
        command += ["--address", address, "--token-file", str(token_file)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        if answer.returncode != 0:
            raise ConnectionError(answer.stderr.strip())
        self.cluster, self.epoch, *_ = json.loads(answer.stdout)["token"].split(".")

    def metadata(self) -> list[tuple[str, str]]:
        words = f"{self.cluster}.{self.epoch}.{int(time.time())}"
        proof = hmac.digest(self.token.encode(), b"marline ticket 1\0" + words.encode(), "sha256").hex()
        return [("authorization", f"Bearer {words}.{proof}")]
