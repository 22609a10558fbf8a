# ruff: noqa: E501 - programs on one line
"""Sessions that attack what runs them: cells of one session, one after the other.

They reach for the descriptors of their session, leave something running for the next cell, print without end, or break
what our code in their process needs. What they do to themselves is theirs; what runs them must not notice.
"""

USE = "import fcntl, gc, os, resource, signal, subprocess, sys, threading, time\n"

CELLS: dict[str, tuple[str, ...]] = {
    # the channel
    "says that it was not confined": (USE + "os.write(3, b'f')", "1", USE + "os.write(3, b'f')\nwhile True: pass", "1"),
    "says that it is done": (USE + "os.write(3, b'k')\nwhile True: pass", "1"),
    "says so for many cells": (USE + "os.write(3, b'k' * 60_000)", "1", "2"),
    "says what there is not": (USE + "os.write(3, b'\\xff')", "1"),
    "says all day that it is done": (
        USE + "def say():\n while True:\n  os.write(3, b'k')\nthreading.Thread(target=say).start()",
        "1", "2",
    ),
    "a child says that it is done": (
        USE + "if os.fork() == 0:\n while True: os.write(3, b'e')", "time.sleep(0.3)", "2",
    ),
    "takes the next cell": (
        USE + "def take():\n while True: os.read(4, 1)\nthreading.Thread(target=take).start()", "1", "2",
    ),
    "closes where cells come from": (USE + "os.close(4)", "1"),
    "closes where it says so": (USE + "os.close(3)", "1"),
    "closes where it prints": (USE + "os.close(5)\nprint('x')", "1"),
    "closes all": (USE + "os.closerange(0, 100)", "1"),
    "closes 1 and 2": (USE + "os.closerange(1, 3)", "print('x')"),
    "other flags of its channel": (
        USE + "for f in (3, 4, 5): fcntl.fcntl(f, fcntl.F_SETFL, os.O_NONBLOCK)", "print('x' * 10**6)", "1",
    ),
    "its channel in other places": (USE + "os.dup2(5, 3); os.dup2(3, 4)", "1", "2"),
    "prints to every descriptor": (USE + "for f in range(100):\n try: os.write(f, b'k' * 100)\n except OSError: pass", "1"),
    # what is printed
    "50 MB without a line's end": (USE + "for _ in range(50): os.write(1, b'x' * 10**6)", "1"),
    "no end of lines": (USE + "while True: print('x')",),
    "no end of errors": (USE + "def f():\n try: f()\n finally: f()\nf()", "1"),
    "a child prints on": (
        USE + "if os.fork() == 0:\n while True: os.write(1, b'x' * 4096)", "1", "time.sleep(0.2)", "2",
    ),
    "a thread prints on": (
        USE + "def on():\n while True: print('x' * 1000)\nfor _ in range(3): threading.Thread(target=on).start()",
        "1", "time.sleep(0.2)", "2",
    ),
    "bytes that are no text": (USE + "os.write(1, bytes(range(256)) * 1000)", "1"),
    "a value that is shown for ever": ("class R:\n def __repr__(self):\n  while True: pass\nR()", "1"),
    "a value that is 100 MB long": ("'x' * 10**8", "1"),
    "an exception that is told for ever": ("class E(Exception):\n def __str__(self):\n  while True: pass\nraise E", "1"),
    "an exception that can't be told": ("class E(BaseException):\n def __str__(self): raise SystemExit\n__notes__ = 1\nraise E", "1"),
    # what is left for the next cell
    "handlers and timers": (
        USE + "for s in set(signal.Signals) - {9, 17, 19}: signal.signal(s, lambda *a: 1 / 0)\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\nsignal.setitimer(signal.ITIMER_VIRTUAL, 0.01, 0.01)",
        "time.sleep(0.1)", "signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)", "1",
    ),
    "an alarm of a child": (
        USE + "signal.signal(signal.SIGUSR1, lambda *a: os._exit(1))\nif os.fork() == 0:\n time.sleep(0.05)\n while True: os.kill(1, signal.SIGUSR1)",
        "time.sleep(0.2)", "1",
    ),
    "a child that wakes all": (USE + "if os.fork() == 0:\n while True: os.kill(-1, signal.SIGCONT)", "1", "2"),
    "stops itself": (USE + "os.kill(0, signal.SIGSTOP)\nos.kill(os.getpid(), signal.SIGSTOP)", "1"),
    "stops its children": (USE + "for _ in range(5):\n if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)", "1"),
    "children that nobody waits for": (USE + "for _ in range(40):\n try:\n  if os.fork() == 0: os._exit(0)\n except OSError: pass", "1", "2"),
    "threads that never end": (USE + "def spin():\n while True: pass\nfor _ in range(5): threading.Thread(target=spin).start()", "1", "2"),
    "a fork bomb, cell by cell": tuple([USE + "while True:\n try: os.fork()\n except OSError: break"] * 3),
    "memory, cell by cell": (USE + "kept = []", *["kept.append(bytearray(60 * 2**20))"] * 6),
    "processor time of children": (USE + "for _ in range(6):\n if os.fork() == 0:\n  while True: pass", "time.sleep(0.9)", "1"),
    "a full folder": (USE + "n = 0", *["while True:\n n += 1\n open(str(n), 'wb').write(bytes(2**20))"] * 2, "n"),
    "a folder of other rights": (USE + "os.chmod('.', 0)\nos.chdir('/')", "open('x', 'w')", "1"),
    # our code in its process
    "tracing": (USE + "sys.settrace(lambda *a: 1 / 0)\nsys.setprofile(lambda *a: 1 / 0)", "1"),
    "other streams": (
        "import sys\nclass S:\n closed = False\n def write(self, t):\n  while True: pass\n def flush(self):\n  while True: pass\nsys.stdout = sys.stderr = S()",
        "1",
    ),
    "streams that raise": ("import sys\nclass S:\n def __getattr__(self, n): raise SystemExit\nsys.stdout = sys.stderr = S()\nprint(1)", "1"),
    "no builtins": ("__builtins__.clear() if isinstance(__builtins__, dict) else vars(__builtins__).clear()", "1"),
    "no modules": ("import sys\nsys.modules.clear()", "1"),
    "another compiler": ("import builtins\nbuiltins.compile = builtins.exec = builtins.eval = lambda *a, **k: None", "1"),
    "a patched interpreter": (
        "import gc, os, sys\nfor m in [o for o in gc.get_objects() if type(o) is type(sys)]:\n if 'sandbox' in m.__name__:\n  for n in list(vars(m)): setattr(m, n, None)",
        "1",
    ),
    "frames of the interpreter": (
        "import sys\nf = sys._getframe()\nwhile f:\n g, f = f, f.f_back\n g.f_globals.update(_next=lambda: b'1', STATUS=1, OUTPUT=3)", "1", "2",
    ),
    "another program": ("import os, sys\nos.execv(sys.executable, ['python', '-c', 'while True: print(1)'])", "1"),
    "a program that says that it is done": (
        "import os, sys\nfor f in (3, 4, 5): os.set_inheritable(f, True)\nos.execv(sys.executable, ['python', '-c', 'import os, time\\nos.write(3, b\"k\")\\ntime.sleep(60)'])",
        "1", "2",
    ),
    "no descriptors": (USE + "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))", "1", "import csv, tkinter"),
    "no memory": (USE + "resource.setrlimit(resource.RLIMIT_AS, (1, 1))", "list(range(10**6))", "1"),
    "killed by a limit of its own": (USE + "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))", "while True: pass", "1"),
    "gone between two cells": (
        USE + "def go():\n time.sleep(0.002)\n os._exit(0)\nthreading.Thread(target=go).start()", "1", "2",
    ),
    # sources
    "a source that is no text": ("\ud800", "1"),
    "a source of 20 MB": ("x = 1\n" * 3_000_000, "1"),
    "a deep source": ("(" * 10**5, "[" * 90 + "]" * 90, "-" * 10**5 + "1", "1" + "+1" * 10**5, "1"),
    "names of ours": ("__name__ = '<cell 1>'\n__file__ = '<cell 2>'\ndel __builtins__\nraise ValueError", "1"),
}  # fmt: skip
"""By what they do."""
