"""GPUs with faults: the library of tests/faulty_device.cpp, which is preloaded into a daemon, and its orders."""

import pathlib
import tempfile

import test_devices
import uma

LIBRARY = uma.BUILD / "bin" / "libfaulty_device.so"


class Faults:
    """The orders of one daemon. `environment` makes it see the GPU, with these faults."""

    def __init__(self, *orders):
        self._folder = tempfile.TemporaryDirectory(prefix="uma-faults-")
        self._path = pathlib.Path(self._folder.name, "orders")
        self._bytes = self._path.with_name("bytes")
        self.environment = test_devices.VISIBLE | {"LD_PRELOAD": str(LIBRARY), "UMA_FAULTY_DEVICE": str(self._path),
                                                   "UMA_FAULTY_DEVICE_BYTES": str(self._bytes)}
        self.order(*orders)

    def order(self, *lines):
        """Replaces the orders by these lines, such as "memory 1000000"; none: the devices have no new faults."""
        next_path = self._path.with_suffix(".next")
        next_path.write_text("".join(f"{line}\n" for line in lines))
        next_path.replace(self._path)

    def allocated(self):
        """The bytes of the buffers that each device has now, as its backend was asked for them."""
        lines = self._bytes.read_text().splitlines() if self._bytes.exists() else []
        return {name: int(count) for name, count in (line.rsplit(" ", 1) for line in lines)}

    def close(self):
        self._folder.cleanup()
