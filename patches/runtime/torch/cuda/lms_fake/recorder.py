r"""The events of a fake program, as record/recorder.h of the runtime makes those of a real one."""

import weakref

_ROUNDED = 512  # bytes: PyTorch's CUDA allocator gives out multiples of that


class Recorder:
    r"""Writes down what operators use.

    Args:
        smallest (int): bytes of the smallest storage that LMS manages.
    """

    def __init__(self, smallest):
        self._smallest = smallest
        self._events = []
        self._names = {"": 0}
        self._blocks = {}  # storages that live: (weak reference, number)
        self._last = 0  # number of a block
        self._unit = None  # that runs
        self._units = 0
        self._used = set()  # (block, whether it is written) of that unit
        self._clock = 0.0  # seconds
        self._small = 0  # bytes that LMS does not manage
        self._most_small = 0  # of them since the last step
        self._small_peaks = []  # for each step: where it is in the events, and the most before it
        self._living = 0
        self._steps = {}  # by optimizer: where they are in the events
        self._stepped = None  # the time, and where in the events, when the last one ended
        self.peak_bytes = 0

    def unit(self, name, key=None):
        r"""What is used from now on is used by an operator of this name.

        Args:
            name (str): its name.
            key: the same one again continues the operator. Default: it is a new one.
        """
        self._units += 1
        self._next = (self._units if key is None else key, name)

    def use(self, storage, write):
        r"""The operator uses a storage. The storage is allocated if it is not known."""
        number = self.block(storage)
        if number == 0:
            return
        key, name = self._next
        if self._unit != key:
            self._unit = key
            self._used.clear()
            self._mark()
            self._events.append(["operator", 0, self._nanoseconds(), self._index_of(name)])
        if (number, write) not in self._used and (number, True) not in self._used:
            self._used.add((number, write))
            self._events.append(["written" if write else "read", number, 0])

    def block(self, storage):
        r"""The number of a storage, which is allocated now if it is new; 0 if it is too small."""
        key = storage._cdata
        found = self._blocks.get(key)
        if found is not None:
            return found[1]
        size = storage.nbytes()
        if size < self._smallest:
            number = 0
            self._small += _rounded(size)
            self._most_small = max(self._most_small, self._small)
        else:
            self._last += 1
            number = self._last
            self._events.append(["allocated", number, size])
        self._living += _rounded(size)
        self.peak_bytes = max(self.peak_bytes, self._living)
        # A storage is the same Python object for as long as it lives.
        self._blocks[key] = weakref.ref(storage, lambda _: self._free(key, number, size)), number
        return number

    def spend(self, seconds):
        r"""The GPU has worked so long."""
        self._clock += seconds

    @property
    def uses_gpu(self):
        r"""bool: something was on the GPU."""
        return self.peak_bytes > 0

    @property
    def manages(self):
        r"""bool: something was large enough for LMS."""
        return self._last > 0

    def step(self, optimizer=0):
        r"""An iteration has ended. Two ends of the same kind with nothing in between are one.

        Args:
            optimizer (int): the number of the one that has made a step, or 0.
        """
        again = self._stepped == (self._clock, len(self._events))
        if again and self._steps.get(optimizer, [0])[-1] == len(self._events):
            return
        self._mark()
        self._events.append(["step", optimizer, 0])
        # The optimizer that made the last step is the last.
        self._steps[optimizer] = self._steps.pop(optimizer, [])
        self._steps[optimizer].append(len(self._events))
        self._small_peaks.append((len(self._events), self._most_small))
        self._most_small = self._small
        self._stepped = (self._clock, len(self._events))
        self._unit = None

    def trace(self):
        r"""The last iteration and the blocks that lived before it: names, events and small bytes.

        Of small storages, the most at any time of the iteration count at all times. What a layer
        keeps in many of them is gone when the iteration ends.

        Raises:
            ValueError: there were fewer than two steps.
        """
        complete = [steps for steps in self._steps.values() if len(steps) > 1]
        if not complete:
            raise ValueError("fewer than two iterations")
        # As between_the_last_steps() in record/iteration.cpp.
        own = self._steps.get(0, [])
        steps = own if own in complete else min(reversed(complete), key=len)
        begin, end = steps[-2:]
        living = {}
        for kind, block, value, *_ in self._events[:begin]:
            if kind == "allocated":
                living[block] = value
            elif kind == "freed":
                del living[block]
        events = [["known", block, size] for block, size in living.items()]
        # The step, and the mark before it.
        events += self._events[begin - 2 : end]
        names = sorted(self._names, key=self._names.get)
        small = max(most for place, most in self._small_peaks if begin < place <= end)
        return {"names": names, "events": events, "unmanaged_bytes": small}

    def _free(self, key, number, size):
        del self._blocks[key]
        self._living -= _rounded(size)
        if number:
            self._events.append(["freed", number, 0])
        else:
            self._small -= _rounded(size)

    def _mark(self):
        self._events.append(["mark", 0, self._nanoseconds()])

    def _nanoseconds(self):
        return int(self._clock * 1e9)

    def _index_of(self, name):
        return self._names.setdefault(name, len(self._names))


def _rounded(size):
    return -(-size // _ROUNDED) * _ROUNDED
