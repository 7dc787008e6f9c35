#!/usr/bin/env bash
# Boots systemd as process 1 in the tree $1, in the cgroup $2 of its own. To be run as process 1 of fresh mount, PID, IPC, UTS and
# network namespaces (check.py does). Nothing that it mounts is shared with the machine: device nodes are the tree's own, because
# systemd changes the modes of those it finds.
set -euo pipefail
tree=$1 group=$2
if [ "${3:-}" != inside ]; then
  # A bind mount: a fresh one would set the options of the machine's own.
  mount --bind "$(findmnt -n -o TARGET -t cgroup2 | head -1)" "$tree/mnt"
  mkdir "$tree/mnt/$group"
  echo $$ >"$tree/mnt/$group/cgroup.procs"
  umount "$tree/mnt"
  exec unshare --cgroup -- "$0" "$tree" "$group" inside
fi
mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
# The kernel's settings belong to the machine that checks.
mount --bind "$tree/proc/sys" "$tree/proc/sys"
mount -o remount,bind,ro "$tree/proc/sys"
mount -t sysfs -o ro sysfs "$tree/sys"
mount -t cgroup2 cgroup "$tree/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$tree/run"
mount -t tmpfs -o mode=755 tmpfs "$tree/dev"
node() { mknod -m "$2" "$tree/dev/$1" c "$3" "$4"; }
node null 666 1 3
node zero 666 1 5
node full 666 1 7
node random 666 1 8
node urandom 666 1 9
node tty 666 5 0
node console 600 1 3  # where nobody reads, as of /dev/null
mkdir "$tree/dev/pts" "$tree/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$tree/dev/pts"
mount -t tmpfs tmpfs "$tree/dev/shm"
ln -s pts/ptmx "$tree/dev/ptmx"
ln -s /proc/self/fd "$tree/dev/fd"
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$tree" /lib/systemd/systemd systemd.unit=multi-user.target
