"""A relay between a daemon and its database, which can behave as a bad network does. It listens on the loopback interface."""

import contextlib
import enum
import socket
import threading
import time

PIECE = 1 << 16


class Mode(enum.Enum):
    PASSES = "passes"
    STALLS = "stalls"  # Nothing arrives, and nobody hears that.
    SWALLOWS = "swallows the answers"  # What the daemon sends arrives; the answers do not.
    REFUSES = "refuses"  # All connections end, and new ones, too.
    DELAYS = "delays"  # Each piece arrives later by `delay_s`.
    CUTS_COMMITS = "cuts commits"  # A connection ends when a commit was sent and before its answer arrives.


class Relay:
    """Relays connections to `target`, the path of a Unix socket, until close(). Two threads for each connection."""

    def __init__(self, target):
        self.target = str(target)
        self.delay_s = 0.1
        self.cuts = 0  # Commits that were cut off.
        self._mode = Mode.PASSES
        self._changed = threading.Condition()
        self._is_closed = False
        self._pairs = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def mode(self):
        return self._mode

    def set_mode(self, mode):
        with self._changed:
            self._mode = mode
            self._changed.notify_all()
            pairs = list(self._pairs) if mode is Mode.REFUSES else []
        for pair in pairs:
            self._end(pair)

    def close(self):
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            pairs = list(self._pairs)
        self._listener.close()
        for pair in pairs:
            self._end(pair)

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                if self._mode is Mode.REFUSES:
                    raise ConnectionRefusedError
                far.connect(self.target)
            except OSError:
                near.close()
                far.close()
                continue
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (near, far)
            with self._changed:
                self._pairs.add(pair)
            for source, sink, is_answer in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pump, args=(pair, source, sink, is_answer), daemon=True).start()

    def _end(self, pair):
        with self._changed:
            self._pairs.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _may_pass(self, is_answer):
        """Waits while nothing passes in this direction. False: the relay is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not (
                self._mode is Mode.STALLS or (self._mode is Mode.SWALLOWS and is_answer)))
            return not self._is_closed

    def _pump(self, pair, source, sink, is_answer):
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                if not self._may_pass(is_answer):
                    break
                if self._mode is Mode.DELAYS:
                    time.sleep(self.delay_s)
                sink.sendall(piece)
                if self._mode is Mode.CUTS_COMMITS and not is_answer and b"COMMIT" in piece:
                    self.cuts += 1
                    break
        self._end(pair)
        source.close()  # The other direction closes its own.
