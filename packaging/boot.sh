#!/usr/bin/env bash
# Boots systemd as process 1 in the tree $1. To be run in fresh mount, PID, IPC, UTS, network and cgroup namespaces (check.py does).
set -euo pipefail
tree=$1
mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
# The kernel's settings belong to the machine that checks.
mount --bind "$tree/proc/sys" "$tree/proc/sys"
mount -o remount,bind,ro "$tree/proc/sys"
mount -t sysfs -o ro sysfs "$tree/sys"
mount -t cgroup2 cgroup "$tree/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$tree/run"
mount -t tmpfs -o mode=755 tmpfs "$tree/dev"
for device in null zero full random urandom tty; do
  touch "$tree/dev/$device"
  mount --bind "/dev/$device" "$tree/dev/$device"
done
touch "$tree/dev/console"
mount --bind /dev/null "$tree/dev/console"
mkdir "$tree/dev/pts" "$tree/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$tree/dev/pts"
mount -t tmpfs tmpfs "$tree/dev/shm"
ln -s pts/ptmx "$tree/dev/ptmx"
ln -s /proc/self/fd "$tree/dev/fd"
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$tree" /lib/systemd/systemd systemd.unit=multi-user.target
