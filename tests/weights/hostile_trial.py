"""Run as a program of its own: opens hostile files, and says what became of each and how much memory it took.

    python hostile_trial.py GOOD_FILE LIST.json FOLDER

A PyTorch file is unpickled by a process that is forked from this one instead of one that imports torch anew, which
would take over a second each: the same `main`, under the same limits, and the memory it took is written down.
"""

import json
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vitreous.errors import UserError
from vitreous.weights import files, unpickle

# Called as the program that unpickles is: hands its words, input and output to the process that forks, and ends as the
# fork did.
CALLED = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as warm:
    warm.connect({address!r})
    socket.send_fds(warm, [chr(0).join(sys.argv[1:]).encode()], [0, 1])
    ended = int(warm.recv(16))
if ended < 0:
    os.kill(os.getpid(), -ended)
os._exit(ended)
"""


def peak_mb() -> float:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def fork_for_all(listener: socket.socket, peaks: Path) -> None:
    while True:
        caller, _ = listener.accept()
        words, descriptors, _, _ = socket.recv_fds(caller, 4096, 2)
        if (child := os.fork()) == 0:
            for place, descriptor in enumerate(descriptors):
                os.dup2(descriptor, place)
            size, target, seconds = words.decode().split("\0")
            before = peak_mb()
            status = unpickle.main(int(size), Path(target), int(seconds))
            with peaks.open("a") as file:
                file.write(f"{peak_mb() - before}\n")
            sys.stdout.flush()
            os._exit(status)
        caller.sendall(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        for descriptor in (*descriptors, caller.detach()):
            os.close(descriptor)


def opened(path: str) -> str | None:
    """Why not, or None."""
    try:
        given = files.open_weights(path)
        for name in given.tensors:
            given.tensors[name]
    except UserError as error:
        return str(error)
    except BaseException as error:
        return f"{type(error).__name__}\n{error}"
    return None


def main(good: str, listed: Path, folder: Path) -> None:
    address = f"\0hostile-trial-{os.getpid()}"  # no path, which might be too long for a socket
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    if (forking := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # or whoever reads our output would wait for its end too
        fork_for_all(listener, folder / "peaks")
    files.UNPICKLE = folder / "called.py"
    files.UNPICKLE.write_text(CALLED.format(address=address))
    try:
        assert opened(good) is None
        before, paths = peak_mb(), json.loads(listed.read_text())
        with ThreadPoolExecutor(2) as pool:
            answers = dict(zip(paths, pool.map(opened, paths.values()), strict=True))
        print(json.dumps({"answers": answers, "peak": peak_mb() - before}))
    finally:
        os.kill(forking, signal.SIGKILL)
        os.waitpid(forking, 0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
