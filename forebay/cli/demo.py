"""`forebay demo`: the whole way, from photographs to a trained model, told while it happens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from forebay.cli.bench import comparison_caption, comparison_table
from forebay.cli.console import console, error_console, print_json
from forebay.cli.demo_data import DemoFolder, list_photographs, photographs_of_demo, thin_out
from forebay.cli.inspect import human_size
from forebay.cli.shard_images import write_images
from forebay.errors import ConfigError
from forebay.sharding import ImageFolder, printable

if TYPE_CHECKING:
    from torch import Tensor

    from forebay.benchmarks import LoaderComparison
    from forebay.loader import DataLoader
    from forebay.trainers import EpochReport, TrainReport

__all__ = ["demo"]

_EPOCH_IMAGES = 20_000
"""Images that training looks at, about: a minute on two cores."""
_MOST_TRAIN, _MOST_VALIDATION = 6_000, 1_000
"""Photographs that the demo takes of a larger folder."""
_BATCH_SIZE = 32
_CACHE_NBYTES = 4 << 30
_BAR_WIDTH = 30


def demo(
    data: Annotated[
        Path | None, typer.Option(help="Your own photographs: class folders, or train/ and validation/ of them.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for what the demo writes.")] = Path("demo"),
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data; a minute's worth by default.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of photographs, order, augmentation and model.")] = 0,
    compare: Annotated[bool, typer.Option(help="Compare with torch's DataLoader at the end.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end instead of text.")] = False,
) -> None:
    """Draw photographs, shard them, train a small network on them, and see where the time goes.

    Two minutes on two cores, no GPU and no download. With --data, on your own photographs.
    """
    say = error_console if json else console
    started = time.monotonic()
    folder = DemoFolder(out)
    train_images, validation_images = _photographs(folder, data, seed, say)
    shards = _shard(folder, train_images, validation_images, say)
    report, chance, stats = _train(folder, len(train_images.classes["label"]), epochs, seed, say)
    comparison = _compare(folder, seed, say) if compare else None
    seconds = time.monotonic() - started
    if json:
        print_json(
            {
                "shards": shards,
                "chance": chance,
                "training": report.to_dict(),
                "loader": stats,
                "comparison": comparison.to_dict() if comparison is not None else None,
                "seconds": seconds,
            }
        )
    else:
        _say_what_next(folder, data, seconds, say)


def _chapter(say: Console, title: str) -> None:
    say.print()
    say.rule(Text(title, style="bold"), align="left", style="dim")


# -- photographs -----------------------------------------------------------------------------------------------------


def _photographs(folder: DemoFolder, data: Path | None, seed: int, say: Console) -> tuple[ImageFolder, ImageFolder]:
    _chapter(say, "1  Photographs")
    folder.begin_anew()
    if data is None:
        say.print("No camera took these: they are drawn from random numbers, with light, lens, noise and all.")
        say.print("[dim]Give your own with --data FOLDER (of class folders).[/]")
        data, _ = photographs_of_demo(folder, seed=seed, console=say)
    train, validation, held_out = list_photographs(data)
    classes = train.classes["label"]
    shown = ", ".join(map(printable, classes[:10])) + (", …" if len(classes) > 10 else "")
    found = len(train.images) + len(validation.images)
    train, validation = thin_out(train, _MOST_TRAIN), thin_out(validation, _MOST_VALIDATION)
    if found > len(train.images) + len(validation.images):
        say.print(f"Of {found:,} photographs the demo takes some, evenly chosen.")
    say.print(f"{len(train.images):,} to train on, {len(validation.images):,} to validate with ({escape(held_out)})")
    say.print(f"{len(classes)} classes: {escape(shown)}")
    return train, validation


def _shard(folder: DemoFolder, train: ImageFolder, validation: ImageFolder, say: Console) -> dict[str, Any]:
    _chapter(say, "2  Shards")
    reports = {}
    for name, images in (("train", train), ("validation", validation)):
        report = write_images(images, folder.shards / name)
        reports[name] = report
        shards = f"{report['shards']:,} shard{'s' if report['shards'] > 1 else ''}"
        say.print(
            f"{name:<11}[green]{report['rows']:>6,} images[/]{shards:>12}{human_size(report['nbytes']):>12}"
            f"{report['files_per_s']:>9,.0f} files/s{report['megabytes_per_s']:>7,.0f} MB/s"
        )
        for bad in report["bad_images"]:
            say.print(f"  [yellow]left out:[/] {escape(bad['file'])}: {escape(bad['reason'])}", soft_wrap=True)
    stored = "so that a crop finds its part" if reports["train"]["jpeg"]["addressable"] else "as it came"
    say.print(f"[dim]Every image was decoded once, to see that it can be, and is stored {stored}, pixels unchanged.[/]")
    return reports


# -- training --------------------------------------------------------------------------------------------------------


class _DemoProgress:
    """The trainer's own bar, and for each epoch a line with its accuracy drawn against chance."""

    def __init__(self, say: Console, chance: float) -> None:
        from forebay.trainers import ConsoleProgress

        self._say = say
        self._chance = chance
        self._bar = ConsoleProgress(error_console)

    def begin_epoch(self, epoch: int, *, epochs: int, steps: int, done: int) -> None:
        self._bar.begin_epoch(epoch, epochs=epochs, steps=steps, done=done)

    def step(self, loss: Tensor) -> None:
        self._bar.step(loss)

    def end_epoch(self, report: EpochReport) -> None:
        self._bar.close()
        right = report.validation["accuracy"]
        line = Text(f"{report.epoch + 1:>5}   {report.loss:5.2f}   {right:>5.0%}  ")
        line.append_text(_accuracy_bar(right, self._chance))
        line.append(f"  {report.samples_per_s:>7,.0f}   {report.stall_share:>6.1%}")
        self._say.print(line)

    def close(self) -> None:
        self._bar.close()


