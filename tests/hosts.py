"""Two hosts, joined by one cable that can be pulled: network namespaces of this machine, which need no root."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CABLE = "cable"  # what the network is called on both
ADDRESSES = ("10.77.0.1", "10.77.0.2")
SCRIPT = """
set -e
unshare --net sleep 1000 & other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
ip link add $0 type veth peer name $0 netns $other
ip link set lo up && ip address add $1/24 dev $0 && ip link set $0 up
nsenter --target $other --net sh -c "ip link set lo up && ip address add $2/24 dev $0 && ip link set $0 up"
echo $other
exec sleep 1000
"""


class NoHosts(Exception):
    """This machine does not allow them; why."""


@dataclass(frozen=True)
class Hosts:
    processes: tuple[int, int]  # one in each

    def inside(self, host: int) -> list[str]:
        """What a command begins with to be run there."""
        target = str(self.processes[host])
        return ["nsenter", "--target", target, "--user", "--preserve-credentials", "--net", "--"]

    def environment(self) -> dict[str, str]:
        """By which ranks on both find each other."""
        return {"MASTER_ADDR": ADDRESSES[0], "GLOO_SOCKET_IFNAME": CABLE}

    def enter(self) -> None:
        """This process moves to the host of its rank; it must have one thread alone."""
        process, c = self.processes[int(os.environ["RANK"])], ctypes.CDLL(None, use_errno=True)
        for kind in ("user", "net"):
            with Path(f"/proc/{process}/ns/{kind}").open() as there:
                if c.setns(there.fileno(), 0):
                    raise OSError(ctypes.get_errno(), "setns")

    def pull_the_cable(self) -> None:
        subprocess.run([*self.inside(1), "ip", "link", "set", CABLE, "down"], check=True)


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Raises NoHosts."""
    words = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", SCRIPT, CABLE, *ADDRESSES]
    try:
        first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        raise NoHosts("there is no `unshare` here, to make a network of its own") from None
    with first:
        assert first.stdout is not None and first.stderr is not None
        second = first.stdout.readline()
        try:
            if not second:
                raise NoHosts(f"no network can be made here ({first.stderr.read().strip()})")
            yield Hosts((first.pid, int(second)))
        finally:
            first.kill()
            if second:
                os.kill(int(second), signal.SIGKILL)
