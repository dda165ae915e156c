"""Which files were sent to the disk."""

import os

import pytest


def synced_files(patch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Number and size of each file at the moment it is synchronised, from now on."""
    seen: list[tuple[int, int]] = []
    plain = os.fsync

    def fsync(descriptor: int) -> None:
        plain(descriptor)
        status = os.fstat(descriptor)
        seen.append((status.st_ino, status.st_size))

    patch.setattr(os, "fsync", fsync)
    return seen
