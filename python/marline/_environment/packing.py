"""Packages: folders and modules as zip files, packed in the driver and unpacked by executors.

Equal contents give equal bytes, so that a package travels once and is unpacked once. Links inside a
folder are followed. A link that leads out of the folder is rejected: a package has only files of
its folder.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import io
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from marline._api.errors import InvalidError, RuntimeEnvError, TooLargeError
from marline._environment.environment import Source

# The largest package, in bytes: the limit of a value that travels in messages.
MAX_PACKAGE_BYTES = 64 << 20
# The most files and folders in a package. More are probably a mistake, such as a home directory.
MAX_FILES = 50_000
# How many bytes of a file are packed at a time.
PIECE_BYTES = 1 << 20
# How many of the largest files an error names when a package is too large.
NAMED_FILES = 5

# Files and folders that never travel.
_NEVER = ("__pycache__", ".git")
# The modification time of all files in a package. Constant, so that equal contents give equal
# bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file or folder, and its state when it was found."""

    name: str
    path: str
    is_folder: bool
    runs: bool
    size: int
    changed: int


def entries(source: Source) -> list[Entry]:
    """Returns the files and folders of a source, in the order in which they are packed."""
    found: list[Entry] = []
    for entry in _walk(source):
        found.append(entry)
        if len(found) > MAX_FILES:
            raise TooLargeError(
                f"{source.what}: {source.path} has more than {MAX_FILES} files, which is the limit "
                "(MAX_FILES): is it the folder that was meant? Leave out what is not needed with excludes"
            )
    return sorted(found, key=lambda entry: entry.name)


def _walk(source: Source) -> Iterator[Entry]:
    path = Path(source.path)
    try:
        if path.is_dir():
            if source.prefix:
                yield _entry(source.prefix, path)
            yield from _walk_folder(source, path, PurePosixPath())
        elif path.is_file() and source.is_module:
            yield _entry(path.name, path)
        else:
            sort = "module" if source.is_module else "folder"
            raise InvalidError(f"{source.what}: there is no {sort} {source.path} on {os.uname().nodename}")
    except OSError as error:
        raise _unreadable(source, error) from error


def _unreadable(source: Source, error: OSError) -> InvalidError:
    return InvalidError(
        f"{source.what}: {source.path} cannot be read ({error}): leave out what is not needed with excludes"
    )


def _walk_folder(source: Source, folder: Path, inside: PurePosixPath) -> Iterator[Entry]:
    for member in os.scandir(folder):
        relative = inside / member.name
        if member.name in _NEVER or _is_excluded(relative, source.excludes):
            continue
        path = Path(member.path)
        if member.is_symlink():
            if not path.exists():
                continue  # A broken link.
            _check_link(source, path)
        name = f"{source.prefix}{relative}"
        if member.is_dir():
            yield _entry(f"{name}/", path)
            yield from _walk_folder(source, path, relative)
        elif member.is_file():
            yield _entry(name, path)


def _entry(name: str, path: Path) -> Entry:
    found = path.stat()
    is_folder = stat.S_ISDIR(found.st_mode)
    size = 0 if is_folder else found.st_size
    # A folder has no time of its own: a change inside it shows in the changed entries.
    changed = 0 if is_folder else found.st_mtime_ns
    return Entry(name, str(path), is_folder, bool(found.st_mode & stat.S_IXUSR), size, changed)


def _is_excluded(relative: PurePosixPath, patterns: tuple[str, ...]) -> bool:
    names = str(relative), relative.name
    return any(fnmatch.fnmatchcase(name, pattern.rstrip("/")) for pattern in patterns for name in names)


def _check_link(source: Source, link: Path) -> None:
    target, root = link.resolve(), Path(source.path).resolve()
    if not target.is_relative_to(root):
        raise InvalidError(
            f"{source.what}: {link} is a link out of {source.path}, to {target}: copy it into the folder, or "
            "leave it out with excludes"
        )
    if link.parent.resolve().is_relative_to(target):
        raise InvalidError(
            f"{source.what}: {link} is a link to a folder that it is in: leave it out with excludes"
        )


def pack(source: Source, found: list[Entry]) -> bytes:
    """Returns the bytes of a package with these entries."""
    data = io.BytesIO()

    def check() -> None:
        if data.tell() > MAX_PACKAGE_BYTES:
            raise _too_large(source, found)

    try:
        with zipfile.ZipFile(data, "w") as package:
            for entry in found:
                _pack_one(package, entry, check)
    except OSError as error:
        raise _unreadable(source, error) from error
    check()
    return data.getvalue()


def _pack_one(package: zipfile.ZipFile, entry: Entry, check: Callable[[], None]) -> None:
    """Packs one entry.

    Reads a file piece by piece, since it may be larger than this process's memory.
    """
    info = zipfile.ZipInfo(entry.name, _TIME)
    info.create_system = 3  # Unix, so that the file modes count.
    info.external_attr = (0o755 if entry.runs else 0o644) << 16
    if entry.is_folder:
        package.writestr(info, b"")
        return
    info.compress_type = zipfile.ZIP_DEFLATED
    info.file_size = entry.size
    with open(entry.path, "rb") as file, package.open(info, "w") as packed:
        while piece := file.read(PIECE_BYTES):
            packed.write(piece)
            check()


def _too_large(source: Source, found: list[Entry]) -> TooLargeError:
    largest = sorted(found, key=lambda entry: -entry.size)[:NAMED_FILES]
    named = ", ".join(f"{entry.name} ({_mib(entry.size)})" for entry in largest)
    total = sum(entry.size for entry in found)
    return TooLargeError(
        f"{source.what}: {source.path} has {_mib(total)}, which are more than {_mib(MAX_PACKAGE_BYTES)} when "
        f"they are packed: that is the limit (MAX_PACKAGE_BYTES). The largest are {named}. Leave out what is "
        "not needed with excludes, and keep data where workers can read it"
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def digest(data: bytes) -> str:
    """Returns the hash that identifies a package."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def unpack(data: bytes, target: Path) -> None:
    """Unpacks a package into a new folder: completely, or not at all."""
    unpacked = Path(tempfile.mkdtemp(dir=target.parent, prefix="unpacking-"))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            for info in package.infolist():
                _unpack_one(package, info, unpacked)
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # Another executor was faster.
                raise
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _unpack_one(package: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path) -> None:
    path = PurePosixPath(info.filename)
    if path.is_absolute() or ".." in path.parts:
        raise RuntimeEnvError(f"a package has a file outside of it, {info.filename!r}: it is not unpacked")
    target = folder / path
    if info.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with package.open(info) as content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
    target.chmod(info.external_attr >> 16 & 0o777)
