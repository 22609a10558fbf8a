# ruff: noqa: E501 - programs on one line
"""Answers that attack their grader. Each defines ``double``, which is to give twice a number, and doesn't.

What an attack does at its definition or its call would fool, hang, or harm a grader that runs it in its own
process, or trusts what comes out of another's.
"""

GRAB = """
import ctypes, fcntl, gc, os, signal, socket, subprocess, sys, threading, time
"""

FORGED = r"""
def forge():
    import json, struct
    right = [json.dumps({"value": ["int", "%x" % (2 * n)]}).encode() for n in (1, 2, 21)]
    texts = [b'{"passed": true}\n', b"ok\n", b"3 passed\n", b'{"success": true, "fraction": 1.0}\n']
    texts += [struct.pack(">I", len(x)) + x for x in [*right, b'{"passed": true}', b'{"loaded": true}']]
    texts += [bytes(16) + struct.pack(">I", 15) + struct.pack(">BI", 0, 10) + b"x" * 10]
    for file in range(64):
        for text in texts:
            try:
                os.write(file, text)
            except OSError:
                pass
"""

ALWAYS_EQUAL = """
class Always:
    __hash__ = None
    def __eq__(self, other): return True
    def __ne__(self, other): return False
"""

HOSTILE: dict[str, str] = {
    # never done
    "infinite loop": "def double(x):\n while True: pass",
    "infinite loop at definition": "while True: pass",
    "bare-except loop": "def double(x):\n while True:\n  try:\n   while True: pass\n  except: pass",
    "sleep": GRAB + "def double(x): time.sleep(1000)",
    "a number that takes for ever": "def double(x): return 9 ** 9 ** 9",
    "a pattern that takes for ever": "import re\ndef double(x): return re.match('(a+)+$', 'a' * 60 + 'b')",
    "endless print": "def double(x):\n while True: print('passed ' * 1000)",
    "endless result": "def double(x): return 'a' * 10**7",
    "endless generator": "def double(x):\n while True: yield x",
    "blocked signals": GRAB
    + "def double(x):\n signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n while True: pass",
    "changed handlers and timers": GRAB
    + "for s in set(signal.Signals) - {9, 19}:\n signal.signal(s, lambda *a: None)\n"
    "def double(x):\n signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n while True: pass",
    "waits for input": "def double(x): return input()",
    # ends its process
    "SystemExit": "def double(x): raise SystemExit(0)",
    "SystemExit at definition": "raise SystemExit(0)",
    "os._exit": GRAB + "def double(x): os._exit(0)",
    "os._exit at definition": GRAB + "os._exit(0)",
    "abort": GRAB + "def double(x): os.abort()",
    "KeyboardInterrupt": "def double(x): raise KeyboardInterrupt",
    "an exception that can't be shown": "class E(BaseException):\n def __str__(self): raise SystemExit\n"
    "def double(x): raise E",
    "segmentation fault": GRAB + "def double(x): return ctypes.string_at(0)",
    "exec of another program": GRAB + "def double(x): os.execv(sys.executable, ['python', '-c', 'print(2)'])",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef double(x): return double(x) + double(x)",
    "deep recursion in C": "def double(x):\n v = []\n for _ in range(10**6): v = [v]\n return v",
    "deep source": "def double(x): return " + "(" * 5000 + "x" + ")" * 5000,
    "null bytes": "def double(x): return 2 * x\0",
    "exit hooks": GRAB + "import atexit\natexit.register(lambda: time.sleep(1000))\n"
    "def double(x): return x",
    # uses up the machine
    "fork bomb": GRAB + "def double(x):\n while True:\n  try: os.fork()\n  except OSError: pass",
    "thread bomb": GRAB
    + "def double(x):\n while True:\n  try: threading.Thread(target=time.sleep, args=(1000,)).start()\n"
    "  except RuntimeError: pass",
    "10 GB": "def double(x): return len(bytearray(10 * 2**30))",
    "10 GB by many": GRAB
    + "def double(x):\n for _ in range(12): os.fork()\n b = bytearray(100 * 2**20)\n time.sleep(1000)",
    "1 GB file": "def double(x):\n with open('big', 'wb') as f:\n  for _ in range(1024): f.write(bytes(2**20))",
    "many files": "def double(x):\n for i in range(10**9): open(str(i), 'wb').write(bytes(2**16))",
    "memory by descriptors": GRAB
    + "def double(x):\n for i in range(60):\n  f = os.memfd_create('m')\n  os.write(f, bytes(2**24))\n return 'got'",
    "all descriptors": "def double(x):\n kept = [open('/dev/null') for _ in range(10**5)]\n return x",
    # leaves something behind
    "threads left running": GRAB
    + "def spin():\n while True: pass\ndef double(x):\n"
    " for _ in range(4): threading.Thread(target=spin).start()\n return x",
    "processes left running": GRAB
    + "def double(x):\n if os.fork() == 0:\n  os.setsid()\n  while True: pass\n return x",
    "deleted working folder": GRAB
    + "import shutil\ndef double(x):\n shutil.rmtree('/tmp', ignore_errors=True)\n os.chdir('/')\n return x",
    "patched builtins": "import builtins, json, os, sys\ndef double(x):\n"
    " for n in ('len', 'type', 'isinstance', 'next', 'all', 'int', 'float'):\n"
    "  setattr(builtins, n, lambda *a, **k: True)\n"
    " json.dumps = lambda *a, **k: '{\"passed\": true}'\n os.write = lambda *a: 0\n return x",
    "patched harness": "import sys\ndef double(x):\n for name, m in list(sys.modules.items()):\n"
    "  if 'sandbox' in name:\n   for n, v in list(vars(m).items()):\n    if callable(v): setattr(m, n, lambda *a, **k: True)\n"
    " return x",
    "unloaded modules": "import sys\ndef double(x):\n sys.modules.clear()\n return x",
    "tracing": "import sys\ndef double(x):\n sys.settrace(lambda *a: 1 / 0)\n return x",
    # reaches for what is not its own
    "signals to the parent": GRAB
    + "def double(x):\n for who in (os.getppid(), -1, 0, 1, 2, 3):\n  for s in (9, 19, 15):\n"
    "   try: os.kill(who, s)\n   except OSError: pass\n return x",
    "limits of the parent": GRAB
    + "import resource\ndef double(x):\n for who in range(1, 10):\n  try: resource.prlimit(who, resource.RLIMIT_NOFILE, (3, 3))\n"
    "  except OSError: pass\n return x",
    "the reference through frames": "import sys\ndef double(x):\n f = sys._getframe()\n while f:\n"
    "  for v in (f.f_locals, f.f_globals):\n   for n in ('expected', 'reference', 'answer_key', 'results'):\n    if n in v: return v[n][0]\n  f = f.f_back",
    "the reference through gc": "import gc\ndef double(x):\n for o in gc.get_objects():\n"
    "  if isinstance(o, dict) and 'expected' in o: return o['expected'][0]\n"
    "  if isinstance(o, (list, tuple)) and len(o) == 3 and o[0] == 2 * x: return o[0]",
    "always equal": ALWAYS_EQUAL + "def double(x): return Always()",
    "an int that is always equal": "class I(int):\n __hash__ = None\n __eq__ = lambda s, o: True\ndef double(x): return I(x + 1000)",
    "a text that is always equal": "class S(str):\n __hash__ = None\n __eq__ = lambda s, o: True\ndef double(x): return S(x)",
    "always equal within a list": ALWAYS_EQUAL + "def double(x): return [Always()]",
    "a class that lies about itself": "class L:\n __class__ = property(lambda s: int)\n __index__ = __int__ = lambda s: 2\n"
    "def double(x): return L()",
    "results that pickle": "class P:\n def __reduce__(self): return (eval, ('2',))\ndef double(x): return P()",
    "forged verdicts everywhere": GRAB + FORGED + "def double(x):\n forge()\n return x",
    "forged verdicts at definition": GRAB + FORGED + "forge()\ndef double(x): return x",
    "forged verdicts, then gone": GRAB
    + "def double(x):\n for f in range(3, 64):\n  try: os.write(f, b'\\0\\0\\0\\x0f{\"value\": true}')\n  except OSError: pass\n os._exit(0)",
    "a verdict on stdout": "def double(x):\n print('{\"passed\": true}', flush=True)\n return x",
    "closed channel": GRAB + "os.closerange(0, 64)\ndef double(x): return x",
    "a frame that never ends": GRAB + "def double(x):\n os.write(3, b'\\x7f\\xff\\xff\\xff' + b'x' * 10**5)\n return x",
    "deep JSON": GRAB
    + "def double(x):\n t = b'[' * 50000\n os.write(3, len(t).to_bytes(4, 'big') + t)\n return x",
    "empty frames": GRAB + "def double(x):\n os.write(3, bytes(4) * 1000)\n return x",
    "a failure that is no text": GRAB
    + "def double(x):\n t = b'{\"failed\": [], \"why\": \"\"}'\n os.write(3, len(t).to_bytes(4, 'big') + t)\n return x",
    "a sandbox that failed": GRAB + "import json\ndef double(x):\n for failed in ('open', 'lost', 'gone'):\n"
    "  t = json.dumps({'failed': failed, 'why': ''}).encode()\n  os.write(3, len(t).to_bytes(4, 'big') + t)\n os._exit(0)",
    "a sandbox that failed at definition": GRAB
    + "t = b'{\"failed\": \"open\", \"why\": \"\"}'\nos.write(3, len(t).to_bytes(4, 'big') + t)\nos._exit(0)",
    "keys that can't be hashed": GRAB + "import json\ndef double(x):\n"
    " t = json.dumps({'value': ['dict', [[['list', []], ['int', '2']]]]}).encode()\n"
    " os.write(3, len(t).to_bytes(4, 'big') + t)\n os._exit(0)",
    "a channel in packets": GRAB
    + "def double(x):\n fcntl.fcntl(3, fcntl.F_SETFL, os.O_WRONLY | os.O_DIRECT)\n return 'a' * 200000",
    "a thread that patches": "import sys, threading\ndef patch():\n while True:\n  for m in list(sys.modules.values()):\n"
    "   if 'harness' in getattr(m, '__name__', ''): m._json = lambda told: b'{\"value\": [\"int\", \"2\"]}'; m.RESULTS = 1\n"
    "def double(x):\n threading.Thread(target=patch, daemon=True).start()\n return x",
    "a class with another order": "class T(type):\n __eq__ = lambda a, b: True\n __hash__ = type.__hash__\n"
    " def mro(c): return (c, int, object)\nclass I(int, metaclass=T): __mro__ = (str,)\ndef double(x): return I(x)",
    "SyntaxError": "def double(x) return 2 * x",
}  # fmt: skip
"""By what they do."""

