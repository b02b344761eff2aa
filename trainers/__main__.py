"""`python -m forebay.trainers --config run.toml`, alone or under torchrun: one training run, and its report."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from forebay.trainers.run import train
from forebay.trainers.run_config import read_config

__all__ = ["main"]

_HELP = """\
Train what a TOML file describes: its tables are [data], [model], [optimizer] and [train]. Started again, it goes on
from the newest checkpoint. Ctrl-C finishes the step at hand and saves.
"""
_EPILOG = """\
examples:
  python -m forebay.trainers --config run.toml
  torchrun --nproc-per-node 2 -m forebay.trainers --config run.toml
"""


@record
def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(
        "python -m forebay.trainers",
        description=_HELP,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="a TOML file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report there")
    options = parser.parse_args()
    try:
        report = train(read_config(options.config))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    if os.environ.get("RANK", "0") == "0":
        print(report)  # noqa: T201
        if options.json is not None:
            options.json.write_text(json.dumps(report.to_dict(), indent=2) + "\n")


if __name__ == "__main__":
    main()
