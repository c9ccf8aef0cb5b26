import subprocess
import sys

from vitreous.storage import locks

HOLD = "import sys; from pathlib import Path; from vitreous.storage import locks; "
HOLD += "lock = locks.take(Path(sys.argv[1])); print(lock is not None, flush=True); sys.stdin.read()"


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"True\n"
        assert locks.take(path) is None
        other.kill()  # SIGKILL: nothing is tidied up
        other.wait()
    lock = locks.take(path)
    assert lock is not None
    with lock:
        again = subprocess.run([sys.executable, "-c", HOLD, str(path)], input=b"", capture_output=True, check=True)
        assert again.stdout == b"False\n"
