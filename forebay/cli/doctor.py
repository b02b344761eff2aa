"""`forebay doctor`: what this installation can do, and what to install so that it can do more.

`examine` looks and judges nothing; `advise` judges what was found and looks at nothing.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
from pathlib import Path
from typing import Annotated, Any

import rich.box
import typer
from PIL import features
from rich.markup import escape
from rich.table import Table

from forebay.cli.console import console, error_console, print_json
from forebay.cli.inspect import human_size
from forebay.sharding import can_transcode

__all__ = ["advise", "doctor", "examine", "found_rows", "tell_decoder"]

_SIMD = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "AVX-512 VNNI", "asimd": "NEON", "sve": "SVE"}
"""Names in /proc/cpuinfo, and what people call them."""
_FORMATS = {"jpg": "JPEG", "zlib": "PNG", "webp": "WebP", "avif": "AVIF", "libtiff": "TIFF"}
"""Names in `PIL.features`, and what they read. GIF, BMP and PPM need no library."""
_SHM = "/dev/shm"  # noqa: S108 - its size is told, nothing is written there
_MODES = {
    "region": "decodes windows on the GPU",
    "whole": "decodes whole images on the GPU",
    "cpu_decode": "decodes on the CPU and resizes on the GPU",
}
"""What DALI does in each of its modes."""
_LEAST_SHM = 1 << 30
_LEAST_FILES = 1024


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show what this installation can do, and what to install so that it can do more.

    Versions, processor, memory, decoders, GPUs; a sentence for each thing that is worth doing; and at the end the
    decoder that a JPEG will take. Paste it, or its --json, into a report of a problem.
    """
    with error_console.status("looking around"):  # importing torch takes a second or two
        facts = examine()
    advice = advise(facts)
    if json:
        print_json({**facts, "advice": advice, "jpegs": tell_decoder(facts)})
        return
    table = Table(box=rich.box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for there, name, found in found_rows(facts):
        table.add_row("[green]✓[/]" if there else "[yellow]–[/]", name, escape(found))
    console.print(table)
    for sentence in advice:
        console.print(f"[yellow]to do[/]  {escape(sentence)}", soft_wrap=True)
    console.print(f"[bold]{escape(tell_decoder(facts))}[/]", soft_wrap=True)


# -- looking ---------------------------------------------------------------------------------------------------------


def examine() -> dict[str, Any]:
    """What is here, as `forebay doctor --json` has it. Imports torch."""
    import torch

    from forebay.cli.gpu_facts import cuda_facts, dali_facts
    from forebay.loader import native_version, why_not

    cuda = cuda_facts()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return {
        "forebay": _version("forebay"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpu": _processor(),
        "memory_nbytes": _memory_nbytes(),
        "native": {"version": native_version(), "why_not": why_not(), "transcode": can_transcode()},
        "simplejpeg": _version("simplejpeg"),
        "pillow": {
            "version": _version("pillow"),
            "formats": {name: bool(features.check(feature)) for feature, name in _FORMATS.items()},
        },
        "pyarrow": _version("pyarrow"),
        "shm_nbytes": shutil.disk_usage(_SHM).total if os.path.isdir(_SHM) else 0,
        "open_files": {"soft": soft, "hard": hard},
        "cuda": cuda,
        "dali": dali_facts(torch.device("cuda", 0) if cuda["gpus"] else None),
        "opencv": {"version": _version("opencv-python-headless", "opencv-python"), "install": _install_line("bench")},
    }


def _version(*packages: str) -> str | None:
    """The version of the first of these packages that is installed."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _install_line(extra: str) -> str:
    """How to install what an extra of forebay needs."""
    needed = [line.split(";") for line in importlib.metadata.requires("forebay") or ()]
    wanted = [
        line[0].strip() for line in needed if len(line) > 1 and f"extra == {extra}" in re.sub("[\"']", "", line[1])
    ]
    return f"pip install {' '.join(map(repr, wanted))}" if wanted else f"pip install 'forebay[{extra}]'"


def _processor() -> dict[str, Any]:
    told = _read("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", told, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", told, re.MULTILINE)
    has = set(flags[1].split()) if flags else set()
    quota = re.match(r"(\d+) (\d+)", _read("/sys/fs/cgroup/cpu.max"))
    return {
        "model": model[1].strip() if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "quota": round(int(quota[1]) / int(quota[2]), 2) if quota else None,
        "simd": [name for flag, name in _SIMD.items() if flag in has],
    }


def _memory_nbytes() -> int:
    """What this process may use: the machine's memory, or less by the limit of its container."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    limit = re.match(r"\d+", _read("/sys/fs/cgroup/memory.max"))
    amounts = [1024 * int(found[1])] if found else []
    return min([*amounts, int(limit[0])] if limit else amounts, default=0)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:  # not there on this kernel, or in this container
        return ""


# -- judging ---------------------------------------------------------------------------------------------------------


def advise(facts: dict[str, Any]) -> list[str]:
    """What is worth doing, a sentence each; the most worth first."""
    advice: list[str] = []
    native, cuda, dali = facts["native"], facts["cuda"], facts["dali"]
    if native["why_not"]:
        advice.append(
            "JPEGs are decoded at about half the speed, 1.9 to 2.3 times slower by `forebay bench decode`: "
            f"{native['why_not']}"
        )
    if not native["transcode"]:
        also = "the same installation brings it" if native["why_not"] else "install forebay again where a compiler is"
        advice.append(f"`forebay shard` cannot make JPEGs crop-addressable here, and keeps them as they came: {also}")
    if cuda["driver"] and not cuda["gpus"]:
        reason = cuda["complaint"] or f"torch {facts['torch']} was built without CUDA, or sees no device"
        advice.append(
            f"there is an NVIDIA driver, and torch uses no GPU ({reason}): see https://pytorch.org/get-started"
        )
    if cuda["gpus"] and not dali["version"]:
        advice.append(f"to decode on the GPU, install DALI: {dali['install']}")
    elif cuda["gpus"] and dali["why_not"]:
        advice.append(f"nothing is decoded on the GPU: {dali['why_not']}")
    elif dali["mode"] not in (None, "region"):
        advice.append(
            f"DALI {dali['version']} with nvImageCodec {dali['nvimagecodec']} errs on windows on this GPU, and "
            f"{_MODES[dali['mode']]}, which is slower: another version may do better: {dali['install']}"
        )
    if missing := [name for name, there in facts["pillow"]["formats"].items() if not there]:
        advice.append(f"this Pillow reads no {', '.join(missing)}: pip install --upgrade --force-reinstall pillow")
    if facts["shm_nbytes"] < _LEAST_SHM:
        advice.append(
            f"{_SHM} has {human_size(facts['shm_nbytes'])}, little for the worker processes of torch's DataLoader: "
            "start the container with --shm-size=8g"
        )
    if not _enough(facts["open_files"]):
        files = facts["open_files"]
        advice.append(
            f"this process may open {files['soft']:,} files at once, and a shuffle keeps the shards of its window "
            f"open: `ulimit -n {files['hard'] or 65536}` raises that"
        )
    quota, cores = facts["cpu"]["quota"], facts["cpu"]["cores"]
    if quota is not None and quota < cores:
        advice.append(
            f"the container's quota allows {quota:g} of the {cores} cores seen here: give as many threads and workers"
        )
    return advice


def tell_decoder(facts: dict[str, Any]) -> str:
    """Which decoder a JPEG takes, and what that means."""
    native, dali = facts["native"], facts["dali"]
    if native["version"]:
        on_cpu = (
            f"by the native kernel ({native['version']}): of each only the part that its crop needs, a batch at a "
            "time, without the GIL"
        )
    else:
        on_cpu = (
            f"by simplejpeg {facts['simplejpeg']} and resized by torch: the same pixels to a grey level, at about half "
            "the speed of the native kernel"
        )
    if dali["auto"] != "dali":
        return f"JPEGs are decoded {on_cpu}"
    return (
        f"JPEGs are decoded by DALI {dali['version']}, which {_MODES[dali['mode']]}, where batches go to the GPU "
        f'(device="cuda"); elsewhere {on_cpu}'
    )


def found_rows(facts: dict[str, Any]) -> list[tuple[bool, str, str]]:
    """Lines of the table: whether it is all there, a name, and what was found."""
    cpu, native, pillow, cuda = facts["cpu"], facts["native"], facts["pillow"], facts["cuda"]
    dali, opencv, files = facts["dali"], facts["opencv"], facts["open_files"]
    quota = f", {cpu['quota']:g} by the container's quota" if cpu["quota"] is not None else ""
    simd = ", ".join(cpu["simd"]) or "no SIMD that is known here"
    lacks = [name for name, there in pillow["formats"].items() if not there]
    reads = ", ".join(name for name in pillow["formats"] if name not in lacks)
    gpus = "; ".join(f"{gpu['name']}, {human_size(gpu['memory_nbytes'])}" for gpu in cuda["gpus"])
    built = f"torch is built for CUDA {cuda['version']}" if cuda["version"] else "torch is built without CUDA"
    return [
        (True, "forebay", f"{facts['forebay']}, Python {facts['python']}, torch {facts['torch']}"),
        (True, "processor", f"{cpu['model']}; {cpu['cores']} cores{quota}; {simd}"),
        (True, "memory", human_size(facts["memory_nbytes"])),
        (bool(native["version"]), "native kernel", native["version"] or "missing"),
        (native["transcode"], "transcoding", "makes JPEGs crop-addressable" if native["transcode"] else "missing"),
        (True, "simplejpeg", str(facts["simplejpeg"])),
        (not lacks, "Pillow", f"{pillow['version']}: {reads}" + (f"; not {', '.join(lacks)}" if lacks else "")),
        (True, "pyarrow", str(facts["pyarrow"])),
        (facts["shm_nbytes"] >= _LEAST_SHM, _SHM, human_size(facts["shm_nbytes"])),
        (_enough(files), "open files", "unlimited" if files["soft"] is None else f"{files['soft']:,}"),
        (bool(cuda["driver"]), "NVIDIA driver", cuda["driver"] or "none"),
        (bool(gpus), "GPU", gpus or f"none ({built})"),
        *((gpu["jpeg_engines"] != 0, "JPEG engines", _engines(gpu)) for gpu in cuda["gpus"]),
        (bool(dali["version"]), "DALI", _dali(dali)),
        (bool(dali["nvimagecodec"]), "nvImageCodec", dali["nvimagecodec"] or "missing; comes with DALI"),
        (True, 'decode="auto"', f"{dali['auto']}: {dali['auto_reason']}"),
        (
            bool(opencv["version"]),
            "OpenCV",
            opencv["version"] or f"missing; only `forebay bench` takes it: {opencv['install']}",
        ),
    ]


def _dali(dali: dict[str, Any]) -> str:
    if not dali["version"]:
        return f"missing; decodes on the GPU: {dali['install']}"
    return f"{dali['version']}; {dali['why_not'] or _MODES.get(dali['mode'], 'without a GPU, only its CPU mode')}"


def _engines(gpu: dict[str, Any]) -> str:
    """How many engines one GPU has for JPEGs, and who says so."""
    count = "unknown" if gpu["jpeg_engines"] is None else str(gpu["jpeg_engines"])
    return f"{count} in {gpu['name']} ({gpu['jpeg_engines_told_by']})"


def _enough(files: dict[str, int | None]) -> bool:
    return files["soft"] is None or files["soft"] >= _LEAST_FILES
