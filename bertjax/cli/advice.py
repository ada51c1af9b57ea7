"""Operating system errors as a sentence: which file, what is wrong, and what to do."""

from __future__ import annotations

import errno

_NO_SPACE = "free some space, or name a folder on another disk (--run-dir, --data.root, --output; TMPDIR for the rest)"
_FORBIDDEN = "give yourself the right to it (chmod, chown), or name another folder"
_TOO_MANY = "raise the limit of this shell, as in `ulimit -n 65536`, and run the same command again"
_LONGEST = 4000  # characters of a message
_NETWORK = "check the address and the network, and run the same command again"

# Error number -> (what is wrong, what to do).
ADVICE: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("no space is left on its disk", _NO_SPACE),
    errno.EDQUOT: ("your quota of its disk is used up", _NO_SPACE),
    errno.EFBIG: ("the file would be larger than its file system allows", _NO_SPACE),
    errno.EACCES: ("permission denied", _FORBIDDEN),
    errno.EPERM: ("permission denied", _FORBIDDEN),
    errno.EROFS: ("its disk is read-only", "name a folder that can be written"),
    errno.EMFILE: ("too many files are open in this process", _TOO_MANY),
    errno.ENFILE: ("too many files are open on this machine", "end other programs, and run the same command again"),
    errno.EISDIR: ("it is a folder", "name a file"),
    errno.ENOTDIR: ("a part of its path is a file, not a folder", "correct the path"),
    errno.ENOENT: ("no such file or folder", "correct the path, or make what is missing"),
    errno.EEXIST: ("it exists already", "name another, or move it away"),
    errno.ENOTEMPTY: ("the folder is not empty", "name another, or move it away"),
    errno.ENAMETOOLONG: ("the name is too long", "name a shorter one"),
    errno.ELOOP: ("its links lead in a circle", "name the target file"),
    errno.EIO: ("its disk or network failed", "check the system's log, and try again"),
    errno.ESTALE: ("the network disk no longer has it", "mount the disk again, and run the same command again"),
    errno.EBUSY: ("it is in use", "end the program that uses it, or name another"),
    errno.ETXTBSY: ("it is in use", "end the program that uses it, or name another"),
    errno.ENOMEM: ("no memory is left", "end other programs, or use smaller batches and fewer workers"),
    errno.EAGAIN: ("the system has no more processes or threads", "lower --data.workers and --data.threads"),
    errno.EPIPE: ("the reader of the output has closed it", "run the same command again"),
    errno.ECONNREFUSED: ("nothing answers there", _NETWORK),
    errno.ECONNRESET: ("the other side closed the connection", _NETWORK),
    errno.ETIMEDOUT: ("there was no answer in time", _NETWORK),
    errno.EHOSTUNREACH: ("the host cannot be reached", _NETWORK),
    errno.ENETUNREACH: ("the network cannot be reached", _NETWORK),
    errno.EADDRINUSE: ("the address is taken by another program", "end that program, or name another port"),
}


def error_message(error: BaseException) -> str:
    """Return an error's message, with advice for operating system errors.

    The message is `printable` and without passwords of URLs.
    """
    from bertjax.config.credentials import without_credentials

    return printable(without_credentials(_plain_message(error)))


def printable(message: str) -> str:
    """Make a message that may quote a hostile file safe for a terminal or a log.

    Unprintable characters are escaped, so that they cannot control the terminal. A message of more than `_LONGEST`
    characters is shortened in the middle.
    """
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2]} [...] {message[-_LONGEST // 2 :]}"
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in message)


def _plain_message(error: BaseException) -> str:
    if isinstance(error, MemoryError) and not str(error):
        return "; ".join(ADVICE[errno.ENOMEM])
    if not isinstance(error, OSError) or error.errno not in ADVICE or error.strerror is None:
        return str(error) or type(error).__name__
    what, advice = ADVICE[error.errno]
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{' -> '.join(files)}{': ' if files else ''}{what}; {advice}"
