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
        self.environment = test_devices.VISIBLE | {"LD_PRELOAD": str(LIBRARY), "UMA_FAULTY_DEVICE": str(self._path)}
        self.order(*orders)

    def order(self, *lines):
        """Replaces the orders by these lines, such as "memory 1000000"; none: the devices have no new faults."""
        next_path = self._path.with_suffix(".next")
        next_path.write_text("".join(f"{line}\n" for line in lines))
        next_path.replace(self._path)

    def close(self):
        self._folder.cleanup()