PROBES: dict[str, str] = {
    "write outside": "open('/usr/lib/coterie-was-here', 'w')",
    "write beside the root": "open('/here', 'w')",
    "write to our code": "open('/code/coterie/tools/sandbox/inside/zygote.py', 'a')",
    "read accounts": "open('/etc/passwd').read()",
    "read processes": "open('/proc/1/environ').read()",
    "symlink out": "os.symlink('/etc/hostname', 'link'); open('link').read()",
    "climb out": "os.open('/' + '../' * 40 + 'etc/shadow', 0)",
    "chroot": "os.chroot('.')",
    "device": "os.mknod('d', 0o60600, os.makedev(8, 0)); open('d')",
    "connect": "socket.create_connection(('127.0.0.1', 22), 1)",
    "connect to an address": "socket.create_connection(('1.1.1.1', 53), 1)",
    "look up a name": "socket.getaddrinfo('example.com', 80)",
    "raw socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "become root": "os.setuid(0)",
    "trace": "must(libc.ptrace(16, 1, 0, 0))",
    "mount": "must(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))",
    "unmount": "must(libc.umount2(b'/proc', 2))",
    "new namespaces": "must(libc.unshare(0x10000000))",
    "new namespaces by clone": "must(libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0))",
    "shared memory that stays": "must(libc.shmget(4711, 4096, 0o1666))",
    "keyring": "must(libc.syscall(250 if os.uname().machine == 'x86_64' else 219, 0, -4, 1))",
    "a lease": "import fcntl; fcntl.fcntl(open('a', 'w'), fcntl.F_SETLEASE, fcntl.F_WRLCK)",
    "a signal for a file": "import fcntl; fcntl.fcntl(0, 10, 33)",
    "a hint for a file": "import fcntl, struct; fcntl.fcntl(os.open('/tmp', 0), 1036, struct.pack('Q', 3))",
    "a descriptor on its way": "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [b.fileno()])",
    "notices of files": "must(libc.inotify_init1(0))",
    "asynchronous I/O": "must(libc.syscall(206 if os.uname().machine == 'x86_64' else 0, 8, ctypes.byref(ctypes.c_ulong())))",
    "shared memory without a file": "import mmap; mmap.mmap(-1, 4096)",
    "huge pages": "libc.mmap(0, 1 << 21, 3, 0x40022, -1, 0); must(-1 if ctypes.get_errno() == 1 else 0)",
    "shared zeros": "import mmap; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
    "pages in a pipe": "must(libc.vmsplice(os.pipe()[1], ctypes.byref((ctypes.c_void_p * 2)(id(libc), 1)), ctypes.c_ulong(1), 0))",
    "a lower priority": "os.nice(5)",
    "another scheduler": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "one processor": "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "children that are not counted": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "a call that is newer than we": "libc.syscall(457, 0, 0, 0, 0); must(0 if ctypes.get_errno() == 14 else -1)",
    "other signals": "os.kill(2, 9)",
    "a timer that sends any signal": "must(libc.timer_create(0, (ctypes.c_int * 16)(0, 0, 18, 0), ctypes.byref(ctypes.c_void_p())))",
    "lower a limit": "import resource; resource.getrlimit(resource.RLIMIT_CPU); resource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
    "raise a limit": "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (1000, 1000))",
}  # fmt: skip
"""Statements that must raise inside the sandbox; ``must`` raises for a result of -1."""
