"""What torch has per process and a training has for itself: the number of threads, and random numbers."""

import torch


class Surroundings:
    """Threads and random numbers of one training while it works; the caller's are put back whenever it stops."""

    def __init__(self, threads: int | None, seed: int) -> None:
        self._threads = threads
        self._seed = seed
        self._random: list[torch.Tensor] | None = None
        """Those of the training, as its last work left them: of the CPU, then of the CUDA device."""

    def __enter__(self) -> None:
        self._found = torch.get_num_threads(), _random()
        torch.set_num_threads(self._threads or self._found[0])
        if self._random is None:
            torch.manual_seed(self._seed)
        else:
            _set_random(self._random)

    def __exit__(self, *_: object) -> None:
        self._random = _random()
        threads, random = self._found
        torch.set_num_threads(threads)
        _set_random(random)


def _random() -> list[torch.Tensor]:
    on_device = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *on_device]


def _set_random(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)
