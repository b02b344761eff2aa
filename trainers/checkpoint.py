"""Saving and loading the state of a run with `torch.distributed.checkpoint`, beside training.

What is saved is a dict of tensors and values; every rank writes its own part. Like all of torch's checkpoints they hold
pickled values: load none from a stranger.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from forebay.errors import ConfigError, SourceError
from forebay.trainers.checkpoint_folder import CheckpointConfig, CheckpointFolder, checksums
from forebay.trainers.ranks import gather, rank

__all__ = ["Checkpoints"]


class Checkpoints:
    """The checkpoints of one run, saved by all its ranks together, in a process group. Made and used by all alike.

    `save` returns when the state has been copied; a thread of its own and torch's write the files meanwhile. Close it
    to wait for them: nothing is left behind then.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self.every_steps = config.every_steps
        self._folder = CheckpointFolder(config.path, keep=config.keep)
        # A group of its own: its thread talks to the other ranks' while training does.
        self._group: dist.ProcessGroup | None = dist.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forebay-checkpoint")
        self._saving: Future[Path] | None = None

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Begin to write `state` as the checkpoint after `step` steps, once the one before is finished. A collective.

        Raises:
            SourceError: the one before could not be written; the former ones are still there.
        """
        self.finish()
        aside = self._folder.aside(step)
        try:
            self._folder.path.mkdir(parents=True, exist_ok=True)
            # Running means differ from rank to rank between steps, and rank 0's are those that count.
            planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
            written = async_save(dict(state), checkpoint_id=aside, planner=planner, process_group=self._group)
        except (OSError, CheckpointException) as error:
            raise self._cannot_write(step, error) from error
        assert isinstance(written, Future)
        self._saving = self._thread.submit(self._publish, step, written)

    def _publish(self, step: int, written: Future[Any]) -> Path:
        """In the thread: wait for the files, then make them the newest checkpoint."""
        aside, files = self._folder.aside(step), dict[str, list[int | str]]()
        error: Exception | None = None
        try:
            written.result()
            files = checksums(aside, f"__{rank()}_") | (checksums(aside, ".metadata") if rank() == 0 else {})
        except (OSError, RuntimeError, CheckpointException) as caught:
            error = caught if isinstance(caught, Exception) else RuntimeError(str(caught))
        told = gather((files, error is not None), self._group)
        if rank() == 0 and not any(failed for _, failed in told):
            try:
                self._folder.publish(step, {name: file for each, _ in told for name, file in each.items()})
            except OSError as caught:
                error = caught
        if any(gather(error is not None, self._group)):
            raise self._cannot_write(step, error) from error
        return self._folder.whole(step)

    def _cannot_write(self, step: int, error: BaseException | None) -> SourceError:
        first = next(iter(str(error).splitlines()), "") if error is not None else "another rank could not"
        reason = str(error).splitlines()[-1] if isinstance(error, CheckpointException) else first
        return SourceError(
            f"the checkpoint of step {step} cannot be written to {self._folder.path}: {reason[:300]}; make room "
            "there or choose another folder, then start again: the run goes on from the checkpoint before",
            path=str(self._folder.path),
        )

    def finish(self) -> None:
        """Wait until what was saved is on the disk.

        Raises:
            SourceError: it could not be written.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def begin(self) -> int | None:
        """Find the newest checkpoint that is whole, and clear away what is not. A collective.

        Returns:
            Its step, the same on every rank; None when there is none.
        """
        error: SourceError | None = None
        step: int | None = None
        if rank() == 0:
            try:
                step = self._folder.newest()
                self._folder.go_on_from(step)
            except SourceError as caught:
                error = caught
        told: tuple[int | None, SourceError | None] = gather((step, error))[0]
        step, failed = told
        if failed is not None:
            raise failed
        if step is not None and not self._folder.whole(step).is_dir():
            raise ConfigError(
                f"rank {rank()} does not see the checkpoint of step {step} that rank 0 goes on from; put checkpoints "
                "on a file system that all ranks share"
            )
        return step

    def keys(self, step: int) -> set[str]:
        """The names of what the checkpoint of `step` holds."""
        return set(FileSystemReader(self._folder.whole(step)).read_metadata().state_dict_metadata)

    def load(self, step: int, state: dict[str, Any]) -> None:
        """Replace the values of `state` by those of the checkpoint of `step`; tensors in place, parts as they are laid.

        Raises:
            ConfigError: it lacks one, or has it in another shape.
        """
        try:
            load(state, checkpoint_id=self._folder.whole(step), process_group=self._group)
        except CheckpointException as error:
            reasons = "; ".join(str(reason[0]).splitlines()[0] for reason in error.failures.values())
            raise ConfigError(
                f"the checkpoint of step {step} does not fit: {reasons}; it is of another model, optimizer or "
                "scheduler. Give back what it was taken with, or another checkpoint folder to begin anew"
            ) from error

    def close(self) -> None:
        """Wait for the thread, whatever came of it, and leave the group. Calling it again does nothing."""
        self._thread.shutdown()
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None
