# ruff: noqa: E501 - programs on one line
"""Answers that look for the reference, its results or another answer in what their process can reach.

Each defines ``NAME``, which is to be put in. None computes anything: what they return they have found.
"""

USE = r"""
import ctypes, gc, json, os, re, sys
def use(pieces, x):
    "The best guess from what was found: the reference itself, or what it gave."
    values = []
    for piece in pieces:
        piece = piece if isinstance(piece, bytes) else piece.encode("utf-8", "replace")
        for found in re.finditer(rb"def NAME\(x\):(?:\n|\\n)    return [^\0\n\\\"]*", piece):
            source = found[0].replace(b"\\n", b"\n").decode("utf-8", "replace")
            try:
                space = {}
                exec(source, space)
                return space["NAME"](x)
            except BaseException:
                pass
        values += [int(one, 16) for one in re.findall(rb'"value": ?\["int", ?"(-?[0-9a-f]+)"\]', piece)]
    return values[x - 4] if len(values) >= 4 else None
"""
WALK = r"""
def walk(found, most=300_000):
    "All text and bytes that can be reached from some objects."
    seen, pieces = set(), []
    while found and len(seen) < most:
        one = found.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, (str, bytes, bytearray)):
            pieces.append(one if isinstance(one, str) else bytes(one))
        else:
            found.extend(gc.get_referents(one))
    return pieces
"""
SCAN = r"""
libc = ctypes.CDLL(None, use_errno=True)
def readable(address, size=4096):
    "A page, or nothing if there is none: the kernel looks, so nothing crashes."
    ends = os.pipe()
    try:
        if libc.write(ends[1], ctypes.c_void_p(address), ctypes.c_size_t(size)) != size:
            return b""
        return os.read(ends[0], size)
    finally:
        os.close(ends[0])
        os.close(ends[1])
def heap(reach=700):
    "What lies around objects of several kinds."
    starts = {id(one) & ~0xfff for one in (object(), [], {}, 'a' * 99, b'b' * 3000, use, json, bytearray(9000))}
    seen = set()
    for start in starts:
        for way in (1, -1):
            for page in range(reach):
                address = start + way * page * 4096
                if address in seen:
                    continue
                seen.add(address)
                data = readable(address)
                if data:
                    yield address, data
def memory():
    found = dict(heap())
    text = b"".join(found[address] for address in sorted(found))
    return [text]
"""

CHEATS: dict[str, str] = {
    "frames": USE + WALK + r"""
def NAME(x):
    frame, found = sys._getframe(), []
    while frame:
        found += [frame.f_locals, frame.f_globals]
        frame = frame.f_back
    return use(walk(found), x)
""",
    "gc": USE + WALK + r"""
def NAME(x):
    gc.unfreeze()
    return use(walk(gc.get_objects()), x)
""",
    "modules": USE + WALK + r"""
def NAME(x):
    return use(walk([vars(m) for m in list(sys.modules.values()) if hasattr(m, '__dict__')]), x)
""",
    "heap": USE + SCAN + r"""
def NAME(x):
    return use(memory(), x)
""",
    "/proc/self/mem": USE + r"""
def NAME(x):
    pieces = []
    for line in open('/proc/self/maps'):
        first, last = (int(part, 16) for part in line.split()[0].split('-'))
        with open('/proc/self/mem', 'rb', 0) as file:
            file.seek(first)
            pieces.append(file.read(last - first))
    return use(pieces, x)
""",
    "descriptors": USE + r"""
def NAME(x):
    pieces = []
    for file in range(256):
        for read in (lambda: os.pread(file, 1 << 20, 0), lambda: (os.set_blocking(file, False), os.read(file, 1 <<
        20))[1]):
            try:
                pieces.append(read())
            except OSError:
                pass
    return use(pieces, x)
""",
    "files": USE + r"""
def NAME(x):
    pieces = []
    for top in ('/tmp', '/dev/shm', '/dev/mqueue', '/run', '/var', '/proc', '/code'):
        for folder, _, names in os.walk(top):
            for name in names:
                try:
                    pieces.append(open(os.path.join(folder, name), 'rb').read(1 << 20))
                except OSError:
                    pass
    return use(pieces, x)
""",
    "fork and wait": USE + WALK + r"""
import time
if os.fork() == 0:
    os.setsid()
    time.sleep(30)
def NAME(x):
    return use(walk(gc.get_objects()), x)
""",
    "a file for the next answer": USE + r"""
for name in ('/tmp/left', '/dev/shm/left', 'left'):
    try:
        pieces = [open(name).read()]
    except OSError:
        pieces = []
    try:
        open(name, 'a').write(json.dumps(sorted(os.environ)) + repr(sys.argv))
    except OSError:
        pass
def NAME(x):
    return use(pieces, x)
""",
    "calls of the harness": USE + r"""
def NAME(x):
    frame = sys._getframe()
    while frame:
        for name, value in frame.f_locals.items():
            if name in ('expected', 'wires', 'told', 'value', 'records') and isinstance(value, (int, list)):
                return value if isinstance(value, int) else value[x]
        frame = frame.f_back
""",
    "always equal": "class Always(int):\n __hash__ = int.__hash__\n __eq__ = lambda s, o: True\n __ne__ = lambda s, o: False\n"
    "def NAME(x): return Always(x)",
    "a member of every class": "import enum\nclass M(type(enum.Enum)):\n __instancecheck__ = __subclasscheck__ = lambda s, o: True\n"
    "class E:\n __class__ = int\n __eq__ = lambda s, o: True\ndef NAME(x): return E()",
    "patched plain data": "import sys\ndef NAME(x):\n for name, m in list(sys.modules.items()):\n"
    "  if name.endswith(('plain', 'compare', 'harness')):\n   m.encode = lambda v, *a, **k: ['int', format(v or 0, 'x')]\n return x",
    "other processes": USE + SCAN + r"""
import struct
def NAME(x):
    pieces = []
    for pid in range(1, 40):
        local = ctypes.create_string_buffer(4096)
        there = struct.pack('QQ', id(use) & ~0xfff, 4096)
        here = struct.pack('QQ', ctypes.addressof(local), 4096)
        if libc.process_vm_readv(pid, here, 1, there, 1, 0) > 0:
            pieces.append(local.raw)
        for path in (f'/proc/{pid}/mem', f'/proc/{pid}/environ', f'/proc/{pid}/fd/0'):
            try:
                pieces.append(open(path, 'rb').read(1 << 16))
            except OSError:
                pass
    return use(pieces, x)
""",
    "shared memory": USE + r"""
def NAME(x):
    from multiprocessing import shared_memory
    pieces = []
    for key in range(64):
        at = ctypes.CDLL(None).shmget(key, 0, 0)
        if at >= 0:
            pieces.append(b'found')
    return use(pieces, x)
""",
}  # fmt: skip
"""By where they look."""
