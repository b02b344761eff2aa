"""Where this process stands on a torch `DeviceMesh`: which ranks read the same samples, and which read others.

It reads names, sizes and coordinates; no message is sent, and what the ranks have in common is compared in `ranks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh

from forebay.errors import ConfigError

__all__ = ["MeshPlace", "find_place"]


@dataclass(frozen=True, slots=True, eq=False)
class MeshPlace:
    """This process among the readers of a mesh. All processes with the same coordinates in the data dims are one."""

    reader: int
    """From 0, along the data dims in the mesh's order."""
    processes: npt.NDArray[np.int64]
    """int64 (readers, n): global ranks of the processes that are each reader."""


def find_place(mesh: Any, data_dims: Sequence[str]) -> MeshPlace:
    """Find this process on `mesh`.

    Args:
        mesh: a `DeviceMesh` with names of its dims, or a part of one.
        data_dims: names of those along which ranks read different samples; none: all ranks read the same.

    Raises:
        ConfigError: it is none, has no names, has other dims, or this process is not on it; names its dims.
    """
    if not isinstance(mesh, DeviceMesh):
        raise ConfigError(
            f"mesh={mesh!r:.100}; give a torch DeviceMesh, as torch.distributed.init_device_mesh makes one"
        )
    names = mesh.mesh_dim_names
    if names is None:
        raise ConfigError(
            f"the mesh of shape {tuple(mesh.mesh.shape)} has no names of its dims, and data_dims={tuple(data_dims)!r} "
            "needs them; give init_device_mesh(..., mesh_dim_names=(...))"
        )
    if isinstance(data_dims, str):
        raise ConfigError(f"data_dims={data_dims!r} is one name; give a tuple: data_dims=({data_dims!r},)")
    said = ", ".join(f"{name} ({size})" for name, size in zip(names, mesh.mesh.shape, strict=True))
    unknown = [name for name in data_dims if name not in names]
    if unknown or len(set(data_dims)) < len(data_dims):
        wrong = f"it has no {unknown[0]!r}" if unknown else "one is named twice"
        raise ConfigError(
            f"data_dims={tuple(data_dims)!r}: the mesh has the dims {said}, and {wrong}; name each dim along which "
            "ranks read different samples, or give () where all ranks read the same"
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ConfigError(
            f"rank {torch.distributed.get_rank()} is not on the mesh of {said}; make the loader on the mesh's ranks "
            "alone, or a mesh of all ranks"
        )
    data = [k for k, name in enumerate(names) if name in data_dims]
    others = [k for k in range(len(names)) if k not in data]
    sizes = [mesh.mesh.shape[k] for k in data]
    reader = 0
    for k, size in zip(data, sizes, strict=True):
        reader = reader * size + coordinate[k]
    processes = mesh.mesh.cpu().numpy().astype(np.int64).transpose(*data, *others)
    return MeshPlace(reader, processes.reshape(int(np.prod(sizes, dtype=np.int64)), -1))
