"""Whole training programs to copy from: `image_classification` (data-parallel) and `text_transformer` (pipelined)."""

from __future__ import annotations

__all__: list[str] = []
