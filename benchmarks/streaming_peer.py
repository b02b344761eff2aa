"""MosaicML Streaming on the same samples over the same link: a script for a Python that has mosaicml-streaming.

It imports nothing of forebay, which need not be installed there, and is started by `remote.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

__all__: list[str] = []


def write(payloads: Path, lengths: Path, out: Path, shard_nbytes: int) -> None:
    """Write MDS shards of samples that lie in one file one after the other.

    Args:
        payloads: all bytes.
        lengths: .npy, int64 (N,), bytes a sample.
        out: folder, made here.
        shard_nbytes: at which a shard is closed.
    """
    from streaming import MDSWriter

    columns = {"payload": "bytes", "label": "int"}
    with open(payloads, "rb") as file, MDSWriter(out=str(out), columns=columns, size_limit=shard_nbytes) as writer:
        for label, nbytes in enumerate(np.load(lengths).tolist()):
            writer.write({"payload": file.read(nbytes), "label": label})


def read(url: str, local: Path, batch_size: int, workers: int) -> dict[str, float]:
    """Begin a cold, shuffled epoch with the empty folder `local`, and stop after the first batch; seconds, samples."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    begin = perf_counter()
    dataset = StreamingDataset(remote=url, local=str(local), shuffle=True, batch_size=batch_size)
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=workers, collate_fn=list)
    batch = next(iter(loader))
    return {"first_batch_s": perf_counter() - begin, "samples": len(batch)}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    writing = commands.add_parser("write")
    writing.set_defaults(command=write)
    for name in ("payloads", "lengths", "out"):
        writing.add_argument(name, type=Path)
    writing.add_argument("shard_nbytes", type=int)
    reading = commands.add_parser("read")
    reading.set_defaults(command=read)
    reading.add_argument("url")
    reading.add_argument("local", type=Path)
    reading.add_argument("batch_size", type=int)
    reading.add_argument("workers", type=int)
    given = vars(parser.parse_args())
    sys.stdout.write(json.dumps(given.pop("command")(**given)) + "\n")


if __name__ == "__main__":
    _main()
