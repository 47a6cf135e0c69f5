"""Files and folders that appear complete or not at all."""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedstrata.core.error_codes import code_of_reading
from fedstrata.core.errors import refused

HASH_BYTES = 32
"""Of a SHA-256."""

TEMPORARY = ".tmp"
"""How the names of files that are being written end; whoever died while writing leaves one behind."""
_OS_ERROR = re.compile(r"\(os error (\d+)\)$")


def write_atomically(
    path: Path, pieces: Iterable[bytes | memoryview], *, durable: bool = True, mode: int = 0o600
) -> None:
    """Writes a file under a temporary name, flushes it to disk, and renames it.

    A link, or another user's file, in place of the temporary name is refused: a folder may be shared.

    Args:
        path: The file; what was there before is replaced.
        pieces: Its content, in order.
        durable: Whether it must be on disk, and not only with the operating system, before this returns;
            many small files that can be made again are written faster without.
        mode: Who may do what with it, less what the process's mask forbids; its owner alone by default.
    """
    temporary = _temporary(path)
    try:
        with errors_naming(path, temporary):
            # What is reserved is kept until all is written; what somebody else has put there is not followed.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            with os.fdopen(os.open(temporary, flags, mode), "r+b") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    raise PermissionError(errno.EPERM, "belongs to another user", str(temporary))
                for piece in pieces:
                    file.write(piece)
                file.truncate()
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # it may be large, and the disk full
        raise
    if not durable:
        return
    keep_names(path.parent)


def keep_names(folder: Path) -> None:
    """Sees to it that the names of the files in a folder survive a power cut."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def reserve(path: Path, size: int) -> None:
    """Gives a file that this process is going to write its size before it has its bytes."""
    with open_private(_temporary(path), "wb") as file:
        file.truncate(size)


def open_private(path: Path, mode: str, buffering: int = -1) -> IO[Any]:
    """Opens a file to be written; one that it makes is readable by its owner alone (mode 600)."""
    return open(path, mode, buffering, opener=lambda name, flags: os.open(name, flags, 0o600))


def private_folder(folder: Path, *, existing: bool = False) -> None:
    """Makes a folder, and those above it that do not exist, for their owner alone (mode 700).

    Args:
        folder: The folder.
        existing: Whether to close one that exists already to others, too. One of another user stays as it
            is, and so does one that users share, which has the sticky bit.
    """
    for place in reversed([each for each in folder.parents if not each.exists()]):
        place.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.stat()  # follows a link, as writing into the folder does
    if existing and state.st_uid == os.geteuid() and not state.st_mode & stat.S_ISVTX:
        folder.chmod(0o700)


def close_to_others(folder: Path) -> None:
    """Takes all permissions of other users from a folder and from all in it, which libraries have written."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXU)


def half_written(path: Path) -> list[Path]:
    """Returns what processes are writing that is to become this file."""
    return list(path.parent.glob(f".{path.name}.*{TEMPORARY}"))


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")


def bytes_in(path: Path) -> bytes:
    """Returns what a file holds that a user has named.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise refused("", f"cannot read {path}: {error.strerror}", code_of_reading(error)) from None


def secret_bytes(path: Path) -> bytes:
    """Reads a file that nobody else may read.

    Raises:
        ConfigurationError: It cannot be read, or others may read it.
    """
    data = bytes_in(path)
    require_secret(path)
    return data


def require_secret(path: Path) -> None:
    """Checks that nobody else may read a file.

    Raises:
        ConfigurationError: Others may.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        message = f"others may read {path} (mode {mode:o}); it is a secret: chmod 600 {path}"
        raise refused("", message, "not_secret")


def write_new_secret(path: Path, data: bytes) -> None:
    """Writes a file that nobody else may read (mode 600), durably; it appears complete or not at all.

    Raises:
        ConfigurationError: There is one of that name; a secret that is overwritten is lost.
    """
    temporary = _temporary(path)
    try:
        with errors_naming(path, temporary):
            opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(opened, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # unlike a renaming, this fails where there is one already
    except FileExistsError:
        message = (
            f"{path} exists, and a secret is never overwritten; name another file, or move this one away"
        )
        raise refused("", message, "exists") from None
    finally:
        temporary.unlink(missing_ok=True)
    keep_names(path.parent)


@contextmanager
def taking_turns(lock: Path) -> Iterator[None]:
    """Lets one process at a time into the block, of those that name the same file; it is made for that."""
    with open_private(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_somebodys_turn(lock: Path) -> bool:
    """Whether a process is in a block of `taking_turns`; it is in none once it has ended, however it did."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def hash_of(path: Path) -> str:
    """Returns the SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def with_hash(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yields a file's bytes, and at the end their hash."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        yield piece
    yield digest.digest()


def ends_with_its_hash(path: Path) -> bool:
    """Whether a file ends with the hash of all before it."""
    digest, end = hashlib.sha256(), path.stat().st_size - HASH_BYTES
    with path.open("rb") as file:
        while piece := file.read(min(2**20, end - file.tell())):
            digest.update(piece)
        return file.read() == digest.digest()


def hold(file: IO[Any], told: str) -> None:
    """Keeps other processes from an open file; that ends with the process, however it ends.

    Args:
        file: The file; closed if it is held already.
        told: What is said then.

    Raises:
        ConfigurationError: Another one holds it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise refused("--out", told, "in_use") from None


def nearest_existing(path: Path) -> Path:
    """Returns the path, or the nearest folder above it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def require_writable(folder: Path) -> None:
    """Checks that a folder is there and can be written to, or can be made.

    Raises:
        ConfigurationError: It is a file, below one, or somewhere that this user may not write.
    """
    there = nearest_existing(folder)
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        why = "may not be written to" if there.is_dir() else "is a file"
        raise refused("", f"cannot write to {folder}: {there} {why}", "unwritable")


def require_new(folder: Path) -> None:
    """Checks that a folder to be written does not exist yet or is empty.

    Raises:
        ConfigurationError: There is something in it, or it is a file.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} exists and is not an empty folder; name another one, or empty it first"
        raise refused("", message, "exists")


@contextmanager
def new_folder(folder: Path, *, private: bool = False) -> Iterator[Path]:
    """Makes a folder that appears when the block ends; if anything fails, nothing is left behind.

    Args:
        folder: The folder; it must be empty if it exists.
        private: Whether the folder and all in it are their owner's alone, whatever the process's mask.

    Yields:
        A temporary folder beside it, to be filled.

    Raises:
        ConfigurationError: The folder is not empty.
    """
    folder = folder.resolve()
    require_new(folder)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        with errors_naming(folder, temporary):
            temporary.mkdir(parents=True)
            yield temporary
            if private:
                close_to_others(temporary)
            if folder.exists():
                folder.rmdir()
            temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def errors_naming(path: Path, temporary: Path) -> Iterator[None]:
    """Lets errors of writing name what the user knows; that of a write to a full disk names nothing.

    Args:
        path: What is written.
        temporary: The name that it has until it is complete.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # whoever raises one of their own says what it is
            error.filename = str(error.filename or path).replace(str(temporary), str(path))
        raise
    except Exception as error:  # of safetensors and tokenizers, which are written in Rust
        if (found := _OS_ERROR.search(str(error))) is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from None
