"""A real NFS server on a machine of a room, and a mount on each of the others: what one did, another doesn't see at once.

The server is ganesha; the mounts are FUSE over libnfs (nfs_fuse.c), as the kernel's client isn't in every kernel. Each has
caches of its own, which is what tells machines apart that share one disk. Needs root, for /dev/fuse.
"""
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from faults import PATH

NFS_FUSE = os.environ.get("CAIRN_NFS_FUSE", "")
GANESHA = "/usr/bin/ganesha.nfsd"
STORE = "/run/store"
CACHE_S = 30
CONFIG = """
NFS_KRB5 {{ Active_krb5 = false; }}
NFS_CORE_PARAM {{ Protocols = 3, 4; NFS_Port = 2049; MNT_Port = 20048; Enable_NLM = false; Enable_RQUOTA = false; }}
NFSv4 {{ Graceless = true; Lease_Lifetime = 120; Minor_Versions = 0; Only_Numeric_Owners = true; }}
EXPORT {{
    Export_Id = 1; Path = {folder}; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash; SecType = sys;
    Protocols = 3, 4; Transports = TCP; FSAL {{ Name = VFS; }}
}}
LOG {{ Default_Log_Level = WARN; }}
"""


def missing():
    """What stands against it here; None: nothing."""
    if not NFS_FUSE or not Path(NFS_FUSE).exists():
        return "nfs_fuse was not built: libnfs-dev or libfuse3-dev is missing"
    for program in (GANESHA, "rpcbind"):
        if shutil.which(program, path=PATH) is None:
            return f"{program} is not installed"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        return "/dev/fuse can't be opened here, or not as root"
    return None


def export(machine, folder, log):
    """Serves a folder, as machines see it, from there; `log`: where the server writes what it has to say."""
    machine.run("sh", "-c", "mkdir -p /run/ganesha && mount -t tmpfs tmpfs /var/lib/nfs && mkdir /var/lib/nfs/ganesha &&"
                            "mount --bind /dev/null /etc/resolv.conf &&"  # no name server answers there: don't wait
                            f"cat >/run/ganesha.conf <<'END'\n{CONFIG.format(folder=folder)}END\n")
    machine.run("rpcbind")  # in the background once it serves; without it the server ends
    machine.popen(GANESHA, "-F", "-f", "/run/ganesha.conf", "-L", log, "-p", "/run/ganesha/pid",
                  stdin=subprocess.DEVNULL)


def mount(machine, program, url, at):
    """Mounts it there; all that is remembered is remembered for 30 s. Waits for its server: who asks while that one
    starts may wait for ever, so it is asked anew every few seconds."""
    options = ",".join(f"{cache}_timeout={CACHE_S}" for cache in ("attr", "entry", "negative"))
    machine.run("mkdir", "-p", at)
    begin = asked = time.monotonic()
    process = None
    while subprocess.run(machine.command("mountpoint", "-q", at), check=False).returncode != 0:
        now = time.monotonic()
        assert now < begin + 60, f"{url} isn't mounted"
        if process is not None and now > asked + 5:
            machine.signal(signal.SIGKILL, "nfs_fuse")
            process.wait()
        if process is None or process.poll() is not None:
            process = machine.popen(program, url, at, "-o", options, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            asked = now
        time.sleep(0.1)


def on_nfs(version):
    """For Fleet's `begin`, with one machine `more`: that one serves, all others have /run/store."""
    def begin(fleet):
        (fleet.dir / "export").mkdir()
        shutil.copy(NFS_FUSE, fleet.dir / "nfs_fuse")
        server = fleet.room[fleet.room.count]
        export(server, "/run/shared/export", "/run/shared/ganesha.log")
        path = "/export" if version == 4 else "/run/shared/export"
        for number in range(1, fleet.room.count):
            mount(fleet.room[number], "/run/shared/nfs_fuse", f"nfs://{server.address}{path}?version={version}&dircache=0",
                  STORE)
    return begin