def _accuracy_bar(right: float, chance: float) -> Text:
    """A bar of `right`, with a mark at `chance`."""
    filled, mark = round(right * _BAR_WIDTH), min(round(chance * _BAR_WIDTH), _BAR_WIDTH - 1)
    bar = Text()
    for place in range(_BAR_WIDTH):
        if place == mark:
            bar.append("┃", style="yellow")
        else:
            bar.append("━" if place < filled else "╌", style="green" if place < filled else "dim")
    return bar


def _train(
    folder: DemoFolder, num_classes: int, epochs: int | None, seed: int, say: Console
) -> tuple[TrainReport, float, dict[str, Any]]:
    from forebay.cli.demo_model import make_trainer
    from forebay.trainers import CheckpointConfig

    _chapter(say, "3  Training")
    chance = 1 / num_classes
    train, validation = _loaders(folder, seed)
    images = len(train.dataset)  # type: ignore[arg-type]
    epochs = epochs or max(2, min(20, _EPOCH_IMAGES // images))
    trainer = make_trainer(
        train,
        validation,
        num_classes=num_classes,
        epochs=epochs,
        seed=seed,
        checkpoint=CheckpointConfig(path=folder.run),
        progress=_DemoProgress(say, chance),
    )
    say.print(
        f"A small residual network, from nothing, {epochs} epochs of {images:,} images, through cache and loader. "
        f"The mark [yellow]┃[/] is chance, {chance:.0%}."
    )
    say.print()
    say.print(f"epoch    loss   validation accuracy {'':{_BAR_WIDTH - 12}}  images/s   waited", style="dim")
    report = trainer.fit()
    stats = train.stats()
    best = report.epochs[-1].validation["accuracy"]
    right = round(best * len(validation.dataset))  # type: ignore[arg-type]
    say.print()
    say.print(
        f"[bold green]{best:.1%}[/] of the {len(validation.dataset):,} validation photographs are told right "  # type: ignore[arg-type]
        f"({right}; by chance {chance:.1%})."
    )
    say.print(
        f"{report.samples_per_s:,.0f} images/s; training waited [bold]{report.stall_share:.1%}[/] of the time for data."
    )
    stages = ", ".join(f"{name} {stage.samples_per_s:,.0f}" for name, stage in stats.stages.items())
    say.print(f"[dim]The loader's stages, each for itself, would give {stages} images/s.[/]")
    return report, chance, stats.to_dict()


def _loaders(folder: DemoFolder, seed: int) -> tuple[DataLoader, DataLoader]:
    """What a user would write."""
    from forebay import CacheConfig, DataLoader, ShardDataset
    from forebay import transforms as T
    from forebay.cli.demo_model import PIXELS

    train = ShardDataset(
        folder.shards / "train",
        cache=CacheConfig(path=folder.cache, budget=_CACHE_NBYTES),
        transforms={"image": [T.RandomResizedCrop(PIXELS, scale=(0.35, 1)), T.RandomHorizontalFlip(), T.Normalize()]},
        columns=["image", "label"],
    )
    validation = ShardDataset(
        folder.shards / "validation",
        transforms={"image": [T.Resize(shorter=PIXELS * 8 // 7), T.CenterCrop(PIXELS), T.Normalize()]},
        columns=["image", "label", "__valid__"],
    )
    if len(train) < _BATCH_SIZE:
        raise ConfigError(f"{len(train)} photographs to train on, fewer than a batch of {_BATCH_SIZE}; give more")
    return (
        DataLoader(train, _BATCH_SIZE, shuffle=True, drop_last=True, seed=seed),
        DataLoader(validation, 4 * _BATCH_SIZE),
    )


# -- comparison ------------------------------------------------------------------------------------------------------


def _compare(folder: DemoFolder, seed: int, say: Console) -> LoaderComparison:
    from forebay.benchmarks import LoaderWork, compare

    _chapter(say, "4  The same work by torch.utils.data.DataLoader")
    with error_console.status("laying out the images as files and as shards") as status:
        comparison = compare(
            folder.shards / "train",
            LoaderWork(seed=seed),
            opencv=False,  # no part of a plain install, and another filter
            addressable=False,  # what the shards hold is measured as it is
            progress=lambda name: status.update(f"measuring: {name}"),
        )
    say.print(comparison_table(comparison))
    say.print(comparison_caption(comparison), style="dim")
    return comparison


def _say_what_next(folder: DemoFolder, data: Path | None, seconds: float, say: Console) -> None:
    _chapter(say, f"Done in {seconds:.0f} s")
    photographs = data if data is not None else folder.photographs / "train"
    places = {
        photographs: "the photographs",
        folder.shards: "Arrow IPC files, which polars reads too",
        folder.cache: "the cache that training read through",
        folder.run: "checkpoints of model, optimizer and loader",
    }
    width = max(len(str(path)) for path in places)
    for path, what in places.items():
        say.print(f"  {escape(f'{path!s:<{width}}')}  [dim]{what}[/]")
    say.print()
    say.print("Try next:")
    for command in (
        f"forebay inspect {folder.shards / 'train'}",
        f"forebay verify {folder.shards / 'train'}",
        f"forebay bench loader {photographs} --normalize",
        "forebay demo --data YOUR/CLASS/FOLDERS",
        "forebay shard YOUR/CLASS/FOLDERS YOUR/SHARDS",
    ):
        say.print(f"  [cyan]{escape(command)}[/]", soft_wrap=True)
