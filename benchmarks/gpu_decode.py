"""`python -m forebay.benchmarks.gpu_decode`: `forebay bench gpu`, for where scripts are not on the PATH.

It takes the same arguments, and becomes that command; it measures nothing itself.
"""

from __future__ import annotations

import os
import sys

__all__: list[str] = []

_COMMAND = "import sys; sys.argv[0] = 'forebay'; from forebay.cli import main; main()"

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-c", _COMMAND, "bench", "gpu", *sys.argv[1:]])  # noqa: S606
